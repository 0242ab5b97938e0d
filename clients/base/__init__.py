"""What every client half stands on: the adapter to Flower, state, data, local training, scores."""
