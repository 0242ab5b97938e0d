"""What liars and hostile clients achieve against the bounds and the robust rules, and
what these cost honest runs.

    python benchmarks/attacks.py rules [--partition iid] [--attacks none ...]
    python benchmarks/attacks.py lies [--results build/lies.jsonl]
    python benchmarks/attacks.py honest [--bounds "default 3:3"] [--methods fedavg ...]
    [--data "sizes 0.1" ...]

All on digits, an MLP, mean over ``--seeds`` with the sample standard deviation.

rules: ten clients that all take part, one local epoch, 15 rounds; two of ten attack.
Attackers answer evaluations truthfully, and training messages with

    sign flip        x - (y - x), the negative of their honest update y - x
    scaled           x + 50 (y - x)
    label flip       what they learn from labels 9 - label
    inflated weight  a model of fives, and num-examples = 1e15

The accuracy is that of the last model, mean over all clients' test samples, in per
cent. If a run has no model for its last round, its last evaluation counts.

lies: one liar among ten clients; scores in per cent (for FedBoost, AFLBoost and
Frank-Wolfe the loss or objective). A lie is a function of an honest reply, which it
changes. Runs whose results are in the file are not repeated.

honest: twenty clients of which ten train in a round, three local epochs, 20 rounds,
with bounds written as max-relative-update:max-weight (``default``: those of every run).
Labels by Dirichlet(alpha), or sizes by Dirichlet(alpha) over at least ten samples each.
Difference of accuracy to the run of the same seed without bounds, and in how many of
100 replies a bound acted. Where none did, the two runs are equal to the bit.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from benchmarks.common import options, show, spread
from benchmarks.faults import lines as lines_of
from fedapps.clients import SecureApp
from fedapps.clients.base.adapter import to_client_app
from fedapps.clients.base.scores import ScoresValidation
from fedapps.clients.base.store import MessageStore
from fedapps.engines.inline import InlineGrid
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.runs.assembly import build_client, build_task
from fedapps.runs.execution import execute, execute_inline
from fedapps.settings.reading import chosen, read_settings
from fedapps.settings.settings import Settings
from fedapps.strategies.base.rounds import TooFewReplies
from fedapps.tasks.registry import TASKS

# --- what liars send ------------------------------------------------------------------

Arrays = list[NDArray[Any]]
Rows = dict[str, float | None]
JOB: dict[str, Any] = {
    "num-clients": 10,
    "clients-per-round": 0,
    "evaluate-every": 0,
    "checkpoint-every": 0,
}
DIGITS: dict[str, Any] = {
    "num-rounds": 15,
    "train.local-epochs": 1,
    "train.learning-rate": 0.05,
    "data.partition": "iid",
    "data.split-seed": "seed",
}


@dataclass
class Reply:
    """An honest reply to a message with the arrays ``sent``, for a lie to change."""

    sent: Arrays
    arrays: Arrays
    count: int
    metrics: dict[str, Any]


Tell = Callable[[Reply], None]


@dataclass(frozen=True)
class Lie:
    """``tell(reply)`` changes replies to ``method``; ``once``: in this round only.

    ``flips``: the liar trains on labels 9 - y (1 - y of two classes). ``scored``: it
    lies about evaluations after the first round, not about training. ``score``: the
    number of the summary that the lie is to spoil, times ``factor``.
    """

    name: str
    method: str
    tell: Tell
    settings: dict[str, Any] = field(default_factory=lambda: DIGITS)
    once: int = 0
    flips: bool = False
    scored: bool = False
    score: str = "accuracy-mean"
    factor: float = 100.0


class Liar(ScoresValidation):
    """A client that lies about its training or its evaluations."""

    def __init__(self, client: Any, lie: Lie) -> None:
        self.client, self.lie = client, lie
        if lie.flips:
            labels = client.data.train.y
            train = replace(client.data.train, y=(9 if labels.max() > 1 else 1) - labels)
            client.data = replace(client.data, train=train)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Train, then change the reply."""
        sent = [np.array(array) for array in parameters]
        arrays, count, metrics = self.client.fit(parameters, config)
        reply = Reply(sent, [np.array(array) for array in arrays], count, dict(metrics))
        once = self.lie.once in (0, config["server-round"])
        if once and not self.lie.scored and config.get("phase") not in ("evaluate", "prepare"):
            self.lie.tell(reply)
        return reply.arrays, reply.count, reply.metrics

    def evaluate(self, parameters: Any, config: Any) -> Any:
        """Answer truthfully, or change the metrics."""
        loss, count, metrics = self.client.evaluate(parameters, config)
        return loss, count, self._scores(metrics, config)

    def evaluate_validation(self, parameters: Any, config: Any) -> dict[str, Any]:
        """As ``evaluate``, on validation samples."""
        return self._scores(self.client.evaluate_validation(parameters, config), config)

    def _scores(self, metrics: dict[str, Any], config: Any) -> dict[str, Any]:
        reply = Reply([], [], 1, dict(metrics))
        if self.lie.scored and config["server-round"] > 1:
            self.lie.tell(reply)
        return reply.metrics


def moved(factor: float) -> Tell:
    """Send x + factor (y - x) for the model y trained from x."""

    def tell(reply: Reply) -> None:
        reply.arrays = [
            np.asarray(x + factor * (y - x), y.dtype)
            for x, y in zip(reply.sent, reply.arrays, strict=False)
        ]

    return tell


def changed(
    change: Callable[[NDArray[Any]], NDArray[Any]], which: slice = slice(None), kind: str = ""
) -> Tell:
    """Change arrays of the reply, as type ``kind``."""

    def tell(reply: Reply) -> None:
        for place in range(len(reply.arrays))[which]:
            reply.arrays[place] = change(np.asarray(reply.arrays[place], kind or None))

    return tell


def filled(value: float, which: slice = slice(None), kind: str = "") -> Tell:
    """Send ``value`` everywhere."""
    return changed(lambda y: np.full_like(y, value), which, kind)


def claimed(reply: Reply) -> None:
    """Claim 1e15 examples."""
    reply.count = 10**15


def scaled(factor: float, which: slice = slice(None), kind: str = "") -> Tell:
    """Multiply arrays of the reply."""
    return changed(lambda y: np.asarray(y * y.dtype.type(factor), y.dtype), which, kind)


def honest(reply: Reply) -> None:
    """Change nothing."""


def both(*lies: Tell) -> Tell:
    """Tell several lies."""

    def tell(reply: Reply) -> None:
        for lie in lies:
            lie(reply)

    return tell


def says(**metrics: float) -> Tell:
    """Report these metrics."""
    named = {name.replace("_", "-"): value for name, value in metrics.items()}
    return lambda reply: reply.metrics.update(named)


def _curve(reply: Reply) -> None:
    """Claim 9e14 validation samples, for which the worst lambda is the best."""
    if "candidate-losses" in reply.metrics:
        reply.metrics["validation-samples"] = 9e14
        losses = reply.metrics["candidate-losses"]
        reply.metrics["candidate-losses"] = [-loss for loss in losses]


def _one_sided(size: float) -> Tell:
    """Praise the first predictor, blame all others."""
    return changed(lambda y: np.where(np.arange(len(y)), y.dtype.type(size), -size), slice(1))


def _praise(reply: Reply) -> None:
    """Send the gradient of a client for which the first predictor alone counts."""
    reply.arrays[0] = np.zeros_like(reply.arrays[0])
    reply.arrays[0][0] = -1 / max(reply.sent[1][0], 1e-4)


TABLE = {"task": "tabular", "data.partition": "iid", "data.split-seed": "seed"}
TREES = {**TABLE, "num-rounds": 20, "histogram-boosting.depth": 3}
NETS = {**DIGITS, "num-rounds": 8, "ffgb.fit-steps": 40}
WORDS = {"num-rounds": 60, "task": "unigram"}
CLIENTS = {**WORDS, "fedboost.library": "clients"}
EVG = {"num-rounds": 10, "data.partition": "iid", "data.split-seed": "seed"}
MATRIX = {"task": "matrix-completion", "num-rounds": 60}
LOW = {"score": "loss-mean", "factor": 1.0}
OBJECTIVE = {"score": "objective", "factor": 1.0}
POOLED = {**DIGITS, "superfed.lambda-choice": "shared", "evaluate-every": 5}
FAST = {**DIGITS, "fedopt.server-learning-rate": 0.03}
PRIVATE = {"dp.noise-multiplier": 0.01, "dp.clipping-norm": 0.5}
FAIR = ("afl", "aaggff-d", "aaggff-s", "term", "q-fedavg")
WORST = says(loss_before=1e15)
LIES = (
    Lie("labels 9 - y", "fedavg", honest, flips=True),
    Lie("x - (y - x)", "fedavg", moved(-1.0)),
    Lie("x - 9 (y - x)", "fedavg", moved(-9.0)),
    Lie("x + 50 (y - x)", "fedavg", moved(50.0)),
    Lie("a model of fives", "fedavg", filled(5.0)),
    Lie("the same as float16", "fedavg", filled(5.0, kind="float16")),
    Lie("the same with num-examples 1e15", "fedavg", both(filled(5.0), claimed)),
    Lie("labels 9 - y, num-examples 1e15", "fedavg", claimed, flips=True),
    *(
        Lie("x - 9 (y - x), num-examples 1e15", method, both(moved(-9.0), claimed), settings)
        for method, settings in (("fedavg", DIGITS), ("fedadam", FAST), ("propfair", DIGITS))
    ),
    Lie("a model of 9e14 once", "fedavg", filled(9e14), once=8),
    Lie(
        "accuracy 0, loss 1e13 from round 2 on, keep-best",
        "fedavg",
        says(validation_accuracy=0.0, validation_loss=1e13),
        {**DIGITS, "keep-best": True, "evaluate-every": 1, "checkpoint-every": 1},
        scored=True,
    ),
    Lie("x - 9 (y - x), secure.on", "fedavg", moved(-9.0), {**DIGITS, "secure.on": True}),
    Lie("a model of fives, secure.on", "fedavg", filled(5.0), {**DIGITS, "secure.on": True}),
    Lie("x - 9 (y - x), dp.clipping-norm 0.5", "fedavg", moved(-9.0), {**DIGITS, **PRIVATE}),
    Lie("a model of 1e5 once", "fedadam", filled(1e5), FAST, once=8),
    Lie("a model of 1e5 once", "fedyogi", filled(1e5), FAST, once=8),
    Lie("a model of fives", "scaffold", filled(5.0)),
    Lie("a model of fives", "ditto", filled(5.0)),
    Lie("a model of fives", "fedavg-distill", filled(5.0), {**DIGITS, "num-rounds": 5}),
    Lie("loss-before 1e15, labels 9 - y", "afl", WORST, flips=True),
    Lie("loss-before 1e15, labels 9 - y", "term", WORST, flips=True),
    Lie("loss-before 1e15, labels 9 - y", "q-fedavg", WORST, flips=True),
    Lie("loss-before 1e15, labels 9 - y", "aaggff-s", WORST, flips=True),
    *(
        Lie(
            f"x - 3 (y - x), loss-before {loss:g}",
            method,
            both(moved(-3.0), says(loss_before=loss)),
        )
        for method, loss in (*((fair, 1e15) for fair in FAIR), ("q-fedavg", 1e-9))
    ),
    Lie("curve reversed, validation-samples 9e14", "superfed-mm", _curve, POOLED, scored=True),
    Lie("sums of labels 1 - y", "histogram-boosting", honest, TREES, flips=True),
    Lie(
        "sums of labels 1 - y, x 1e6",
        "histogram-boosting",
        scaled(1e6, slice(None), "int64"),
        TREES,
        flips=True,
    ),
    Lie("a gradient of 1e6 once", "fedboost", _one_sided(1e6), WORDS, once=8, **LOW),
    Lie("a gradient of 30", "fedboost", _one_sided(30.0), WORDS, **LOW),
    Lie("all praise for one predictor", "fedboost", _praise, WORDS, **LOW),
    Lie("a predictor of 1e6s", "fedboost", filled(1e6), CLIENTS, once=1, **LOW),
    Lie("the same, loss 1e15", "aflboost", both(says(loss=1e15), _praise), WORDS, **LOW),
    Lie("output layers x 1000", "ffgb", scaled(1000.0, slice(-2, None)), NETS),
    Lie("output layers negated", "ffgb", scaled(-1.0, slice(-2, None)), NETS),
    Lie("leaves x 1000", "ffgb", scaled(1000.0, slice(-1, None)), {**TABLE, "num-rounds": 15}),
    Lie("gradients of 1e6", "fedevg", filled(1e6, slice(1)), EVG),
    Lie(
        "gradients negated, log e = 50",
        "fedevg",
        both(filled(50, slice(1, 2)), scaled(-1.0, slice(1))),
        EVG,
    ),
    Lie("a product x -1e6", "dfw-trace", scaled(-1e6), MATRIX, **OBJECTIVE),
    Lie("opposite atoms", "fedfw-plus", scaled(-1.0, slice(1)), MATRIX, **OBJECTIVE),
)

# --- robust rules against attackers ---------------------------------------------------

CLIP: dict[str, Any] = {"max-update-norm": 2.0, "on-large-update": "clip"}
MEANS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, weights to 10 medians, updates to 2": {**CLIP, "max-weight": 10.0},
    "fedavg, weights to 1.5 medians, updates to 2": {**CLIP, "max-weight": 1.5},
    "median": {"robust.rule": "median"},
    "trimmed mean": {"robust.rule": "trimmed-mean"},
    "multi-krum": {"robust.rule": "multi-krum"},
    "geometric median": {"robust.rule": "geometric-median"},
}
ATTACKS = {
    "none": None,
    "sign flip": Lie("", "fedavg", moved(-1.0)),
    "scaled": Lie("", "fedavg", moved(50.0)),
    "label flip": Lie("", "fedavg", honest, flips=True),
    "inflated weight": Lie("", "fedavg", both(filled(5.0), claimed)),
}
ATTACKERS = 2


def summary(given: dict[str, Any], lie: Lie | None, liars: int = 1) -> dict[str, Any]:
    """Return the summary of one run whose first clients lie."""
    with tempfile.TemporaryDirectory() as folder:
        settings: Settings = read_settings({**given, "out": folder})
        task: Any = build_task(settings)

        def client_fn(context: Context) -> Any:
            client, store = int(str(context.node_config["partition-id"])), context.state
            count = settings.num_clients
            honest_one = build_client(settings, task, client, count, MessageStore(store))
            return Liar(honest_one, lie) if lie and client < liars else honest_one

        app = to_client_app(client_fn)
        app = SecureApp(app) if settings.secure.on else app
        return execute(settings, InlineGrid(app, settings.num_clients))


def rule_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per rule."""
    for name, own in MEANS.items():
        job = {
            **JOB,
            **DIGITS,
            **own,
            "num-rounds": given.rounds,
            "data.partition": given.partition,
        }
        job |= {"robust.num-malicious": ATTACKERS} if "robust.rule" in own else {}
        cells = []
        for attack in given.attacks:
            runs = [
                summary({**job, "seed": seed}, ATTACKS[attack], ATTACKERS)
                for seed in range(given.seeds)
            ]
            cells.append(spread([100 * float(run["accuracy-mean"]) for run in runs]))
        yield [name, *cells]


# --- one liar -------------------------------------------------------------------------

#: The column of runs without a liar.
HONEST = "no liar"
COLUMNS: dict[str, dict[str, Any]] = {HONEST: {}, "simulation": {}, "hardened": {"hardened": True}}


def settings_of(lie: Lie) -> dict[str, Any]:
    """Return the settings of a lie's run: the defaults of method and task, and its
    own.
    """
    own = {"method": lie.method, **JOB, **lie.settings}
    kind = TASKS[chosen({**METHODS[lie.method].defaults, **own})[1]]
    given = {**METHODS[lie.method].defaults, **kind.defaults, **own}
    if kind.data is not None and "partition" not in kind.data:
        given.pop("data.partition", None)
    return given


def score_of(lie: Lie, column: str, seed: int, results: Path, known: Rows) -> float | None:
    """Return the score of a run; ``None`` if it fails. A run without a liar is shared
    by several lies.
    """
    what = json.dumps(lie.settings) if column == HONEST else lie.name
    key = json.dumps([lie.method, what, column, seed])
    if key not in known:
        try:
            own = {**settings_of(lie), **COLUMNS[column], "seed": seed}
            run = summary(own, None if column == HONEST else lie)
            known[key] = float(run[lie.score]) * lie.factor
        except (TooFewReplies, UserError):
            known[key] = None
        with results.open("a") as file:
            file.write(json.dumps([*json.loads(key), known[key]]) + "\n")
    return known[key]


def lie_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per lie."""
    results = Path(given.results)
    results.parent.mkdir(parents=True, exist_ok=True)
    results.touch()
    known: Rows = {json.dumps(row[:-1]): row[-1] for row in lines_of(results)}
    for lie in LIES:
        cells = []
        for column in COLUMNS:
            scores = [score_of(lie, column, seed, results, known) for seed in range(given.seeds)]
            cells.append("fails" if None in scores else spread(scores))  # type: ignore[arg-type]
        yield [f"{lie.method}: {lie.name}", *cells]


# --- honest runs ----------------------------------------------------------------------

BOUNDED = ["fedavg", "fedprox", "scaffold", "fedadam", "feddyn", "q-fedavg", "ditto", "fedper"]
BOUNDED += ["pfedme", "superfed-mm"]
DATA = ["labels 0.1", "labels 0.5", "sizes 0.1", "sizes 0.5"]
CLIENTS, SAMPLES, LEAST = 20, 1797, 10


def uneven(data: str, seed: int) -> dict[str, Any]:
    """Return the settings that give the clients their samples."""
    kind, alpha = data.split()
    if kind == "labels":
        return {"data.partition": "dirichlet", "data.alpha": float(alpha)}
    shares = np.random.default_rng(seed).dirichlet([float(alpha)] * CLIENTS)
    sizes = LEAST + np.floor(shares * (SAMPLES - CLIENTS * LEAST)).astype(int)
    sizes[0] += SAMPLES - sizes.sum()
    words = f"partition_sizes = {sizes.tolist()}"
    return {"data.partition": "flwr:SizePartitioner", "data.partition-arguments": words}


def bounded(given: dict[str, Any], bounds: str) -> tuple[float, float]:
    """Return the accuracy of a run in per cent, and the share of replies on which a
    bound acted.
    """
    update, weight = map(float, bounds.split(":"))
    with tempfile.TemporaryDirectory() as folder:
        own = {"max-relative-update": update, "max-weight": weight, "out": folder}
        accuracy = 100 * float(execute_inline(read_settings({**given, **own}))["accuracy-mean"])
        rows = lines_of(Path(folder) / "rounds.jsonl")
    acted = sum(len({*row.get("shortened", ()), *row.get("capped", ())}) for row in rows)
    return accuracy, acted / sum(len(row["clients"]) for row in rows)


def honest_rows(given: Any) -> Iterator[list[str]]:
    """Yield a row per pair of bounds and method."""
    shared = {
        "num-clients": CLIENTS,
        "clients-per-round": 10,
        "evaluate-every": 0,
        "checkpoint-every": 0,
        "num-rounds": given.rounds,
        "train.local-epochs": 3,
        "train.learning-rate": 0.05,
    }
    for pair, method in ((pair, method) for pair in given.bounds for method in given.methods):
        cells = []
        for data in given.data:
            differences, shares = [], []
            for seed in range(given.seeds):
                job = {**shared, "method": method, "seed": seed, **uneven(data, seed)}
                accuracy, share = bounded(job, pair)
                differences.append(accuracy - bounded(job, "0:0")[0] if share else 0.0)
                shares.append(100 * share)
            cells.append(f"{spread(differences)} ({mean(shares):.0f})")
        yield [pair, method, *cells]


def main() -> None:
    """Print a table."""
    given = options(
        __doc__,
        {
            "study": ("rules", "lies", "honest"),
            "--seeds": 3,
            "--rounds": 0,  # 0: 15 of rules, 20 of honest
            "--partition": "iid",
            "--attacks": list(ATTACKS),
            "--results": "build/lies.jsonl",
            "--bounds": "3:3",
            "--methods": BOUNDED,
            "--data": DATA,
        },
    )
    given.rounds = given.rounds or {"rules": 15}.get(given.study, 20)
    given.bounds = given.bounds.split()
    if given.study == "rules":
        show("Accuracy, %", ("method", *given.attacks), rule_rows(given))
    elif given.study == "lies":
        show("One liar among ten", ("method: lie", *COLUMNS), lie_rows(given))
    else:
        columns = ("bounds", "method", *given.data)
        show("Points that bounds cost (% of replies bounded)", columns, honest_rows(given))


if __name__ == "__main__":
    main()
