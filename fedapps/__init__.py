"""Applications of the federated-learning methods: settings, tasks, engines, reports and the command line."""

__version__ = "0.1.0"
