"""Server halves of the methods, as Flower strategies, and the cohort and round loop that they share."""

from strategies.aflboost import AFLBoost, AFLBoostOptions
from strategies.cohort import Cohort
from strategies.fedavg import FedAvg
from strategies.fedboost import FedBoost, FedBoostOptions
from strategies.fedprox import FedProx, FedProxOptions
from strategies.local import Local
from strategies.rounds import Patience, Round, TooFewReplies, run_rounds
from strategies.superfed import SuPerFed, SuPerFedOptions

__all__ = [
    "AFLBoost",
    "AFLBoostOptions",
    "Cohort",
    "FedAvg",
    "FedBoost",
    "FedBoostOptions",
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
