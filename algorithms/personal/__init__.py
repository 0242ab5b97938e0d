"""Personal models: mixtures of two or more, clusters, and what of a net is shared."""
