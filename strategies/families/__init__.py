"""What the strategies of one family share."""
