"""The settings of a run that tasks and methods may use beside their own options."""

from dataclasses import dataclass, field

from fedapps.clients.base.options import TrainOptions
from fedapps.data.options import DataOptions, PublicOptions, SiteOptions, SyntheticOptions
from fedapps.models.options import ModelOptions


@dataclass(frozen=True)
class RunContext:
    """The part of a run's settings shared by its task and its method.

    ``num_clients``: 0 until it is determined from the data. ``device``: "cpu",
    "cuda", "cuda:1" and so on; "auto", if nobody has decided: the CPU.
    """

    seed: int = 0
    num_rounds: int = 50
    num_clients: int = 0
    device: str = "auto"
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    public: PublicOptions = field(default_factory=PublicOptions)
    synthetic: SyntheticOptions = field(default_factory=SyntheticOptions)
    sites: SiteOptions = field(default_factory=SiteOptions)

    @property
    def split_seed(self) -> int:
        """The seed that deals samples, and chooses which are for testing and
        validation.
        """
        chosen = self.data.split_seed
        return self.seed if chosen == "seed" else int(chosen)
