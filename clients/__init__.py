"""Client sides of the methods, as Flower NumPyClients that take a model and data, and the code they share."""

from typing import TYPE_CHECKING

from algorithms.common.lazy import late_exports

if TYPE_CHECKING:  # imported on first use: most need PyTorch, which takes seconds and 200 MB to import
    from clients.base.adapter import to_client_app
    from clients.base.data import ClientData, Split
    from clients.base.options import TrainOptions
    from clients.base.store import DiskStore, MessageStore, Store
    from clients.fedavg import FedAvgClient
    from clients.fedboost import FedBoostClient
    from clients.fedcgan import FedCGANClient
    from clients.fedcvae import FedCVAEClient
    from clients.feddyn import FedDynClient
    from clients.fedevg import FedEvgClient
    from clients.fedfw import FedFWClient
    from clients.fedprox import FedProxClient
    from clients.ffgb import FFGBClient
    from clients.ffgb_distill import FFGBDistillClient
    from clients.local import LocalClient
    from clients.partial_sharing import FedRepClient, PartialClient
    from clients.personal import APFLClient, DittoClient, PFedMeClient
    from clients.projected import ProjectedClient
    from clients.propfair import PropFairClient
    from clients.scaffold import ScaffoldClient
    from clients.superfed import SuPerFedClient
    from clients.warm_start import TwoPhaseClient

__getattr__, __dir__ = late_exports(__name__, __file__)

__all__ = [
    "APFLClient",
    "ClientData",
    "DiskStore",
    "DittoClient",
    "FFGBClient",
    "FFGBDistillClient",
    "FedAvgClient",
    "FedBoostClient",
    "FedCGANClient",
    "FedCVAEClient",
    "FedDynClient",
    "FedEvgClient",
    "FedFWClient",
    "FedProxClient",
    "FedRepClient",
    "LocalClient",
    "MessageStore",
    "PFedMeClient",
    "PartialClient",
    "ProjectedClient",
    "PropFairClient",
    "ScaffoldClient",
    "Split",
    "Store",
    "SuPerFedClient",
    "TrainOptions",
    "TwoPhaseClient",
    "to_client_app",
]
