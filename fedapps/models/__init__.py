"""Neural networks, under the names used in their papers."""
