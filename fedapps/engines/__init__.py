"""Ways to run the app: in this process, in Flower's Ray simulation, on a SuperLink of its own."""
