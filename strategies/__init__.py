"""The methods' Flower strategies, and the client grid and round loop that they share."""

from typing import TYPE_CHECKING

from algorithms.common.lazy import late_exports, moved_modules

if TYPE_CHECKING:  # imported on first use: some need PyTorch, which takes seconds and 200 MB
    from strategies.aaggff import AAggFFD as AAggFFD
    from strategies.aaggff import AAggFFOptions as AAggFFOptions
    from strategies.aaggff import AAggFFS as AAggFFS
    from strategies.afl import AFL as AFL
    from strategies.afl import AFLOptions as AFLOptions
    from strategies.aflboost import AFLBoost as AFLBoost
    from strategies.aflboost import AFLBoostOptions as AFLBoostOptions
    from strategies.apfl import APFL as APFL
    from strategies.apfl import APFLOptions as APFLOptions
    from strategies.base.capabilities import Capabilities as Capabilities
    from strategies.base.client_grid import ClientGrid as ClientGrid
    from strategies.base.reply_validation import UpdateBound as UpdateBound
    from strategies.base.rounds import Patience as Patience
    from strategies.base.rounds import Round as Round
    from strategies.base.rounds import TooFewReplies as TooFewReplies
    from strategies.base.rounds import run_rounds as run_rounds
    from strategies.ditto import Ditto as Ditto
    from strategies.ditto import DittoOptions as DittoOptions
    from strategies.families.reweighting import Reweighting as Reweighting
    from strategies.fedavg import FedAvg as FedAvg
    from strategies.fedavg import FedAvgOptions as FedAvgOptions
    from strategies.fedavg_distill import FedAvgDistill as FedAvgDistill
    from strategies.fedavg_distill import FedAvgDistillOptions as FedAvgDistillOptions
    from strategies.fedboost import FedBoost as FedBoost
    from strategies.fedboost import FedBoostOptions as FedBoostOptions
    from strategies.feddyn import FedDyn as FedDyn
    from strategies.feddyn import FedDynOptions as FedDynOptions
    from strategies.fedevg import FedEvg as FedEvg
    from strategies.fedevg import FedEvgOptions as FedEvgOptions
    from strategies.fedfw import FedFW as FedFW
    from strategies.fedfw import FedFWOptions as FedFWOptions
    from strategies.fedgenerator import FedGenerator as FedGenerator
    from strategies.fedgenerator import GeneratorOptions as GeneratorOptions
    from strategies.fedmgda import FedMGDA as FedMGDA
    from strategies.fedmgda import FedMGDAOptions as FedMGDAOptions
    from strategies.fedopt import FedAdagrad as FedAdagrad
    from strategies.fedopt import FedAdam as FedAdam
    from strategies.fedopt import FedOptOptions as FedOptOptions
    from strategies.fedopt import FedYogi as FedYogi
    from strategies.fedprox import FedProx as FedProx
    from strategies.fedprox import FedProxOptions as FedProxOptions
    from strategies.ffgb import FFGB as FFGB
    from strategies.ffgb import FFGBOptions as FFGBOptions
    from strategies.ffgb_distill import FFGBDistill as FFGBDistill
    from strategies.ffgb_distill import FFGBDistillOptions as FFGBDistillOptions
    from strategies.local import Local as Local
    from strategies.partial_sharing import FedRep as FedRep
    from strategies.partial_sharing import FedRepOptions as FedRepOptions
    from strategies.partial_sharing import PartialSharing as PartialSharing
    from strategies.pfedme import PFedMe as PFedMe
    from strategies.pfedme import PFedMeOptions as PFedMeOptions
    from strategies.private import PrivacyOptions as PrivacyOptions
    from strategies.private import Private as Private
    from strategies.projected_fedavg import ProjectedFedAvg as ProjectedFedAvg
    from strategies.projected_fedavg import ProjectedOptions as ProjectedOptions
    from strategies.propfair import PropFair as PropFair
    from strategies.propfair import PropFairOptions as PropFairOptions
    from strategies.qfedavg import QFedAvg as QFedAvg
    from strategies.qfedavg import QFedAvgOptions as QFedAvgOptions
    from strategies.scaffold import Scaffold as Scaffold
    from strategies.scaffold import ScaffoldOptions as ScaffoldOptions
    from strategies.superfed import SuPerFed as SuPerFed
    from strategies.superfed import SuPerFedOptions as SuPerFedOptions
    from strategies.term import TERM as TERM
    from strategies.term import TERMOptions as TERMOptions
    from strategies.warm_start import WarmStart as WarmStart
    from strategies.warm_start import WarmStartOptions as WarmStartOptions

__getattr__, __dir__ = late_exports(__name__, __file__, renamed={"Cohort": "ClientGrid"})

# Old module names that other projects may import until 0.3.
moved_modules(
    {
        "strategies.averaging": "strategies.base.weights",
        "strategies.cohort": "strategies.base.client_grid",
        "strategies.contents": "strategies.base.messages",
        "strategies.reweighting": "strategies.families.reweighting",
        "strategies.rounds": "strategies.base.rounds",
        "strategies.soundness": "strategies.base.reply_validation",
        "strategies.updates": "strategies.base.updates",
    }
)
