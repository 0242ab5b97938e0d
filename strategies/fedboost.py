"""FedBoost: learns the weights of an ensemble of pre-trained predictors while sending
only a few predictors per round.

Source: Hamer, Mohri, Suresh, "FedBoost: Communication-Efficient Algorithms for
Federated Learning", ICML 2020, Figure 1, with the corrections listed in
``docs/fedboost.md``. The server holds the weights alpha on the simplex and the
predictor library. Round t: draw predictors H_t (each with probability gamma_k), send
them with the weights ``alpha_k / gamma_k``, collect the gradients of the clients'
losses at these weights, and make one mirror descent step. The output is the running
average of alpha.

Beyond the paper, and the default: under the log loss the gradient is centred, that is,
taken with the weights of the sampled predictors divided by their sum. All entries of
the paper's gradient are negative, so a predictor gains weight merely by being drawn.

Contract. A training message holds the arrays ``ids`` (h,), ``alpha`` (h,) and the
predictors, stacked along their first axis and named in ``predictor-arrays`` (tables
that are mostly zero are packed by ``algorithms.ensembles.sparse_tables``); its size
does not grow with the size q of the library. The reply holds two arrays of length h,
the gradient with respect to the sent weights and the mean squared norms of the
predictors' outputs, and the metrics ``num-examples``, ``loss`` and ``draw`` (as
received). Clients are stateless, unless the configuration holds ``cache``: then a
client keeps that many predictors, by their ``hashes``, and only ``new`` ones are sent.
If it holds ``phase`` = "train-predictor", the reply holds one predictor instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING
from types import MappingProxyType
from typing import Any, Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedapps.algorithms.common.mirror import MIRRORS
from fedapps.algorithms.common.options import Options, check_choice, option
from fedapps.algorithms.common.prefixes import under, within
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.sent import CollectingSent, DrawSent, MixturesSent, PredictorsSent
from fedapps.algorithms.ensembles.mixture_losses import (
    bias_correction,
    centred,
    chain_rule,
    draw_exact,
    draw_independent,
    gradient_fault,
    inclusion,
    sampled_weights,
)
from fedapps.algorithms.ensembles.predictor_cache import remember
from fedapps.algorithms.ensembles.sparse_tables import compact
from fedapps.strategies.base.capabilities import Capabilities, Named
from fedapps.strategies.base.messages import metrics_of, to_record, values_in
from fedapps.strategies.families.predictor_replies import (
    PredictorLibrary,
    Reply,
    alike_predictors,
    best_for_all,
)
from fedapps.strategies.fedavg import FedAvg, FedAvgArguments

Floats = NDArray[np.float64]
DEFAULT_BUDGET = 32


@dataclass(frozen=True)
class FedBoostOptions(Options):
    """Options of FedBoost."""

    PRINTED = MappingProxyType({"centred": False})

    budget: int = option(
        0,
        "C, expected number of predictors sent per round; 0: 32, or all where there are fewer",
        low=0,
    )
    sampling: str = option(
        "weighted",
        "how predictors are drawn; none: all are sent",
        choices=["none", "uniform", "weighted"],
    )
    draw: str = option(
        "independent",
        "draw each predictor independently, as in the paper, or exactly C predictors",
        choices=["independent", "exact"],
    )
    mirror: str = option("entropy", "map of the mirror descent", choices=MIRRORS)
    gradient: str = option(
        "sampled",
        "with respect to the sent weights (Figure 1), or by the chain rule with the corrected (10)",
        choices=["sampled", "unbiased"],
    )
    centred: bool = option(
        True,
        "log loss: gradient with the drawn weights scaled to sum to 1; false: as in the paper",
    )
    step: float = option(0.01, "eta, step of the mirror descent", low=0, open_low=True)
    repeats: int = option(1, "messages with fresh draws before one step (Corollary 2)", low=1)
    cache: int = option(
        0,
        "predictors that a client keeps, so that they need not be sent again; needs repeats = 1",
        low=0,
    )
    library: str = option(
        "task",
        '"task", a folder of safetensors files, or "clients": each trains a predictor in round 1',
    )
    public_library: bool = option(
        False,
        "a folder's predictors were made without the clients' data, as differential privacy needs",
    )

    def check(self) -> None:
        """Reject a cache with several messages per round."""
        if self.cache and self.repeats > 1:
            raise ValueError(
                f"cache = {self.cache} needs repeats = 1, not {self.repeats}: set repeats = 1 or "
                "cache = 0"
            )


class FedBoost(FedAvg):
    """FedBoost strategy.

    ``library``: the predictors, or a function that builds a library from arrays stacked
    along the first axis; in that case the clients train the predictors in the first
    round. ``seed``: of the predictor sampling. ``loss``: the clients' loss, "log" or
    "squared"; only the gradient of the log loss is centred. Keyword arguments as in
    FedAvg.
    """

    @property
    def capabilities(self) -> Capabilities:
        """A training reply is an update, except while predictors are collected."""
        return Capabilities(
            "other" if self.collecting else "update", "single replies", later="update"
        )

    # --- privacy: the update is the gradient with respect to alpha --------------------

    def privacy_fault(self) -> str:
        """Return why noise in the sum of the gradients would not make the run private,
        or "".
        """
        o = self.options
        from_clients = self.collecting or getattr(self.library, "from_clients", True)
        if o.gradient == "sampled" and o.repeats == 1 and not o.cache and not from_clients:
            return ""
        return (
            "FedBoost is private with gradient = 'sampled', repeats = 1, cache = 0 and predictors "
            "made without the clients' data (for a folder: set public-library = true); here "
            f"gradient = {o.gradient!r}, repeats = {o.repeats}, cache = {o.cache}, predictors made "
            f"{'from' if from_clients else 'without'} the clients' data"
        )

    def zero_update(self, sent: Named) -> Named:
        """Return a zero gradient."""
        return {"0": np.zeros_like(sent["alpha"])}

    def update_of(self, arrays: Sequence[NDArray[Any]], sent: Named) -> Named:
        """Return the gradient, which is the first array of a reply."""
        return dict(zip("0", arrays, strict=False))

    def reply_with(self, update: Named) -> Named:
        """Return the arrays of a reply: the gradient, and zero norms. With noise, it
        need not be a gradient of any samples.
        """
        self._noisy = True
        return {**update, "1": np.zeros_like(update["0"])}

    def __init__(
        self,
        library: PredictorLibrary | Callable[[Mapping[str, NDArray[Any]]], PredictorLibrary],
        options: FedBoostOptions | None = None,
        seed: int = 0,
        loss: str = "log",
        **kwargs: Unpack[FedAvgArguments],
    ) -> None:
        super().__init__(**kwargs)
        check_choice("loss", loss, ["log", "squared"])
        self.options = options or FedBoostOptions()
        self.normalises = self.options.centred and loss == "log"
        self.seed, self.loss = seed, loss
        self.steps = 0
        self._noisy = False  # whether the replies are noisy means
        self.own_measures: Mapping[str, float] = {}
        self._draws: list[tuple[NDArray[np.int64], Floats]] = []
        self._expected: dict[int, list[str]] = {}
        # hashes in each node's cache, least recently used first
        self._held: dict[int, list[str]] = {}
        self._collected: dict[str, NDArray[Any]] = {}
        self.alpha: Floats = np.zeros(0)
        self.average: Floats = np.zeros(0)
        self._make: Callable[[Mapping[str, NDArray[Any]]], PredictorLibrary] | None = None
        if callable(library):
            self._make = library
        else:
            self._open_library(library)

    def _open_library(self, library: PredictorLibrary) -> None:
        budget = self.options.budget or min(DEFAULT_BUDGET, library.q)
        if budget > library.q and self._make is None:
            raise ValueError(
                f"budget = {budget}, but the library holds {library.q} predictors: choose "
                f"1 to {library.q}"
            )
        # the clients sent fewer predictors than expected: a failing client must not end
        # the run
        if budget > library.q:
            log(
                WARNING,
                "budget = %d, but the clients sent only %d predictors: every message holds all of "
                "them",
                budget,
                library.q,
            )
        self.budget = min(budget, library.q)
        if (
            self.normalises
            and self.options.draw == "exact"
            and self.budget == 1 < library.q
            and self.options.sampling != "none"
        ):
            raise ValueError(
                "budget = 1, draw = exact, centred = true: the centred gradient compares "
                "predictors, so it needs two: choose a budget of 2 or more"
            )
        self.library = library
        self.alpha = np.full(library.q, 1 / library.q)
        self.average = self.alpha.copy()

    @property
    def collecting(self) -> bool:
        """Whether the clients have yet to send the predictors."""
        return not len(self.alpha)

    # --- a round ----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw predictors (``repeats`` times) and send them to the sampled clients."""
        nodes = self._sample(grid, server_round, MessageType.TRAIN)
        self.meet(grid)
        if self.collecting:
            return self._messages(
                ArrayRecord(),
                ConfigRecord({**config, **CollectingSent("train-predictor").to_config()}),
                nodes,
                MessageType.TRAIN,
            )
        gamma = inclusion(self.alpha, self.budget, self.options.sampling)
        rng = generator(self.seed, "predictors", server_round=server_round)
        self._draws, messages = [], []
        for draw in range(self.options.repeats):
            ids = (
                draw_independent(gamma, rng)
                if self.options.draw == "independent"
                else draw_exact(gamma, self.budget, rng)
            )
            self._draws.append((ids, gamma))
            sent = [ids, sampled_weights(self.alpha, ids, gamma)]
            if self.options.cache:
                messages += self._to_caches(config, nodes, sent)
            else:
                messages += self._with_predictors(
                    ConfigRecord({**config, **DrawSent(draw).to_config()}), nodes, sent, ids
                )
        return messages

    def _with_predictors(
        self,
        config: ConfigRecord,
        nodes: Sequence[int],
        sent: list[NDArray[Any]],
        ids: NDArray[np.int64],
    ) -> list[Message]:
        predictors = compact(self.library.take(ids))
        config.update(PredictorsSent(list(predictors)).to_config())
        record = to_record(["ids", "alpha", *predictors], [*sent, *predictors.values()])
        return self._messages(record, config, nodes, MessageType.TRAIN)

    def _to_caches(
        self, config: ConfigRecord, nodes: Sequence[int], sent: list[NDArray[Any]]
    ) -> list[Message]:
        """Send each client only the predictors missing from its cache; a client that
        failed last time starts with an empty cache.
        """
        ids, messages = sent[0], []
        hashes = [self.library.hash_of(int(k)) for k in ids]
        for node in nodes:
            held = self._held.pop(node, [])
            new = np.array([i for i, key in enumerate(hashes) if key not in held], dtype=np.int64)
            drawn = DrawSent(0, self.options.cache, len(held), hashes, new.tolist())
            messages += self._with_predictors(
                ConfigRecord({**config, **drawn.to_config()}), [node], sent, ids[new]
            )
            self._expected[node] = remember(held, hashes, self.options.cache)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the gradients and make one mirror descent step; skip replies whose
        arrays do not match the draw.
        """
        if self.collecting:
            return self._collect([reply.content for reply in self.answered(replies)])
        used = [opened for reply in self.answered(replies) if (opened := self._open(reply))]
        if not used:
            return None, None
        for reply in used:
            if reply.node in self._expected:
                self._held[reply.node] = self._expected.pop(reply.node)
        if self.normalises:
            used = [self._normalised(reply) for reply in used]
        delta = np.zeros(self.library.q)
        for reply, share in zip(used, self.shares(used), strict=True):
            ids, gamma = self._draws[reply.draw]
            gradient = reply.gradient
            if self.options.gradient == "unbiased":
                gradient = chain_rule(gradient, gamma[ids]) - bias_correction(
                    self.alpha[ids], reply.norms, gamma[ids]
                )
            delta[ids] += share * gradient
        self.steps += 1
        # averages alpha_1 to alpha_T: alpha before this round's step
        self.average += (self.alpha - self.average) / self.steps
        self.alpha = MIRRORS[self.options.mirror](self.alpha, delta, self.options.step)
        return self.model(), self.train_metrics_aggr_fn(
            [reply.content for reply in used], self.weighted_by_key
        )

    def _normalised(self, reply: Reply) -> Reply:
        """Return the reply with its gradient and log loss for weights divided by their
        sum.
        """
        ids, gamma = self._draws[reply.draw]
        sent = sampled_weights(self.alpha, ids, gamma)
        if not sent.any():  # all weights are 0: no distribution, and no log loss
            return reply
        return replace(
            reply,
            gradient=centred(reply.gradient, sent),
            loss=reply.loss + float(np.log(sent.sum())),
        )

    def _collect(
        self, contents: Sequence[RecordDict]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Build the library from the clients' predictors; skip those whose shapes or
        types differ from most.
        """
        rows = alike_predictors(contents)
        if not rows or self._make is None:
            return None, None
        self._collected = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        self._open_library(self._make(self._collected))
        return self.model(), self.train_metrics_aggr_fn(list(contents), self.weighted_by_key)

    def _open(self, message: Message) -> Reply | None:
        metrics, node = metrics_of(message.content), message.metadata.src_node_id
        values = values_in(message.content)
        draw, loss = metrics.get("draw", 0), metrics.get("loss")
        drawn = type(draw) is int and 0 <= draw < len(self._draws)
        fits = (
            drawn
            and [(v.shape, v.dtype.kind) for v in values] == [(self._draws[draw][0].shape, "f")] * 2
        )
        if not fits or not isinstance(loss, int | float):
            log(
                WARNING,
                "skipped node %d: its loss is missing, or its gradient does not match the "
                "predictors that it received",
                node,
            )
            return None
        gradient, norms = (v.astype(np.float64) for v in values)
        ids, gamma = self._draws[draw]
        sent = sampled_weights(self.alpha, ids, gamma)
        if not self._noisy and (fault := gradient_fault(gradient, sent, self.loss)):
            log(WARNING, "skipped node %d: %s", node, fault)
            return None
        return Reply(
            node,
            draw,
            gradient,
            norms,
            float(loss),
            float(metrics[self.weighted_by_key]),
            message.content,
        )

    def shares(self, replies: Sequence[Reply]) -> list[float]:
        """Return the weight of each reply's gradient: m_j / m, over all draws."""
        total = sum(reply.num_examples for reply in replies)
        return [reply.num_examples / total for reply in replies]

    def meet(self, grid: Grid) -> None:
        """Update the list of clients (AFLBoost weights them); FedBoost needs none."""

    def model(self) -> ArrayRecord:
        """Return the output of the method, alpha^A (the running average), and the
        current alpha.
        """
        return to_record(["alpha", "alpha-last"], [self.average, self.alpha])

    # --- evaluation: always at the full alpha -----------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the ensemble: for densities, its mixture and the uniform one as single
        predictors; else all predictors.
        """
        if self.fraction_evaluate == 0 or self.collecting:
            return []
        nodes = self._sample(grid, server_round, MessageType.EVALUATE)
        uniform = np.full(self.library.q, 1 / self.library.q)
        mixed, even = self.library.mixture(self.average), self.library.mixture(uniform)
        if mixed is not None and even is not None:
            predictors = {name: np.stack([mixed[name], even[name]]) for name in mixed}
            alpha: Floats = np.array([1.0, 0.0])
        else:
            predictors, alpha = dict(self.library.take(np.arange(self.library.q))), self.average
        extra = {
            **config,
            **PredictorsSent(list(predictors)).to_config(),
            **MixturesSent(mixed is not None).to_config(),
        }
        record = to_record(["alpha", *predictors], [alpha, *predictors.values()])
        return self._messages(record, ConfigRecord(extra), nodes, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics; add the accuracy of the one predictor that fits all
        clients' training samples best.
        """
        valid = self.answered(replies)
        self.own_measures = best_for_all(
            [metrics_of(reply.content) for reply in valid], self.weighted_by_key
        )
        metrics = super().aggregate_evaluate(server_round, valid)
        return metrics and MetricRecord({**metrics, **self.own_measures})

    # --- state ------------------------------------------------------------------------

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return alpha, its running average, the number of steps and the predictors
        that clients have sent.
        """
        return {
            "alpha": self.alpha,
            "average": self.average,
            "steps": np.array(self.steps),
            **under("library.", self._collected),
        }

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._collected = within("library.", state)
        if self._collected and self._make:
            self._open_library(self._make(self._collected))
        self.alpha, self.average, self.steps = (
            state["alpha"],
            state["average"].copy(),
            int(state["steps"]),
        )
