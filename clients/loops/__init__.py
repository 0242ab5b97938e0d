"""Methods around a training loop of your own: a torch module, loaders and a function
that trains.
"""
