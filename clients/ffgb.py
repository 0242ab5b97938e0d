"""FFGB's client: local steps in function space, each with a weak learner fitted to the
functional gradient at the client's points.

The steps are ``algorithms.boosting.functional.boost``. As boosting libraries do, the
client stores the values of the server's function at its training and test points, (n,
outputs) float32. A message brings the learners that are new to it; only these are
evaluated.

Source: Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", AISTATS
2022, arXiv 2103.06972, Algorithm 2; for FFGB.C and FFGB.L Algorithms 3 and 4 of its
first version (2021, arXiv 2103.06972v1).
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import RecordDict
from flwr.client import NumPyClient

from fedapps.algorithms.boosting.additive import advance, unpack_blocks, zeros
from fedapps.algorithms.boosting.functional import (
    LOSSES,
    Plan,
    Values,
    boost,
    check_labels,
    coded,
    like,
    module_of,
)
from fedapps.algorithms.boosting.oracle import Learner, Oracle, Target
from fedapps.algorithms.common.averaging import Arrays
from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.contract.sent import FFGBTraining, FunctionSent, RoundFacts
from fedapps.clients.base.data import ArrayData, ClientData
from fedapps.clients.base.options import Config, TrainOptions
from fedapps.clients.base.scores import Scores, as_global, binary_scores
from fedapps.clients.base.store import MessageStore, Store

if TYPE_CHECKING:  # a client with trees has its samples as arrays, and does without PyTorch
    from fedapps.algorithms.boosting.lipschitz import LipschitzExtension
    from fedapps.algorithms.common.steps import Runner
    from fedapps.clients.base.evaluation import Objective


class LostValues(RuntimeError):
    """The stored values are missing or too old for the message's update."""

    def __init__(self, base: int) -> None:
        super().__init__(
            f"the values of version {base} of the function were lost: the next message of this "
            "kind brings the whole function"
        )


class FFGBClient(NumPyClient):
    """Client of FFGB, FFGB.C and FFGB.L.

    ``oracle`` fits the weak learners; ``outputs``: number of outputs of the function
    (1: binary classification). ``data``: tensors or, for an oracle that takes them,
    arrays. ``objective`` scores the function's values as a model's outputs, by default
    as those of a classifier; values in arrays are scored as logits of label 1. Raises
    ``ValueError`` for labels that this number of outputs cannot distinguish.
    """

    reads = (FunctionSent, FFGBTraining)

    def __init__(
        self,
        data: ClientData | ArrayData,
        oracle: Oracle,
        outputs: int,
        client_id: int | str = 0,
        store: Store | None = None,
        objective: "Objective | None" = None,
    ) -> None:
        check_labels(data.train.y, outputs)
        if isinstance(data, ArrayData) and outputs != 1:
            raise ValueError(
                f"{outputs} outputs: samples given as arrays are scored with one, the logit of "
                "label 1: give tensors"
            )
        self.data, self.oracle, self.outputs = data, oracle, outputs
        self.client_id = client_id
        self.store = store if store is not None else MessageStore(RecordDict())
        self.objective = objective

    @property
    def compiler(self) -> "Runner | None":
        """The runner that compiles the steps of the oracle's fits; only an oracle that
        takes steps has one.
        """
        compiler: Runner | None = self.oracle.compiler  # type: ignore[attr-defined]
        return compiler

    @compiler.setter
    def compiler(self, compiler: "Runner | None") -> None:
        self.oracle.compiler = compiler  # type: ignore[attr-defined]

    def fit(self, parameters: Arrays, config: Config) -> tuple[Arrays, int, dict[str, Any]]:
        """Return the round's learners; if the stored values were lost, only the metric
        ``holds`` = 0.
        """
        count = len(self.data.train)
        try:
            values = self.catch_up(parameters, config)
        except LostValues:
            return [], count, {"holds": 0}
        learners, errors = self.boost(values, config)
        stacks = {name: np.stack([learner[name] for learner in learners]) for name in learners[0]}
        # of f^t, on the training samples
        sent = FunctionSent.from_config(config)
        loss = float(LOSSES[sent.loss].mean(values, self.data.train.y))
        metrics = {
            "loss": loss,
            "oracle-error": float(np.mean(errors)),
            "holds": sent.version,
        }
        return list(stacks.values()), count, {**metrics, "learner-arrays": list(stacks)}

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Return loss, number of test samples and metrics of the function on them; does
        not change the stored values.
        """
        held, (_, kept) = self._kept(config, before=False)
        values, y = (
            self._advanced(held, kept, self.data.test.x, parameters, config),
            self.data.test.y,
        )
        scores = self._scores(values)
        # the outputs are not logits, so they have no calibration
        if FunctionSent.from_config(config).loss == "square":
            scores = {
                name: value
                for name, value in scores.items()
                if name not in ("ece", "mce", "group-sums")
            }
            scores["loss"] = float(LOSSES["square"].mean(values, y))
        return scores["loss"], len(y), {**scores, **as_global(scores)}

    def _scores(self, values: Values) -> Scores:
        data = self.data.test
        if isinstance(values, np.ndarray):
            groups = None if data.groups is None else np.asarray(data.groups)
            loss = float(LOSSES["cross-entropy"].mean(values, data.y))
            return binary_scores(values[:, 0].astype(np.float64), np.asarray(data.y), loss, groups)
        from torch import nn

        from fedapps.clients.base.data import Split
        from fedapps.clients.base.evaluation import CLASSIFICATION

        split = Split(values, data.y, data.groups)  # type: ignore[arg-type]
        return (self.objective or CLASSIFICATION).score(nn.Identity(), split)

    # --- the stored values ------------------------------------------------------------

    def catch_up(self, parameters: Arrays, config: Config) -> Values:
        """Update the stored values to the message's version; return those at the
        training points.
        """
        held, kept = self._kept(config, before=True)
        points = (self.data.train.x, self.data.test.x)
        current = [
            self._advanced(held, values, x, parameters, config)
            for values, x in zip(kept, points, strict=True)
        ]
        self.store.save(
            "values",
            [
                np.array([FunctionSent.from_config(config).version], np.int64),
                *(
                    np.asarray(values if isinstance(values, np.ndarray) else values.cpu())
                    for values in current
                ),
            ],
            config,
        )
        return current[0]

    def _advanced(
        self, held: int, values: Values, x: Values, parameters: Arrays, config: Config
    ) -> Values:
        """Return the values at x of the message's version, given those of version
        ``held``.
        """
        sent = FunctionSent.from_config(config)
        for block in unpack_blocks(parameters, sent.learner_arrays or [])[held - sent.base :]:
            values = advance(values, block, x, self.oracle.predict, sent.clip)
        return values

    def _kept(self, config: Config, before: bool) -> tuple[int, list[Values]]:
        """Return the stored version and its values at training and test points. Raises
        ``LostValues`` if they are too old.
        """
        parts, sent = (self.data.train, self.data.test), FunctionSent.from_config(config)
        (version, *arrays) = self.store.load("values", config, before) or [np.zeros(1, np.int64)]
        held = int(version[0])
        if arrays and [array.shape for array in arrays] != [
            (len(part), self.outputs) for part in parts
        ]:
            raise ValueError(
                f"client {self.client_id} has stored values of other samples: use another results "
                "folder"
            )
        if arrays and sent.base <= held <= sent.version:
            return held, [like(array, self.data.train.x) for array in arrays]
        if sent.base:
            raise LostValues(sent.base)
        return 0, [zeros(part.x, self.outputs) for part in parts]

    # --- the local steps --------------------------------------------------------------

    def boost(self, values: Values, config: Config) -> tuple[list[Learner], list[float]]:
        """Run the round's steps from ``values`` (n, outputs) at the training points;
        return the learners and their relative errors.

        The relative error is ``||h - target|| / ||target||``; an oracle with edge gamma
        guarantees at most 1 - gamma.
        """
        x, y = self.data.train.x, self.data.train.y
        sent, facts = FFGBTraining.from_config(config), RoundFacts.from_config(config)
        function = FunctionSent.from_config(config)
        extension = self._extension(sent.lipschitz) if sent.variant == "ffgb-l" else None
        if hasattr(self.oracle, "compiled"):
            self.oracle.compiled(TrainOptions.from_config(config).compile == "on")
        loss, residual = LOSSES[function.loss], sent.residual
        # FFGB.L needs the same learners in every round: its random draws must not
        # depend on the round.
        seed, place = facts.seed, 0 if extension else facts.server_round
        norm = module_of(values).linalg.norm
        learners: list[Learner] = []
        errors: list[float] = []

        def fit(target: Values) -> tuple[Learner, Values]:
            function = (
                None
                if extension is None
                else Remaining(extension, self.oracle, learners if residual else [])
            )
            rng = generator(seed, f"learner {len(learners)}", self.client_id, place)
            learner = self.oracle.fit(x, Target(target, function), rng)
            outputs = self.oracle.predict(
                {name: like(array[None], x) for name, array in learner.items()}, x
            )[0]
            learners.append(learner)
            errors.append(float(norm(outputs - target)) / max(float(norm(target)), 1e-30))
            return learner, outputs

        plan = Plan(
            sent.etas,
            sent.mu,
            -1 if extension else 1,
            residual,
            function.clip,
            sent.clip_residual,
        )
        boost(
            values,
            lambda g: coded(y, self.outputs) if extension else loss.gradient(g, y),
            fit,
            plan,
        )
        return learners, errors

    def _extension(self, lipschitz: float) -> "LipschitzExtension":
        """Return u, the Lipschitz extension of the coded labels, which FFGB.L's
        learners approximate.
        """
        from fedapps.algorithms.boosting.lipschitz import LipschitzExtension, lipschitz_constant

        x: Any = self.data.train.x
        targets = coded(self.data.train.y, self.outputs)
        return LipschitzExtension(x, targets, lipschitz_constant(x, targets, lipschitz))


class Remaining:
    """``u + Delta^{k-1} = k u - h^1 - ... - h^{k-1}``: the target of FFGB.L's next
    learner as a function of the inputs.
    """

    def __init__(
        self, extension: "LipschitzExtension", oracle: Oracle, learners: list[Learner]
    ) -> None:
        self.extension, self.times = extension, len(learners) + 1
        from fedapps.algorithms.boosting.weak_learners import combined

        self.fitted = combined(oracle, list(learners)) if learners else None

    def __call__(self, x: Values) -> Values:
        """Return the values (n, outputs) at x (n, ...)."""
        values = self.times * self.extension(x)
        return values - self.fitted(x) if self.fitted else values
