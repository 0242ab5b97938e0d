"""The applications: settings, tasks, wiring, reports and the launcher of the federated-learning methods."""

__version__ = "0.1.0"
