"""What every server half stands on: the round loop, the client grid, reply validation, capabilities."""
