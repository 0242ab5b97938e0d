"""What the clients of one family share."""
