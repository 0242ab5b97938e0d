"""All settings of a run: read once from Flower's flat ``key = value`` configuration,
checked, and frozen.

Keys are the kebab-case of field names, prefixed by the table: ``num-rounds``,
``data.alpha``, ``train.learning-rate``, ``superfed.nu``. Errors are reported in one
line that names the key, the value and what is allowed, before anything is downloaded or
started. Tasks and methods do not import this module: they get their own options and a
``RunContext``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from algorithms.common.checks import nearest
from algorithms.common.options import Options, kebab, option
from clients.base.options import TrainOptions
from fedapps.data.options import DataOptions, PublicOptions, SiteOptions, SyntheticOptions
from fedapps.errors import UserError
from fedapps.methods import find_method
from fedapps.methods.method import Method
from fedapps.models.options import ModelOptions
from fedapps.settings.tables import (
    CONFIGURED,
    PARTS,
    built,
    flattened,
    option_tables,
    read_table,
    typed,
)
from fedapps.tasks.context import RunContext
from fedapps.tasks.registry import find_task, task_name
from fedapps.toml_text import Value
from fedapps.tracking.names import names_of
from strategies import FedAvgOptions, PrivacyOptions, RobustOptions, UpdateBound, WarmStartOptions

# Times the median weight of a round, where clients are strangers.
MAX_WEIGHT = 10.0
#: What others call our settings, by the last part of the name.
OTHER_NAMES = {
    "rounds": "num-rounds",
    "clients": "num-clients",
    "epochs": "train.local-epochs",
    "lr": "train.learning-rate",
    "batch": "train.batch-size",
    "bs": "train.batch-size",
    "dataset": "data.source",
    "output": "out",
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
    """The settings of one run. ``options`` are those of the chosen method's own table,
    ``problem`` those of the task's.

    ``base``: the settings of the method that the chosen one wraps, if any. ``halves``:
    those of the two methods that it composes, if any.
    """

    method: str = option("fedavg", "`fedapps methods` lists them; or one of yours as module:NAME")
    task: str = option(
        "digits",
        "what the method runs on: of fedapps/tasks/registry.py, or yours as module:NAME; auto: its "
        "default",
    )
    seed: int = option(0, "seed of every random draw", low=0)
    num_rounds: int = option(50, "rounds of training", low=1)
    num_clients: int = option(
        0,
        "clients to wait for; 0: as many as the nodes say there are (`fedapps run`: as the data "
        "have, or 20)",
        low=0,
    )
    clients_per_round: int = option(
        5, "clients sampled for training in each round; 0: all; by default all of fewer", low=0
    )
    num_new_clients: int = option(
        0,
        "clients that never take part in training, drawn by the seed; evaluations score what the "
        "method gives them",
        low=0,
    )
    new_epochs: int = option(
        5, "local epochs, the method's own, after which they are scored too, beside 0 and 1", low=1
    )
    evaluate_every: int = option(
        10, "rounds between evaluations of all clients; 0: only after the last round", low=0
    )
    evaluate_train: bool = option(
        False,
        "evaluations also report the loss of the server's model on each client's training "
        "samples: `train-loss` in clients.csv",
    )
    checkpoint_every: int = option(10, "rounds between checkpoints; 0: none", low=0)
    min_replies: int = option(1, "a round with fewer valid replies counts as failed", low=1)
    max_failed_rounds: int = option(3, "the run ends after this many failed rounds in a row", low=1)
    timeout: float = option(600.0, "seconds that a phase waits for replies", low=0, open_low=True)
    max_update_norm: float = option(
        0.0, "bound on the norm of a client's update, over all its arrays; 0: none", low=0
    )
    on_large_update: str = option(
        "reject", "leave a larger update out, or clip it to the bound", choices=["reject", "clip"]
    )
    max_weight: float = option(
        -1.0,
        "largest weight of a client, as a multiple of the round's median; 0: no limit; -1: 10 on "
        "SuperNodes or with max-update-norm, else no limit",
        low=-1,
    )
    max_array_value: float = option(
        1e6,
        "largest number in a client's arrays that are not the model (control variates, gradients, "
        "learners)",
        low=0,
        open_low=True,
    )
    client_store: str = option(
        "auto",
        "where clients keep state: disk (a resume finds it), message (Flower's context); auto: "
        "disk with checkpoints",
        choices=["auto", "disk", "message"],
    )
    node_sums: bool = option(
        False,
        "a node that clients share sums their models before it answers; only for methods that "
        "average, differs in the last bits",
    )
    device: str = option(
        "auto", "auto: the GPU where one is visible", choices=["auto", "cpu", "cuda"]
    )
    out: str = option(
        "", 'results folder; "": ~/fedapps-results/RUN-ID (`fedapps run`: results/...)'
    )
    resume: bool = option(False, "go on from the last checkpoint in `out`")
    metrics_port: int = option(
        0,
        "port of a page of counters for Prometheus while the run lasts; 0: none",
        low=0,
        high=65535,
    )
    metrics_host: str = option(
        "127.0.0.1", "address that the page listens on; others can then read it"
    )
    track: str = option(
        "",
        "also report to tensorboard, mlflow or wandb (several with commas): docs/tracking.md",
    )
    track_to: str = option(
        "",
        "MLflow's address, TensorBoard's folder or the project of wandb; \"\": the results folder "
        "(`fedapps`)",
    )
    data: DataOptions = field(default_factory=DataOptions)
    model: ModelOptions = field(default_factory=lambda: ModelOptions(name="mlp"))
    train: TrainOptions = field(default_factory=TrainOptions)
    public: PublicOptions = field(default_factory=PublicOptions)
    dp: PrivacyOptions = field(default_factory=PrivacyOptions)
    robust: RobustOptions = field(default_factory=RobustOptions)
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
                "client-store = 'message' keeps clients' state nowhere a resume could find it: set "
                "checkpoint-every = 0"
            )
        if self.evaluate_train and self.dp.noise_multiplier:
            raise ValueError(
                "evaluate-train = true: losses on training samples are not private, as "
                "dp.noise-multiplier asks"
            )
        if self.sites.client and not self.num_clients:
            raise ValueError(
                f"num-clients = 0: sites.client = {self.sites.client!r} needs the number of all "
                "sites' clients together"
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
                f"{self.robust.num_malicious} needs {self.robust.least} replies: ask more, or 0 "
                "for all"
            )

    @property
    def context(self) -> RunContext:
        """The settings that the task and the method may use beside their own
        options.
        """
        shared = {part.name: getattr(self, part.name) for part in fields(RunContext)}
        return RunContext(**shared)

    @property
    def entry(self) -> Method:
        """The chosen method's entry in the table of methods."""
        return find_method(self.method)

    @property
    def bound(self) -> UpdateBound:
        """The bounds on a client's update and weight."""
        weight = (
            self.max_weight if self.max_weight >= 0 else MAX_WEIGHT if self.max_update_norm else 0.0
        )
        return UpdateBound(self.max_update_norm, self.on_large_update, weight, self.max_array_value)

    def deployed(self) -> "Settings":
        """Return the settings with the defaults of a run on SuperNodes."""
        # a site's first message would take a minute
        compiled = "off" if self.train.compile == "auto" else self.train.compile
        settings = replace(self, train=replace(self.train, compile=compiled))
        return replace(settings, max_weight=MAX_WEIGHT) if self.max_weight < 0 else settings

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
            elif (
                (part.name == "public" and not any(method.public for method in self.methods))
                or (part.name == "dp" and not self.dp.noise_multiplier)
                or (part.name == "robust" and self.robust.rule == "none")
                or (part.name == "sites" and not self.sites.own)
                or (
                    part.name == "synthetic"
                    and not any(method.synthetic for method in self.methods)
                    and not self.data.synthetic
                )
            ):
                continue
            elif is_dataclass(value):
                out |= flattened(value, part.name)
            else:
                out[kebab(part.name)] = value
        return out


def default_config(config: Mapping[str, Any] | None = None) -> dict[str, Value]:
    """Return every key of every method with its default, and of those of the user's own
    that ``config`` names.

    Values of ``config`` may be lists, of a sweep. Raises ``UserError`` for a name that
    stands for nothing.
    """
    known: dict[str, Value] = Settings().flat()
    for table, kind in option_tables(config).items():
        known |= flattened(kind(), table)
    return known | CONFIGURED


def unknown(key: str, known: Iterable[str]) -> str:
    """Return what is said of a key that is not known."""
    known = list(known)
    if key in MOVED:
        return f"{key}: is no setting any more: write {MOVED[key]}"
    inside = [name for name in known if name.startswith(f"{key}.")]
    if inside:
        return (
            f"unknown setting {key!r}: it is a table, as {', '.join(inside[:3])}: `fedapps "
            f"settings {key}` explains it"
        )
    meant = next((name for name in known if name == OTHER_NAMES.get(key.rpartition(".")[2])), "")
    hint = f"did you mean {meant!r}? " if meant else nearest(key, known)
    return f"unknown setting {key!r}: {hint}`fedapps settings` lists all keys"


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
                    f"{key}: belongs to a sweep, which `fedapps sweep FILE` runs; a single run has "
                    "settings only"
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
            values[part.name] = read_table(PARTS[part.name], part.name, config)
        elif (key := kebab(part.name)) in config:
            values[part.name] = typed(key, config[key], known[key])
    settings: Settings = built(Settings, values, "")
    check_data_used(settings, method)
    if settings.data.synthetic and settings.data.synthetic_use == "mix" and settings.sites.own:
        raise UserError(
            "data.synthetic-use = 'mix': the sites have no such folder: choose 'pretrain', which "
            "only the server does"
        )
    if settings.data.group and (task not in GROUPED or settings.sites.own):
        what = "sites with data of their own are" if settings.sites.own else f"task {task!r} is"
        raise UserError(
            f"data.group = {settings.data.group!r}: {what} not scored by groups: leave it '' "
            f"(tasks: {', '.join(GROUPED)})"
        )
    if settings.data.synthetic and task not in ("classification", "digits"):
        raise UserError(
            f"data.synthetic = {settings.data.synthetic!r}: task {task!r} does not start from a "
            "set of images: set it to ''"
        )
    return settings


def check_data_used(settings: Settings, method: Method) -> None:
    """Raise ``UserError`` for a setting of the table ``data`` that the task does not
    read.
    """
    kind, given = find_task(settings.task), flattened(settings.data, "data")
    if kind.data is None:
        return
    usual = flattened(DataOptions(), "data") | {"data.source": kind.sources[0]}
    used = {f"data.{name}" for name in kind.data}
    for key, value in given.items():
        if key not in used and value not in (usual[key], method.defaults.get(key)):
            raise UserError(
                f"{key} = {value!r}: task {settings.task!r} does not use it: leave it out"
            )


def _base(method: Method, name: str, config: Mapping[str, Any]) -> Settings:
    """Return the settings of the method ``name``, which ``method`` wraps: they differ
    in the method and its own table.
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
            raise UserError("it composes two methods: make this one a half of it")
        if inner.synthetic:
            raise UserError(
                "it makes a set of images: its clients have no loss of a classifier to be weighted "
                "by"
            )
        task_name(str(config["task"]), inner.tasks)
    except UserError as error:
        reason = str(error).removeprefix(f"{method.table}.base = {name!r}: ")
        raise UserError(f"{method.table}.base = {name!r}: {reason}") from None
    given = {**config, "method": name}
    known = default_config(given)  # without the table of a wrapper of the user's own
    return read_settings({key: value for key, value in given.items() if key in known})


def _halves(options: Any, config: Mapping[str, Any]) -> tuple[Settings, ...]:
    """Return the settings of the two methods that the chosen one composes, which differ
    in the method and its own table.
    """
    halves = (
        {"first": options.first, "then": options.then}
        if isinstance(options, WarmStartOptions)
        else {}
    )
    found = []
    for key, method in halves.items():
        try:
            found.append(read_settings({**config, "method": method}))
        except UserError as error:
            raise UserError(f"warm-start.{key} = {method!r}: {error}") from None
    return tuple(found)
