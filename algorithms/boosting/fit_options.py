"""Options of fitting a network to given outputs. Without PyTorch: settings are read and
checked before it is needed.
"""

from dataclasses import dataclass

from fedapps.algorithms.common.options import Options, option

#: Names of what a fit minimises, as in ``algorithms.boosting.regression.LOSSES``.
FIT_LOSSES = ("mse", "kl")


@dataclass(frozen=True)
class FitOptions(Options):
    """How a network is fitted."""

    epochs: int = option(100, "passes over the samples", low=1)
    batch_size: int = option(64, "samples per step", low=1)
    learning_rate: float = option(1e-3, "learning rate of Adam", low=0, open_low=True)
    weight_decay: float = option(0.0, "weight decay (added to the gradient)", low=0)
    clip: float = option(5.0, "largest norm of a step's gradient; 0: no limit", low=0)
    steps: int = option(0, "number of steps, replaces the epochs; 0: use the epochs", low=0)
    loss: str = option(
        "mse",
        "squared error, or divergence of the softmax of outputs and targets",
        choices=FIT_LOSSES,
    )


@dataclass(frozen=True)
class DistillOptions(Options):
    """How the server's network is fitted to the teacher."""

    distill_epochs: int = option(
        10,
        "epochs of the server's fit on its unlabelled images, with Adam, gradients cut to norm 5",
        low=1,
    )
    distill_batch_size: int = option(64, "batch size of the server's fit", low=1)
    distill_learning_rate: float = option(
        1e-3, "learning rate of the server's fit", low=0, open_low=True
    )
    distill_loss: str = option(
        "mse", "squared error of outputs, or divergence of their softmax", choices=FIT_LOSSES
    )

    @property
    def fit(self) -> FitOptions:
        """The same as options of a fit."""
        return FitOptions(
            self.distill_epochs,
            self.distill_batch_size,
            self.distill_learning_rate,
            loss=self.distill_loss,
        )
