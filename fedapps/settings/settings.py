"""All settings of a run: read once from Flower's flat ``key = value`` configuration,
checked, and frozen.

Keys are the kebab-case of field names, prefixed by the table: ``num-rounds``,
``data.alpha``, ``train.learning-rate``, ``superfed.nu``. Errors are reported in one
line that names the key, the value and what is allowed, before anything is downloaded or
started. Tasks and methods do not import this module: they get their own options and a
``RunContext``.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from algorithms.common.checks import nearest
from algorithms.common.fleet import FleetOptions
from algorithms.common.options import Options, kebab, option
from clients.base.options import TrainOptions
from fedapps.data.options import DataOptions, PublicOptions, SiteOptions, SyntheticOptions
from fedapps.errors import UserError
from fedapps.methods import METHODS, find_method
from fedapps.methods.method import Method
from fedapps.models.options import ModelOptions
from fedapps.settings.tables import (
    CONFIGURED,
    PARTS,
    built,
    defaults_of,
    flattened,
    option_tables,
    read_table,
    typed,
)
from fedapps.tasks.context import RunContext
from fedapps.tasks.registry import TASKS, find_task, task_name
from fedapps.toml_text import Value
from fedapps.tracking.names import names_of
from strategies import (
    FedAvgOptions,
    PrivacyOptions,
    RobustOptions,
    SecureOptions,
    UpdateBound,
    WarmStartOptions,
)
from strategies.base.relative_bounds import FEW, HARDENED
from strategies.base.timing import PaceOptions
from strategies.base.weights import HALF

# Largest weight, as a multiple of the round's median, with a bound on the update only.
MAX_WEIGHT = 10.0
#: The most rounds between evaluations unless the user chooses.
LONGEST_INTERVAL = 10
#: Names that other libraries use for our settings, by the last part of the key.
OTHER_NAMES = {
    "rounds": "num-rounds",
    "clients": "num-clients",
    "epochs": "train.local-epochs",
    "lr": "train.learning-rate",
    "batch": "train.batch-size",
    "bs": "train.batch-size",
    "dataset": "data.source",
    "output": "out",
    "patience": "early-stopping",
}
#: Settings of tasks that are now in the table ``data``, for all tasks.
MOVED = {
    f"{table}.{key}": f"data.{new}"
    for tables, keys in {
        ("tabular", "regression"): {
            "source": "source",
            "split": "split",
            "client": "natural-id",
            "label": "label",
            "features": "features",
            "categorical": "categorical",
            "drop": "drop",
            "drop-clients": "drop-clients",
            "test": "part",
            "validation": "validation",
            "standardise": "standardise",
        },
        ("text", "unigram", "matrix-completion", "qap"): {"source": "source", "split": "split"},
    }.items()
    for table in tables
    for key, new in keys.items()
}
#: Tasks whose test samples can have groups (``data.group``).
GROUPED = ("classification", "constrained-classification", "tabular")

#: Tables of files that `fedapps sweep` reads and `fedapps run` does not.
OF_SWEEPS = ("axis", "claim", "scale", "sweep", "when")


@dataclass(frozen=True)
class Settings(Options):
    """The settings of one run. ``options``: the table of the chosen method.
    ``problem``: the table of the task.

    ``base``: the settings of the method that the chosen one wraps, if any. ``halves``:
    the settings of the two methods that it composes, if any.
    """

    method: str = option("fedavg", "a method of `fedapps methods`, or your own as module:NAME")
    task: str = option(
        "digits",
        "learning task: of fedapps/tasks/registry.py, or your own as module:NAME; auto: the "
        "method's default",
    )
    seed: int = option(0, "seed of all random numbers", low=0)
    num_rounds: int = option(50, "rounds of training", low=1)
    num_clients: int = option(
        0,
        "clients to wait for; 0: as many as the nodes report (`fedapps run`: those of the data, "
        "or 20)",
        low=0,
    )
    clients_per_round: int = option(
        5,
        "clients sampled for training in each round; 0: all. With fewer clients than the default, "
        "all train",
        low=0,
    )
    num_new_clients: int = option(
        0,
        "clients, chosen by the seed, that never train; evaluations score the model that the "
        "method gives them",
        low=0,
    )
    new_epochs: int = option(
        5,
        "new clients are scored after 0, 1 and this many local epochs of the method's training",
        low=1,
    )
    evaluate_every: int = option(
        -1,
        "rounds between evaluations of all clients; 0: only after the last round; -1: a tenth of "
        "the rounds, at most 10",
        low=-1,
    )
    evaluate_train: bool = option(
        False,
        "evaluations also report the loss of the server's model on each client's training "
        "samples: `train-loss` in clients.csv",
    )
    class_counts: bool = option(
        True,
        "clients report counts of their test samples by actual and predicted class, or by time and "
        "group of risk; never with dp.noise-multiplier or secure.on",
    )
    keep_best: bool = option(
        False,
        "score and keep the round that is best on the clients' validation samples",
    )
    early_stopping: int = option(
        0,
        "end after this many evaluations without a better score on validation samples; 0: never",
        low=0,
    )
    checkpoint_every: int = option(10, "rounds between checkpoints; 0: none", low=0)
    until: int = option(
        0,
        "pause after this round, with a checkpoint to resume from; schedules still go by "
        "num-rounds; 0: never",
        low=0,
    )
    min_replies: int = option(1, "a round with fewer valid replies fails", low=1)
    max_failed_rounds: int = option(3, "the run ends after this many failed rounds in a row", low=1)
    timeout: float = option(600.0, "seconds that a phase waits for replies", low=0, open_low=True)
    max_update_norm: float = option(
        0.0, "largest norm of a client's update, over all its arrays; 0: no limit", low=0
    )
    on_large_update: str = option(
        "reject",
        "reject: ignore an update with a larger norm; clip: scale it down to the limit",
        choices=["reject", "clip"],
    )
    hardened: bool = option(
        False,
        "bounds for clients that are not trusted: max-relative-update and max-weight are 3 medians "
        "unless they are set, and the method's own; always on SuperNodes",
    )
    max_weight: float = option(
        -1.0,
        "largest weight of a client, as a multiple of the round's median; 0: no limit; -1: 3 if "
        "hardened, 10 with max-update-norm, else 3 times the round's 90 % quantile",
        low=-1,
    )
    max_relative_update: float = option(
        -1.0,
        "clients' updates are shortened to this multiple of the round's median norm; 0: no limit; "
        "-1: 3 if hardened, else 3 times the 90 % quantile, unless max-weight is set; never with "
        "dp.noise-multiplier or node-sums",
        low=-1,
    )
    max_array_value: float = option(
        1e6,
        "largest number in a client's arrays that are not the model (control variates, gradients, "
        "learners)",
        low=0,
        open_low=True,
    )
    max_metric_bytes: int = option(
        UpdateBound.max_metric_bytes, "most bytes of the metrics in a reply of a client", low=1000
    )
    client_store: str = option(
        "auto",
        "where clients keep their state: disk (needed to resume) or message (Flower's context); "
        "auto: disk if checkpoints are written",
        choices=["auto", "disk", "message"],
    )
    node_sums: bool = option(
        False,
        "a node with several clients sends the sum of their models; only for methods that "
        "average; results differ in the last bits",
    )
    audit_log: str = option(
        "auto",
        "audit.jsonl in the results folder: who took part, bytes, refusals; auto: on SuperNodes",
        choices=["auto", "on", "off"],
    )
    device: str = option("auto", "auto: the GPU if one is visible", choices=["auto", "cpu", "cuda"])
    out: str = option(
        "", 'results folder; "": ~/fedapps-results/RUN-ID (`fedapps run`: results/...)'
    )
    resume: bool = option(False, "continue from the last checkpoint in `out`")
    metrics_port: int = option(
        0,
        "port of a page with counters for Prometheus during the run; 0: none",
        low=0,
        high=65535,
    )
    metrics_host: str = option(
        "127.0.0.1", "address of that page; with another one, other machines can read it"
    )
    track: str = option(
        "",
        "also report to tensorboard, mlflow or wandb, several separated by commas; see "
        "docs/tracking.md",
    )
    track_to: str = option(
        "",
        "MLflow's address, TensorBoard's folder or wandb's project; \"\": the results folder "
        "(wandb: `fedapps`)",
    )
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=lambda: ModelOptions(name="mlp"))
    train: TrainOptions = field(default_factory=TrainOptions)
    public: PublicOptions = field(default_factory=PublicOptions)
    dp: PrivacyOptions = field(default_factory=PrivacyOptions)
    robust: RobustOptions = field(default_factory=RobustOptions)
    secure: SecureOptions = field(default_factory=SecureOptions)
    rounds: PaceOptions = field(default_factory=PaceOptions)
    time: FleetOptions = field(default_factory=FleetOptions)
    sites: SiteOptions = field(default_factory=SiteOptions)
    synthetic: SyntheticOptions = field(default_factory=SyntheticOptions)
    options: Any = field(default_factory=FedAvgOptions)
    base: "Settings | None" = None
    halves: tuple["Settings", ...] = ()
    problem: Any = None

    def check(self) -> None:
        """Check combinations of settings."""
        names_of(self.track)
        if self.client_store == "message" and self.checkpoint_every:
            raise ValueError(
                "client-store = 'message': a resumed run could not find the clients' state: set "
                "checkpoint-every = 0, or client-store = 'disk'"
            )
        if self.until and not self.checkpoint_every:
            raise ValueError(
                f"until = {self.until}: a paused run continues from a checkpoint: set "
                "checkpoint-every above 0"
            )
        if self.evaluate_train and self.dp.noise_multiplier:
            raise ValueError(
                "evaluate-train = true: losses on training samples are not private: set it to "
                "false, or dp.noise-multiplier = 0"
            )
        if self.sites.client and not self.num_clients:
            raise ValueError(
                f"num-clients = 0: with sites.client = {self.sites.client!r}, set it to the number "
                "of clients of all sites together"
            )
        if self.num_new_clients and 0 < self.num_clients <= self.num_new_clients:
            raise ValueError(
                f"num-new-clients = {self.num_new_clients}, but there are {self.num_clients} "
                f"clients: choose 0..{self.num_clients - 1}"
            )
        if 0 < self.clients_per_round < self.robust.least:
            raise ValueError(
                f"clients-per-round = {self.clients_per_round}, but robust.rule = "
                f"{self.robust.rule!r} with num-malicious = "
                f"{self.robust.num_malicious} needs {self.robust.least} replies: choose at least "
                "that many, or 0 for all"
            )

        if self.secure.on and self.node_sums:
            raise ValueError(
                "secure.on = true: with node-sums = true, the nodes send sums in the clear: set "
                "one of them to false"
            )
        if self.rounds.on or self.asynchronous:
            self._check_pace()
        if self.validates and not self.evaluate_every:
            raise ValueError(
                f"{self.validates}: evaluate-every = 0 has one evaluation only: set it to 1 or more"
            )
        if self.validates and self.dp.noise_multiplier:
            raise ValueError(
                f"{self.validates}: scores on validation samples are not private, as "
                "dp.noise-multiplier asks"
            )
        if self.keep_best and not self.keeps_clients_on_disk:
            raise ValueError(
                "keep-best = true: what clients store in the best round is kept on disk: set "
                'client-store = "disk"'
            )

    def _check_pace(self) -> None:
        """Check settings beside those that let rounds end before the last reply."""
        what = "method fedbuff" if self.asynchronous else "a round without its late replies"
        if self.asynchronous and self.rounds.on:
            raise ValueError(
                "rounds.deadline and rounds.over-select are for synchronous rounds: leave them out "
                "with fedbuff"
            )
        for key, is_on in (("secure.on", self.secure.on), ("node-sums", self.node_sums)):
            if is_on:
                raise ValueError(
                    f"{key} = true: {what} needs single replies, and a sum holds all of them: set "
                    "it to false"
                )
        if self.time.speed == "off":
            raise ValueError(
                f"time.speed = 'off': {what} depends on how long clients take: choose another one"
            )

    @property
    def asynchronous(self) -> bool:
        """Whether rounds are asynchronous."""
        return any(hasattr(method.builds, "buffer_size") for method in self.methods)

    @property
    def timed(self) -> bool:
        """Whether the run has a clock."""
        return self.asynchronous or self.rounds.on or self.time.speed not in ("auto", "off")

    @property
    def validates(self) -> str:
        """The setting that needs scores on validation samples, with its value, or
        "".
        """
        if self.keep_best:
            return "keep-best = true"
        return f"early-stopping = {self.early_stopping}" if self.early_stopping else ""

    @property
    def context(self) -> RunContext:
        """The settings that the task and the method may use besides their options."""
        shared = {part.name: getattr(self, part.name) for part in fields(RunContext)}
        return RunContext(**shared)

    @property
    def entry(self) -> Method:
        """The chosen method's entry in the table of methods."""
        return find_method(self.method)

    @property
    def bound(self) -> UpdateBound:
        """The bounds on a client's update and weight."""
        weight, relative, liars = self.max_weight, self.max_relative_update, HALF
        others = self.hardened or self.max_update_norm or self.dp.noise_multiplier
        others = others or self.node_sums or self.secure.on  # single replies are not seen
        if weight < 0 and relative < 0 and not others:
            weight, relative, liars = HARDENED, HARDENED, FEW
        if weight < 0:
            weight = HARDENED if self.hardened else MAX_WEIGHT if self.max_update_norm else 0.0
        if relative < 0:
            relative = HARDENED if self.hardened else 0.0
        return UpdateBound(
            self.max_update_norm,
            self.on_large_update,
            weight,
            self.max_array_value,
            relative,
            liars,
            self.max_metric_bytes,
        )

    def deployed(self) -> "Settings":
        """Return the settings with the defaults of a run on SuperNodes."""
        # Compiling would delay a site's first reply by a minute.
        compiled = "off" if self.train.compile == "auto" else self.train.compile
        settings = replace(self, train=replace(self.train, compile=compiled), hardened=True)
        return replace(settings, audit_log="on") if self.audit_log == "auto" else settings

    @property
    def keeps_clients_on_disk(self) -> bool:
        """Whether clients store their state in files: needed to resume, so ``auto``
        means yes if checkpoints are written.
        """
        return self.client_store == "disk" or (
            self.client_store == "auto" and self.checkpoint_every > 0
        )

    @property
    def methods(self) -> tuple[Method, ...]:
        """The chosen method and those that it wraps or composes."""
        others = (self.base, *self.halves) if self.base else self.halves
        return self.entry, *(method for other in others for method in other.methods)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the chosen method and of those that it wraps or composes."""
        others = (self.base, *self.halves) if self.base else self.halves
        return self.method, *(name for other in others for name in other.names)

    def flat(self) -> dict[str, Value]:
        """Return the settings as Flower's flat configuration, without the tables of
        other methods and tasks.
        """
        out: dict[str, Value] = {}
        tables = {"options": self.entry.table, "problem": find_task(self.task).table}
        for part in fields(self):
            value = getattr(self, part.name)
            if part.name in tables:
                if value is not None:
                    out |= flattened(value, tables[part.name])
            elif part.name in ("base", "halves"):
                for other in value if part.name == "halves" else (value,) if value else ():
                    out = other.flat() | out
            elif part.name in PARTS and not PARTS[part.name].used(self):
                continue
            elif is_dataclass(value):
                out |= flattened(value, part.name)
            else:
                out[kebab(part.name)] = value
        return out


def default_config(config: Mapping[str, Any] | None = None) -> dict[str, Value]:
    """Return every key of every method with its default. The user's own methods and
    tasks are included if ``config`` names them.

    Values of ``config`` may be the lists of a sweep. Raises ``UserError`` for an
    unknown method or task.
    """
    known = dict(_general())
    for table, kind in option_tables(config).items():
        known |= defaults_of(kind, table)
    return known | CONFIGURED


@cache
def _general() -> Mapping[str, Value]:
    """Return the defaults of the default method."""
    return MappingProxyType(Settings().flat())


def unknown(key: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown key."""
    known = list(known)
    if key in MOVED:
        return f"{key}: is no setting any more: write {MOVED[key]}"
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside and key not in OTHER_NAMES:
        return (
            f"unknown setting {key!r}: it is a table with keys such as {', '.join(inside[:3])}: "
            f"`fedapps settings {key}` lists them"
        )
    meant = next((name for name in known if name == OTHER_NAMES.get(key.rpartition(".")[2])), "")
    hint = f"did you mean {meant!r}? " if meant else nearest(key, known)
    return f"unknown setting {key!r}: {hint}`fedapps settings` lists all keys"


def unused(given: Mapping[str, Any], used: Container[str]) -> list[str]:
    """Return the keys in ``given`` that stand in a table and are not in ``used``, the
    settings of the run or runs. The default of a part that is off does not count.
    """
    others, known = (*OF_SWEEPS, "versions"), _parts()
    return [
        key
        for key, value in given.items()
        if "." in key
        and key not in used
        and key.partition(".")[0] not in others
        and (key not in known or value != known[key])
    ]


@cache
def _parts() -> Mapping[str, Value]:
    """Return the defaults of the tables common to all runs."""
    parts = (defaults_of(part.options, table) for table, part in PARTS.items())
    return MappingProxyType({key: value for part in parts for key, value in part.items()})


def check_used(given: Mapping[str, Any], used: Container[str]) -> None:
    """Raise ``UserError`` for a given option that is not in ``used``, the settings of
    the run or runs.
    """
    for key in unused(given, used):
        table, value = key.partition(".")[0], given[key]
        if table in PARTS:
            raise UserError(
                f"{key} = {value!r}: has no effect without {PARTS[table].switch}: set this, or "
                f"leave {key} out"
            )
        kinds: dict[str, Any] = {**METHODS, **TASKS}
        owners = [name for name, one in kinds.items() if one.table == table]
        choice = f"choose {' or '.join(owners[:4])}, or " if owners else ""
        raise UserError(
            f"{key} = {value!r}: neither the method nor the task has this option: {choice}leave "
            "it out"
        )


def chosen(config: Mapping[str, Any]) -> tuple[Method, str]:
    """Return the method of a flat configuration and the name of its task. Raises
    ``UserError``.
    """
    method = find_method(config.get("method", Settings.method))
    task = task_name(str(typed("task", config.get("task", "auto"), "")), method.tasks)
    source = config.get("data.source", "auto")
    if (
        task == "classification"
        and source in ("auto", DataOptions.source)
        and not config.get("sites.labels")
    ):
        task = "digits"
    return method, task


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Return the checked settings of a flat configuration; missing keys have their
    defaults. Raises ``UserError``.
    """
    config = {key: value for key, value in config.items() if not key.startswith("versions.")}
    known = default_config(config)
    for key in config:
        if key not in known:
            if key.partition(".")[0] in OF_SWEEPS:
                raise UserError(
                    f"{key}: belongs to a sweep: start the file with `fedapps sweep FILE`"
                )
            raise UserError(unknown(key, known))
    method, task = chosen(config)
    config["task"] = task
    kind = find_task(task)
    named = config.get("data.natural-id") and kind.data is None
    dealt = kind.defaults.get("data.partition", DataOptions.partition)
    usual = {"data.source": kind.sources[0], "data.partition": "natural" if named else dealt}
    config |= {key: value for key, value in usual.items() if config.get(key, "auto") == "auto"}
    if config.get("model.name", "auto") == "auto":
        config["model.name"] = method.model or find_task(task).model
    if config.get("model.start", "auto") == "auto":
        config["model.start"] = start_of(method, config) or kind.start
    values: dict[str, Any] = {}
    for part in fields(Settings):
        if part.name in ("options", "problem"):
            entry: Any = {"options": method, "problem": kind}[part.name]
            values[part.name] = (
                read_table(entry.options, entry.table, config) if entry.options else None
            )
        elif part.name == "base":
            values[part.name] = (
                _base(method, values["options"].base, config) if method.wrap else None
            )
        elif part.name == "halves":
            values[part.name] = _halves(values["options"], config)
        elif part.name in PARTS:
            values[part.name] = read_table(PARTS[part.name].options, part.name, config)
        elif (key := kebab(part.name)) in config:
            values[part.name] = typed(key, config[key], known[key])
    settings: Settings = built(Settings, values, "")
    check_data_used(settings, method)
    if settings.model.start == "zero" and start_of(method, config):
        raise UserError(
            f"model.start = 'zero': {settings.method} mixes two models that must differ: choose "
            "'random'"
        )
    if settings.evaluate_every < 0:
        tenth = max(1, settings.num_rounds // 10)
        settings = replace(settings, evaluate_every=min(LONGEST_INTERVAL, tenth))
    if settings.data.synthetic and settings.data.synthetic_use == "mix" and settings.sites.own:
        raise UserError(
            "data.synthetic-use = 'mix': the sites do not have the folder data.synthetic: choose "
            "'pretrain', which only the server needs"
        )
    if settings.data.group and (task not in GROUPED or settings.sites.own):
        what = "sites with their own data are" if settings.sites.own else f"task {task!r} is"
        raise UserError(
            f"data.group = {settings.data.group!r}: {what} not scored by group: set it to '' "
            f"(tasks with groups: {', '.join(GROUPED)})"
        )
    column = settings.data.group_split
    if column and (
        task not in (*GROUPED, "regression", "survival")
        or settings.sites.own
        or settings.data.source in find_task(task).sources
    ):
        raise UserError(
            f"data.group-split = {column!r}: is for files with such a column (tasks "
            f"{', '.join((*GROUPED, 'regression', 'survival'))}): set it to ''"
        )
    if settings.data.synthetic and task not in ("classification", "digits"):
        raise UserError(
            f"data.synthetic = {settings.data.synthetic!r}: task {task!r} does not start from a "
            "set of images: set it to ''"
        )
    return settings


def start_of(method: Method, config: Mapping[str, Any]) -> str:
    """Return the start that the method, or one that it wraps or composes, needs; "" if
    any will do.
    """
    keys = (f"{method.table}.{key}" for key in ("base", "first", "then"))
    inner = (METHODS[name] for key in keys if (name := config.get(key)) in METHODS)
    starts = (
        one.start(read_table(one.options, one.table, config))
        if callable(one.start) and one.options
        else str(one.start)
        for one in (method, *inner)
    )
    return next(filter(None, starts), "")


def check_data_used(settings: Settings, method: Method) -> None:
    """Raise ``UserError`` for settings of the table ``data`` that the task does not
    read; it names them all.
    """
    kind, given = find_task(settings.task), flattened(settings.data, "data")
    if kind.data is None:
        return
    usual = flattened(DataOptions(), "data") | {"data.source": kind.sources[0]}
    used = {f"data.{name}" for name in kind.data}
    others = {
        key: value
        for key, value in given.items()
        if key not in used and value not in (usual[key], method.defaults.get(key))
    }
    if others:
        named = ", ".join(f"{key} = {value!r}" for key, value in others.items())
        it = "it" if len(others) == 1 else "them"
        fits = [
            name
            for name in method.tasks
            if (read := find_task(name).data) is None
            or others.keys() <= {f"data.{part}" for part in read}
        ]
        choice = f", or choose task = {' or '.join(map(repr, fits[:3]))}" if fits else ""
        raise UserError(
            f"{named}: task {settings.task!r} does not use {it}: leave {it} out{choice}"
        )


def _base(method: Method, name: str, config: Mapping[str, Any]) -> Settings:
    """Return the settings of the method ``name``, which ``method`` wraps. Only the
    method and its table differ.
    """
    try:
        inner = find_method(name, f"{method.table}.base")
        if inner.wrap and (method.loss or not inner.loss):
            other = (
                f": choose method = {name!r} and {inner.table}.base = 'propfair'"
                if method.loss
                else ", and so does this one"
            )
            raise UserError(f"it decides weights{other}")
        if not inner.wrap and inner.strategy is None:
            raise UserError(
                f"it composes two methods: choose method = {name!r}, with this one as one of them"
            )
        if inner.synthetic:
            raise UserError(
                "it makes a set of images, so its clients have no classifier's loss to weight by: "
                "choose another method"
            )
        task_name(str(config["task"]), inner.tasks)
    except UserError as error:
        reason = str(error).removeprefix(f"{method.table}.base = {name!r}: ")
        raise UserError(f"{method.table}.base = {name!r}: {reason}") from None
    given = {**config, "method": name}
    known = default_config(given)  # leaves out the table of the user's own wrapper
    return read_settings({key: value for key, value in given.items() if key in known})


def _halves(options: Any, config: Mapping[str, Any]) -> tuple[Settings, ...]:
    """Return the settings of the two methods that the chosen one composes. They differ
    only in the method and its table.
    """
    halves = (
        {"first": options.first, "then": options.then}
        if isinstance(options, WarmStartOptions)
        else {}
    )
    settings = []
    for key, method in halves.items():
        try:
            settings.append(read_settings({**config, "method": method}))
        except UserError as error:
            raise UserError(f"warm-start.{key} = {method!r}: {error}") from None
    return tuple(settings)
