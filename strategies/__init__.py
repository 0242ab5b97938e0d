"""Server halves of the methods, as Flower strategies, and the cohort and round loop that they share."""

from typing import TYPE_CHECKING

from algorithms.common.lazy import late_exports

if TYPE_CHECKING:  # imported when they are first used: some need PyTorch, which takes seconds and 200 MB
    from strategies.aaggff import AAggFFD, AAggFFOptions, AAggFFS
    from strategies.afl import AFL, AFLOptions
    from strategies.aflboost import AFLBoost, AFLBoostOptions
    from strategies.base.client_grid import Cohort
    from strategies.base.reply_validation import UpdateBound
    from strategies.base.rounds import Patience, Round, TooFewReplies, run_rounds
    from strategies.families.reweighting import Reweighting
    from strategies.fedavg import FedAvg, FedAvgOptions
    from strategies.fedavg_distill import FedAvgDistill, FedAvgDistillOptions
    from strategies.fedboost import FedBoost, FedBoostOptions
    from strategies.feddyn import FedDyn, FedDynOptions
    from strategies.fedevg import FedEvg, FedEvgOptions
    from strategies.fedfw import FedFW, FedFWOptions
    from strategies.fedgenerator import FedGenerator, GeneratorOptions
    from strategies.fedmgda import FedMGDA, FedMGDAOptions
    from strategies.fedopt import FedAdagrad, FedAdam, FedOptOptions, FedYogi
    from strategies.fedprox import FedProx, FedProxOptions
    from strategies.ffgb import FFGB, FFGBOptions
    from strategies.ffgb_distill import FFGBDistill, FFGBDistillOptions
    from strategies.local import Local
    from strategies.partial_sharing import FedRep, FedRepOptions, PartialSharing
    from strategies.personal import APFL, APFLOptions, Ditto, DittoOptions, PFedMe, PFedMeOptions
    from strategies.private import PrivacyOptions, Private
    from strategies.projected_fedavg import ProjectedFedAvg, ProjectedOptions
    from strategies.propfair import PropFair, PropFairOptions
    from strategies.qfedavg import QFedAvg, QFedAvgOptions
    from strategies.scaffold import Scaffold, ScaffoldOptions
    from strategies.superfed import SuPerFed, SuPerFedOptions
    from strategies.term import TERM, TERMOptions
    from strategies.warm_start import WarmStart, WarmStartOptions

__getattr__, __dir__ = late_exports(__name__, __file__)

__all__ = [
    "AFL",
    "APFL",
    "FFGB",
    "TERM",
    "AAggFFD",
    "AAggFFOptions",
    "AAggFFS",
    "AFLBoost",
    "AFLBoostOptions",
    "AFLOptions",
    "APFLOptions",
    "Cohort",
    "Ditto",
    "DittoOptions",
    "FFGBDistill",
    "FFGBDistillOptions",
    "FFGBOptions",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgDistill",
    "FedAvgDistillOptions",
    "FedAvgOptions",
    "FedBoost",
    "FedBoostOptions",
    "FedDyn",
    "FedDynOptions",
    "FedEvg",
    "FedEvgOptions",
    "FedFW",
    "FedFWOptions",
    "FedGenerator",
    "FedMGDA",
    "FedMGDAOptions",
    "FedOptOptions",
    "FedProx",
    "FedProxOptions",
    "FedRep",
    "FedRepOptions",
    "FedYogi",
    "GeneratorOptions",
    "Local",
    "PFedMe",
    "PFedMeOptions",
    "PartialSharing",
    "Patience",
    "PrivacyOptions",
    "Private",
    "ProjectedFedAvg",
    "ProjectedOptions",
    "PropFair",
    "PropFairOptions",
    "QFedAvg",
    "QFedAvgOptions",
    "Reweighting",
    "Round",
    "Scaffold",
    "ScaffoldOptions",
    "SuPerFed",
    "SuPerFedOptions",
    "TERMOptions",
    "TooFewReplies",
    "UpdateBound",
    "WarmStart",
    "WarmStartOptions",
    "run_rounds",
]
