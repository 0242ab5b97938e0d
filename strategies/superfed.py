"""SuPerFed: a federated and a personal model at each client, randomly mixed in training
so that a low-loss path connects them.

Sources: Hahn, Jeong, Lee, "Connecting Low-Loss Subspace for Personalized Federated
Learning", KDD 2022, arXiv 2109.07628; Hahn, "Algorithms for Collaborative Machine
Learning under Statistical Heterogeneity", dissertation, UNIST 2024, arXiv 2408.00050,
Chapter II, Algorithms 2.3 and 2.4, equations (2.3)-(2.6). The server averages the
federated models theta_f as FedAvg does and informs the clients when mixing starts:
after the first L = start * num_rounds rounds, or as soon as clients have been sampled
``start_draws`` times on average. Mixing "model" is SuPerFed-MM (one lambda per
mini-batch), "layer" is SuPerFed-LM (one per layer and mini-batch). The proximal term is
squared; see ``clients/superfed.py``.

Contract: FedAvg's. The client trains the received theta_f, which it returns, and a
personal theta_l, which it keeps and never sends, at random mixtures of the two; the
training configuration holds ``proximal-mu``, ``superfed-nu``, ``superfed-init``,
``superfed-step-scale`` and ``superfed-mixing`` ("model", "layer", or "none" before
mixing starts). The evaluation configuration holds the same, ``superfed-catch-up`` and,
unless clients choose by themselves, ``superfed-lambda`` and ``superfed-tune``, the
mixture and the epochs for which it is trained before use. -1 for lambda asks for the
validation losses over ``LAMBDAS`` and, if ``superfed-tune`` is not 0, of the models at
both ends after these epochs (``strategies/families/pooled_choice.py``). Such training
before use is this project's own; the thesis has none.

If evaluation replies hold ``lambda-grid``, ``lambda-accuracy``,
``lambda-validation-loss`` (over that grid) and ``validation-samples``,
``pooled-accuracy`` is the mean test accuracy at the one lambda (``pooled-lambda``) that
has the least validation loss over all clients. Where numbers are predicted, ``rmse``
takes the place of ``accuracy`` in these names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.measures import LEADING
from fedapps.algorithms.common.options import Options, check_choice, option
from fedapps.algorithms.contract.sent import (
    ASKED,
    ENDS,
    LAMBDAS,
    ProximalSent,
    Reads,
    SuPerFedScoring,
    SuPerFedTraining,
)
from fedapps.algorithms.personal.choice import counted, pooled_curve, sound_curve
from fedapps.strategies.base.messages import metrics_of, most_common
from fedapps.strategies.base.named_grid import clients_of
from fedapps.strategies.families.pooled_choice import CHOICES, PooledChoice
from fedapps.strategies.fedavg import FedAvgArguments

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SuPerFedOptions(Options):
    """Options of SuPerFed; defaults were chosen on held-out jobs
    (``experiments/personal-forms.toml``).
    """

    PRINTED = MappingProxyType(
        {
            "nu": 1.0,
            "init": "own",
            "step_scale": 1.0,
            "catch_up": 0,
            "lambda_choice": "own",
            "tune": 0,
        }
    )
    mu: float = option(0.01, "weight of the proximal term", low=0)
    nu: float = option(
        0.0, "weight of the squared cosine between federated and personal model", low=0
    )
    start: float = option(0.4, "L / T, the share of the rounds before mixing starts", low=0, high=1)
    start_draws: float = option(
        0.0,
        "mixing starts earlier, once clients were sampled this often on average; 0: not earlier",
        low=0,
    )
    init: str = option(
        "global",
        "initial theta_l: random for each client, or the received model",
        choices=["own", "global"],
    )
    step_scale: float = option(
        2.0,
        "factor on both models' gradients; 2 makes up for E[lambda] = 1/2",
        low=0,
        open_low=True,
    )
    catch_up: int = option(
        1, "local epochs before scoring for a client that has not mixed yet", low=0
    )
    lambda_choice: str = option(
        "shrunk",
        "validation losses that choose lambda: own, own shrunk towards all clients', or all "
        "clients'",
        choices=CHOICES,
    )
    tune: int = option(
        8,
        "local epochs after which the federated and the personal model are candidates beside the "
        "mixtures, unless lambda-choice is own",
        low=0,
    )


class SuPerFed(PooledChoice):
    """SuPerFed-MM (``mixing="model"``) and SuPerFed-LM (``mixing="layer"``)
    strategy.
    """

    client_half: Reads = (SuPerFedTraining,)
    scheduled = True
    unasked = "lambda_choice='own'"

    def __init__(
        self,
        options: SuPerFedOptions | None = None,
        mixing: str = "model",
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        check_choice("mixing", mixing, ["model", "layer"])
        self.options = options or SuPerFedOptions()
        self.mixing = mixing
        self.own_measures: Mapping[str, float] = {}
        self.draws = 0.0  # times a client was sampled so far, on average
        self.mixed = False  # whether the last training mixed

    def train_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send what clients need to train. The paper's ``t < L`` counts rounds from 0:
        the first L rounds do not mix.
        """
        o = self.options
        starts = server_round > int(o.start * num_rounds) or 0 < o.start_draws <= self.draws
        own = SuPerFedTraining(o.nu, o.step_scale, o.init, self.mixing if starts else "none")
        return {**ProximalSent(o.mu).to_config(), **own.to_config()}

    def evaluate_options(
        self, server_round: int, num_rounds: int
    ) -> dict[str, bool | int | float | str]:
        """Send the same, and how long a client without a personal model trains one."""
        o = self.options
        # as in the round's training, which has raised `draws` since
        mixed = self.mixed or server_round > int(o.start * num_rounds)
        own = SuPerFedScoring(
            o.nu,
            o.step_scale,
            o.init,
            self.mixing if mixed else "none",
            catch_up=o.catch_up,
        )
        return {**ProximalSent(o.mu).to_config(), **own.to_config()}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the sampled clients; count the draws."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        self.mixed = SuPerFedTraining.from_config(config).mixing != "none"
        self.draws += len(messages) / max(1, len(clients_of(grid)))
        return messages

    @property
    def chosen_by(self) -> str:
        """Whose validation losses choose lambda."""
        return self.options.lambda_choice

    @property
    def candidates(self) -> Sequence[Any]:
        """The mixtures as (lambda, epochs of training before use)."""
        tune = self.options.tune
        return [(value, 0) for value in LAMBDAS] + [(end, tune) for end in ENDS if tune]

    def question(self) -> dict[str, Any]:
        """Ask for the losses of all candidates."""
        return self.answer((ASKED, self.options.tune))

    def answer(self, chosen: Any) -> dict[str, Any]:
        """Send the mixture; a client without one chooses."""
        keys = SuPerFedScoring.key("lambda_"), SuPerFedScoring.key("tune")
        return {} if chosen is None else dict(zip(keys, chosen, strict=True))

    def chosen_of(self, metrics: Mapping[str, Any]) -> Any:
        """Return the mixture."""
        return float(metrics["lambda"]), int(float(metrics["tuned-epochs"]))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics; add the scores at one lambda for all clients."""
        valid = self.answered(replies)
        curves = collected([metrics_of(reply.content) for reply in valid])
        self.own_measures = curves.measures() if curves else {}
        metrics = super().aggregate_evaluate(server_round, valid)
        return metrics and MetricRecord({**metrics, **self.own_measures})

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the mean number of draws."""
        return {"draws": np.array(self.draws)}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.draws = float(state.get("draws", self.draws))


CURVES = ("lambda-grid", "lambda-validation-loss")


@dataclass(frozen=True)
class Curves:
    """The curves of some clients over one ``grid`` of lambda.

    ``scores`` (on test samples; ``name``: which leading score), ``losses`` (on
    validation samples): shape (clients, grid). ``samples`` (clients,): numbers of
    validation samples, as they count.
    """

    grid: tuple[float, ...]
    scores: Floats
    losses: Floats
    samples: Floats
    name: str = "accuracy"

    def measures(self) -> dict[str, float]:
        """Return the mean score at one lambda for all clients, and that lambda."""
        best = int(np.argmin(pooled_curve(self.losses, self.samples)))
        return {
            f"pooled-{self.name}": float(self.scores[:, best].mean()),
            "pooled-lambda": float(self.grid[best]),
        }


def collected(metrics: list[dict[str, Any]]) -> Curves | None:
    """Return the curves of the clients whose curves are complete, on the grid that most
    of them use; ``None`` if no client has any.
    """
    complete = {
        name: [one for one in metrics if _complete(one, f"lambda-{name}")] for name in LEADING
    }
    name = max(complete, key=lambda name: len(complete[name]))  # the score most clients report
    whole = complete[name]
    if not whole:
        return None
    grid = most_common([tuple(one["lambda-grid"]) for one in whole])
    whole = [one for one in whole if tuple(one["lambda-grid"]) == grid]
    scores, losses = (
        np.array([one[key] for one in whole], dtype=float) for key in (f"lambda-{name}", CURVES[1])
    )
    samples = np.array([one["validation-samples"] for one in whole], dtype=float)
    return Curves(grid, scores, losses, counted(losses, samples), name)


def _complete(metrics: Mapping[str, Any], score: str) -> bool:
    """Return whether a client's curves are lists of finite numbers of one length, and
    its number of samples positive.
    """
    grid, samples = metrics.get("lambda-grid"), metrics.get("validation-samples")
    return isinstance(grid, list) and all(
        sound_curve(metrics.get(name), samples, len(grid)) for name in (*CURVES, score)
    )
