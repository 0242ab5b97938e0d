"""Client halves of the methods, as Flower NumPyClients: a model and data are handed in. And what they share."""

from clients.adapter import to_client_app
from clients.data import ClientData, Split
from clients.fedavg import FedAvgClient
from clients.feddyn import FedDynClient
from clients.fedfw import FedFWClient
from clients.fedprox import FedProxClient
from clients.ffgb import FFGBClient
from clients.ffgb_distill import FFGBDistillClient
from clients.local import LocalClient
from clients.projected import ProjectedClient
from clients.propfair import PropFairClient
from clients.store import DiskStore, MessageStore, Store
from clients.superfed import SuPerFedClient
from clients.training import TrainOptions
from clients.two_phase import TwoPhaseClient

__all__ = [
    "ClientData",
    "DiskStore",
    "FFGBClient",
    "FFGBDistillClient",
    "FedAvgClient",
    "FedDynClient",
    "FedFWClient",
    "FedProxClient",
    "LocalClient",
    "MessageStore",
    "ProjectedClient",
    "PropFairClient",
    "Split",
    "Store",
    "SuPerFedClient",
    "TrainOptions",
    "TwoPhaseClient",
    "to_client_app",
]
