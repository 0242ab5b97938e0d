"""Networks, by the names their papers give them."""
