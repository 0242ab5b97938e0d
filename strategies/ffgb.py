"""FFGB, FFGB.C and FFGB.L: federated functional gradient boosting. The model is a sum
of weak learners fitted by the clients.

Sources: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, Algorithms 1 and 2 (FFGB); its first version (2021, arXiv
2103.06972v1), Algorithm 3 (FFGB.C, clipped) and Algorithm 4 (FFGB.L, square loss over
Lipschitz functions). Client i makes K steps in function space from f^t, each of which
adds a learner h_i^k. The result is linear in f^t and the learners, with known
coefficients:

    f^{t+1} = mean_i g_i^{K+1} = c_t f^t - mean_i sum_k a_k h_i^k

A client caches the values of f^t at its own points, so it only needs the learners that
it has not received yet: their number per round does not grow with t.

Contract. A training message holds the blocks of the function
(``algorithms.boosting.additive.pack_blocks``) from version ``base`` to ``version`` and,
in its configuration, the names of the learners' arrays (``learner-arrays``), the step
sizes (``etas``) and the options of the local steps (``variant``, ``loss``, ``mu``,
``residual``, ``lipschitz``, ``clip`` and ``clip-residual`` where they apply). The reply
holds K stacked learners, their names in ``learner-arrays``, and the metrics
``num-examples`` and ``holds``: the version of the values that the client now caches. A
client without values to which the blocks can be added reports 0 and sends no arrays;
its next message holds the whole function. Evaluation does not change the cached values,
so that training traffic does not depend on it.

The server has no points at which to evaluate a learner, but knows how large learners
are: all clients fit the same kind of learner to gradients that start alike, the values
of f being 0, and shrink (an entry of the cross-entropy's is at most 1). A reply with an
array that is more than ``MOST`` times longer than the largest median of that array in
any round so far is skipped. Where a tree splits says nothing about its size.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, Unpack

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
)
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.boosting.additive import (
    Additive,
    Block,
    Learners,
    named,
    pack_blocks,
    shapes,
    stacked,
)
from fedapps.algorithms.boosting.fit_options import FitOptions
from fedapps.algorithms.boosting.step_sizes import (
    LOSS_NAMES,
    SCHEDULES,
    clip_bounds,
    step_sizes,
    summed_steps,
)
from fedapps.algorithms.common.options import Options, check_choice, option
from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.contract.sent import FFGBTraining, FunctionSent
from fedapps.algorithms.contract.wire import fields, read
from fedapps.strategies.base.capabilities import Capabilities
from fedapps.strategies.base.messages import metrics_of, to_record, values_in
from fedapps.strategies.base.named_grid import ClientId, clients_of
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.strategies.fedavg import FedAvg, FlowerArguments

VARIANTS = ("ffgb", "ffgb-c", "ffgb-l")
#: A learner's array is at most this many times longer than the largest median so far.
MOST = 5.0
#: Arrays that do not grow with what a learner predicts: those of trees.
PLACES = ("feature", "threshold")


@dataclass(frozen=True)
class FFGBOptions(Options):
    """Options of FFGB, FFGB.C and FFGB.L."""

    local_steps: int = option(1, "K, learners that a client adds in a round", low=1)
    schedule: str = option(
        "auto",
        "schedule of the steps; auto: general for ffgb-l, decay otherwise",
        choices=["auto", *SCHEDULES],
    )
    mu: float = option(0.005, "weight of the regulariser (mu/2) ||f||^2; ffgb-l uses 1", low=0)
    eta_0: float = option(10.0, "decay: the step is eta-0 / (K t + k + 1)", low=0, open_low=True)
    eta_max: float = option(
        0.0, "longest step; 0: 1 for trees, 10 otherwise; never above 1 / mu", low=0
    )
    residual: bool = option(True, "each learner also fits what the previous one missed")
    loss: str = option(
        "cross-entropy", "loss of the clients; ffgb-l uses the square", choices=LOSS_NAMES
    )
    weights: str = option(
        "uniform",
        "weight of a client: 1, or its number of training samples",
        choices=["uniform", "samples"],
    )
    gradient_bound: float = option(
        1.0, "ffgb-c: G, bound on every entry of a gradient", low=0, open_low=True
    )
    gamma: float = option(0.5, "ffgb-c: edge of the oracle", low=0, high=1, open_low=True)
    lipschitz: float = option(
        0.0, "ffgb-l: L; 0: the smallest value that fits a client's samples", low=0
    )
    at_once: int = option(
        0,
        "ffgb-l: rounds that the server makes with the learners of one message; 0: round by round",
        low=0,
    )
    learner: str = option(
        "auto",
        "weak learner; net: model.name; auto: trees for tables, net otherwise",
        choices=["auto", "net", "trees", "ridge"],
    )
    oracle: str = option(
        "auto",
        "fit of nets; auto: l2 for ffgb, linf for ffgb-c, lipschitz for ffgb-l",
        choices=["auto", "l2", "linf", "lipschitz"],
    )
    fit_steps: int = option(200, "nets: Adam's steps", low=1)
    trees: int = option(
        1, "trees per learner, each fitted to the residual of the ones before", low=1
    )
    depth: int = option(3, "depth of a tree", low=1, high=12)
    min_leaf: int = option(
        5,
        "minimum rows per leaf; its value is their mean, so a small leaf exposes them",
        low=1,
    )

    def steps_a_round(self, samples: float) -> tuple[float, int]:
        """Return the number of steps of a client with ``samples`` samples in a round,
        and their batch size.
        """
        return float(self.local_steps * self.fit_steps), FitOptions.batch_size

    def check(self) -> None:
        """Reject mu = 0 for the two schedules that divide by it."""
        if self.schedule in ("homogeneous", "general") and not self.mu:
            raise ValueError(
                f"schedule = {self.schedule!r} divides by mu, which is 0: choose mu > 0, or "
                "schedule = 'decay'"
            )


class FFGB(FedAvg):
    """FFGB strategy; keyword arguments as in FedAvg. ``function``: the current
    ensemble.

    The model of a run is the arrays of the function (``Additive.to_arrays``): a run
    starts from such arrays if it gets them, otherwise from 0.
    """

    capabilities = Capabilities(replies="other", aggregation="single replies")

    def __init__(
        self,
        options: FFGBOptions | None = None,
        variant: str = "ffgb",
        **kwargs: Unpack[FlowerArguments],
    ) -> None:
        self.options = options or FFGBOptions()
        super().__init__(weights=self.options.weights, **kwargs)
        check_choice("variant", variant, VARIANTS)
        self.variant = variant
        o, lipschitz = self.options, variant == "ffgb-l"
        if o.at_once and not lipschitz:
            raise ValueError(
                f"at-once = {o.at_once}: only ffgb-l can make its rounds at once; set at-once = 0"
            )
        self.mu = 1.0 if lipschitz else o.mu
        self.schedule = o.schedule if o.schedule != "auto" else "general" if lipschitz else "decay"
        self.loss = "square" if lipschitz else o.loss
        # at f = 0 a step of 1 is a quarter of Newton's step
        self.eta_max = o.eta_max or (1.0 if o.learner == "trees" else 10.0)
        self.clip: float | None = None
        self.clip_residual: float | None = None
        if variant == "ffgb-c":
            self.clip, self.clip_residual = clip_bounds(o.gradient_bound, o.gamma)
        self.function = Additive(self.clip)
        # the blocks as arrays of the model, each converted once
        self._record: dict[str, Array] = {}
        self._holds: dict[ClientId, int] = {}  # the version of the values that a client caches
        # clients that did not answer the last evaluation: they may have lost their
        # values
        self._unscored: set[ClientId] = set()
        self._names: Mapping[int, ClientId] = {}
        self._learners_sent = 0
        self.models_sent: dict[str, int] = {}
        # name -> largest median length of the array in a round so far
        self._sizes: dict[str, float] = {}

    @property
    def finished(self) -> bool:
        """Whether all rounds have been made at once."""
        return bool(self.options.at_once and self.function.version)

    def etas(self, t: int) -> list[float]:
        """Return the step sizes of round t = 0, 1, ..."""
        o = self.options
        return step_sizes(self.schedule, t, o.local_steps, self.mu, o.eta_0, self.eta_max)

    # --- messages ---------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each sampled client the learners that it has not received yet, and the
        step sizes of the round.
        """
        self._open(arrays)
        nodes = self._sample(grid, server_round, MessageType.TRAIN)
        sent = FFGBTraining(
            variant=self.variant,
            lipschitz=self.options.lipschitz,
            etas=self.etas(self.function.version),
            mu=self.mu,
            residual=self.options.residual,
            clip_residual=self.clip_residual,
        )
        config.update({"server-round": server_round, **sent.to_config()})
        messages = self._blocks(config, nodes, grid, MessageType.TRAIN)
        self.models_sent = {"models-up": 0, "models-down": self._learners_sent}
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each client the learners that it has not received yet."""
        if self.fraction_evaluate == 0:
            return []
        self._open(arrays)
        config["server-round"] = server_round
        nodes = self._sample(grid, server_round, MessageType.EVALUATE)
        messages = self._blocks(config, nodes, grid, MessageType.EVALUATE)
        self._unscored = {self._names[node] for node in nodes}
        return messages

    def _blocks(
        self, config: ConfigRecord, nodes: Sequence[int], grid: Grid, kind: str
    ) -> list[Message]:
        """Return one message per node; nodes that hold the same version share its
        content.
        """
        self._names = clients_of(grid)
        by_base: dict[int, list[int]] = {}
        for node in nodes:
            lost = kind == MessageType.EVALUATE and self._names[node] in self._unscored
            held = 0 if lost else self._holds.get(self._names[node], 0)
            by_base.setdefault(min(held, self.function.version), []).append(node)
        messages, self._learners_sent = [], 0
        for base, group in sorted(by_base.items()):
            blocks = self.function.blocks[base:]
            arrays, learner_names = pack_blocks(blocks)
            facts = FunctionSent(
                base, self.function.version, self.loss, learner_names or None, self.clip
            ).to_config()
            record = to_record(
                [
                    "shrinks",
                    "sizes",
                    "coefficients",
                    *(f"learner.{name}" for name in learner_names),
                ],
                arrays,
            )
            messages += self._messages(record, ConfigRecord({**config, **facts}), group, kind)
            self._learners_sent += len(group) * sum(map(len, blocks))
        return messages

    # --- replies ----------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the learners of the round to the function."""
        opened: list[tuple[Message, Learners]] = []
        for reply in self.answered(replies):
            if learners := self._learners(reply, [group for _, group in opened]):
                opened.append((reply, learners))
        opened = self._of_usual_size(opened)
        if not opened:
            return None, None
        used, groups = [reply.content for reply, _ in opened], [group for _, group in opened]
        shares = [self._weight(content) for content in used]
        shrink, a = self._round()
        sign = 1.0 if self.variant == "ffgb-l" else -1.0
        coefficients = np.concatenate(
            [sign * share / sum(shares) * np.array(a) for share in shares]
        )
        self._append(Block(shrink, coefficients, stacked(groups)))
        metrics = self.train_metrics_aggr_fn(used, self.weighted_by_key)
        del metrics["holds"]
        self.models_sent["models-up"] = len(used) * self.options.local_steps
        return self._model(), MetricRecord({**metrics, "learners": len(self.function)})

    def _round(self) -> tuple[float, list[float]]:
        """Return the factor of f and the coefficients of a client's K learners, for one
        round or for all rounds made at once.
        """
        shrink, a = 1.0, [0.0] * self.options.local_steps
        for t in range(self.options.at_once) if self.options.at_once else [self.function.version]:
            c, steps = summed_steps(self.etas(t), self.mu)
            shrink, a = c * shrink, [c * old + new for old, new in zip(a, steps, strict=True)]
        return shrink, a

    def _learners(self, reply: Message, others: Sequence[Learners]) -> Learners | None:
        """Return the learners of a reply and record its client's version; ``None`` if
        the reply is skipped.
        """
        client = self._names[reply.metadata.src_node_id]
        holds = metrics_of(reply.content).get("holds", -1)
        if not isinstance(holds, int) or not 0 <= holds <= self.function.version:
            log(
                WARNING,
                "skipped client %s: it reports version %s of the function, but the latest is %d",
                client,
                holds,
                self.function.version,
            )
            return None
        self._holds[client] = holds
        if holds < self.function.version:
            log(
                WARNING,
                "skipped client %s: it has lost its values of the function; its next message "
                "holds the whole function",
                client,
            )
            return None
        listed = [
            record["learner-arrays"]
            for record in reply.content.config_records.values()
            if "learner-arrays" in record
        ]
        names: Any = listed[0] if listed and isinstance(listed[0], list) else []
        values = values_in(reply.content)
        learners: dict[str, NDArray[Any]] = dict(zip(names, values, strict=False))
        known = next((block.learners for block in [*self.function.blocks[-1:]] if len(block)), None)
        wanted = shapes(others[0] if others else known or learners)
        complete = len(names) == len(values) > 0 and {value.shape[:1] for value in values} == {
            (self.options.local_steps,)
        }
        if not complete or shapes(learners) != wanted:
            log(
                WARNING,
                "skipped client %s: its reply is not local-steps = %d learners with the same "
                "arrays as those of the others",
                client,
                self.options.local_steps,
            )
            return None
        return learners

    def _of_usual_size(
        self, opened: list[tuple[Message, Learners]]
    ) -> list[tuple[Message, Learners]]:
        """Return the replies without those of far larger arrays; see the module's
        docstring.
        """
        lengths = {
            name: np.array([np.linalg.norm(group[name].astype(np.float64)) for _, group in opened])
            for name, array in (opened[0][1].items() if opened else ())
            if array.dtype.kind == "f" and name not in PLACES
        }
        kept = np.ones(len(opened), bool)
        for name, found in lengths.items():
            self._sizes[name] = max(self._sizes.get(name, 0.0), float(np.median(found)))
            for place in np.flatnonzero(
                kept & (found > MOST * self._sizes[name]) & (self._sizes[name] > 0)
            ):
                kept[place] = False
                log(
                    WARNING,
                    "skipped client %s: %r of its learners has the length %.3g, of most clients "
                    "%.3g",
                    self._names[opened[place][0].metadata.src_node_id],
                    name,
                    found[place],
                    self._sizes[name],
                )
        return [one for one, keep in zip(opened, kept, strict=True) if keep]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics; record which clients answered."""
        valid = self.answered(replies)
        self._unscored -= {self._names[reply.metadata.src_node_id] for reply in valid}
        return super().aggregate_evaluate(server_round, valid)

    # --- the model and state ----------------------------------------------------------

    def _append(self, block: Block) -> None:
        self._record |= {
            name: Array(*fields(array))
            for name, array in named(self.function.version, block).items()
        }
        self.function.blocks.append(block)

    def _model(self) -> ArrayRecord:
        return ArrayRecord(
            {
                **{name: Array(*fields(array)) for name, array in self.function.head().items()},
                **self._record,
            }
        )

    def _open(self, arrays: ArrayRecord) -> None:
        """Read the function from the model if it differs from ``self.function``: at the
        start of a run, or when it is resumed.
        """
        rounds = arrays["shrinks"].shape[0] if "shrinks" in arrays else 0
        if rounds == self.function.version:
            return
        values: dict[str, NDArray[Any]] = (
            {name: read(array) for name, array in arrays.items()} if rounds else {}
        )
        self._holds = self._holds if rounds else {}
        blocks = Additive.from_arrays(values).blocks if rounds else []
        self.function, self._record = Additive(self.clip), {}
        for block in blocks:
            self._append(block)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return which version of the function's values each client caches, and the
        sizes of learners.
        """
        return {
            "clients": pack_ids(list(self._holds)),
            "versions": np.array(list(self._holds.values()), np.int64),
            **under("size.", {name: np.array(size) for name, size in self._sizes.items()}),
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._holds = dict(
            zip(unpack_ids(state["clients"]), state["versions"].tolist(), strict=True)
        )
        self._sizes = {name: float(size) for name, size in within("size.", state).items()}
