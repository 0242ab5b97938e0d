"""Server halves of the methods, as Flower strategies, and the cohort and round loop that they share."""

from strategies.cohort import Cohort
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx, FedProxOptions
from strategies.local import Local
from strategies.rounds import Patience, Round, TooFewReplies, run_rounds
from strategies.superfed import SuPerFed, SuPerFedOptions

__all__ = [
    "Cohort",
    "FedAvg",
    "FedProx",
    "FedProxOptions",
    "Local",
    "Patience",
    "Round",
    "SuPerFed",
    "SuPerFedOptions",
    "TooFewReplies",
    "run_rounds",
]
