"""Code shared by the clients of a family of methods."""
