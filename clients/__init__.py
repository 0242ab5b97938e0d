"""Client sides of the methods, as Flower NumPyClients that take a model and data, and the code they share."""

from typing import TYPE_CHECKING

from algorithms.common.lazy import late_exports, moved_modules

if TYPE_CHECKING:  # imported on first use: most need PyTorch, which takes seconds and 200 MB to import
    from clients.apfl import APFLClient as APFLClient
    from clients.base.adapter import to_client_app as to_client_app
    from clients.base.data import ClientData as ClientData
    from clients.base.data import Split as Split
    from clients.base.options import TrainOptions as TrainOptions
    from clients.base.store import DiskStore as DiskStore
    from clients.base.store import MessageStore as MessageStore
    from clients.base.store import Store as Store
    from clients.ditto import DittoClient as DittoClient
    from clients.fedavg import FedAvgClient as FedAvgClient
    from clients.fedboost import FedBoostClient as FedBoostClient
    from clients.fedcgan import FedCGANClient as FedCGANClient
    from clients.fedcvae import FedCVAEClient as FedCVAEClient
    from clients.feddyn import FedDynClient as FedDynClient
    from clients.fedevg import FedEvgClient as FedEvgClient
    from clients.fedfw import FedFWClient as FedFWClient
    from clients.fedprox import FedProxClient as FedProxClient
    from clients.ffgb import FFGBClient as FFGBClient
    from clients.ffgb_distill import FFGBDistillClient as FFGBDistillClient
    from clients.local import LocalClient as LocalClient
    from clients.partial_sharing import FedRepClient as FedRepClient
    from clients.partial_sharing import PartialClient as PartialClient
    from clients.pfedme import PFedMeClient as PFedMeClient
    from clients.projected import ProjectedClient as ProjectedClient
    from clients.propfair import PropFairClient as PropFairClient
    from clients.scaffold import ScaffoldClient as ScaffoldClient
    from clients.superfed import SuPerFedClient as SuPerFedClient
    from clients.warm_start import WarmStartClient as WarmStartClient

__getattr__, __dir__, __all__ = late_exports(__name__, __file__, renamed={"TwoPhaseClient": "WarmStartClient"})

# Modules that other projects may import by their old names, until 0.3.
moved_modules(
    {
        "clients.adapter": "clients.base.adapter",
        "clients.constrained": "clients.families.problems",
        "clients.data": "clients.base.data",
        "clients.ensemble_data": "clients.families.ensemble_data",
        "clients.evaluation": "clients.base.evaluation",
        "clients.store": "clients.base.store",
        "clients.training": "clients.base.training",
    }
)
