"""All settings of a run, checked and frozen; ``reading`` makes them.

Keys are the kebab-case of field names, prefixed by the table: ``num-rounds``,
``data.alpha``, ``train.learning-rate``, ``superfed.nu``. Tasks and methods do not
import this module: they get their own options and a ``RunContext``.
"""

import re
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from fedapps.algorithms.common.fleet import FleetOptions
from fedapps.algorithms.common.options import Options, kebab, option
from fedapps.clients.base.options import TrainOptions
from fedapps.data.options import DataOptions, PublicOptions, SiteOptions, SyntheticOptions
from fedapps.methods import find_method
from fedapps.methods.method import Method
from fedapps.models.options import ModelOptions
from fedapps.settings.tables import PARTS, flattened
from fedapps.strategies import (
    FedAvgOptions,
    PrivacyOptions,
    RobustOptions,
    SecureOptions,
    UpdateBound,
)
from fedapps.strategies.base.relative_bounds import HARDENED
from fedapps.strategies.base.timing import PaceOptions
from fedapps.tasks.context import RunContext
from fedapps.tasks.registry import find_task
from fedapps.toml_text import Value, read_toml
from fedapps.tracking.names import names_of

# Largest weight, as a multiple of the round's median, with a bound on the update only.
MAX_WEIGHT = 10.0


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
    form: str = option(
        "usual",
        "printed: options that are not given take the values of the method's paper, where our "
        "defaults differ; recorded as these values and usual; `flwr run` takes a value at its "
        "default as not given",
        choices=["usual", "printed"],
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
        "clients report counts of their test samples by actual and predicted class; never with "
        "dp.noise-multiplier or secure.on",
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
        "largest weight of a client in training, as a multiple of the round's median; 0: no limit; "
        "-1: 3 if hardened, 10 with max-update-norm, else no limit",
        low=-1,
    )
    max_relative_update: float = option(
        -1.0,
        "clients' updates are shortened to this multiple of the round's median norm; 0: no limit; "
        "-1: 3 if hardened, else no limit; never with dp.noise-multiplier",
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
    audit_log: str = option(
        "auto",
        "audit.jsonl in the results folder: who took part, bytes, refusals; auto: on SuperNodes",
        choices=["auto", "on", "off"],
    )
    device: str = option(
        "auto",
        "auto: a CUDA GPU where a step is large enough to gain (with Ray: with --gpus-per-client); "
        "cpu, cuda, cuda:1, mps or xpu",
    )
    out: str = option(
        "", 'results folder; "": ~/fedapps-results/RUN-ID (`fedapps run`: results/...)'
    )
    resume: bool = option(False, "continue from the last checkpoint in `out`")
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
        """Check the names in settings; what does not go together: ``rules``."""
        names_of(self.track)
        if not re.fullmatch(r"auto|cpu|mps|(cuda|xpu)(:(0|[1-9]\d*))?", self.device):
            raise ValueError(
                f"device = {self.device!r}: choose one of auto, cpu, cuda, mps, xpu, or cuda:1 and "
                "so on"
            )

    @property
    def asynchronous(self) -> bool:
        """Whether rounds are asynchronous."""
        return any(hasattr(method.builds, "buffer_size") for method in self.methods)

    @property
    def paced(self) -> str:
        """What lets rounds end before the last reply, or ""."""
        if self.asynchronous:
            return "method fedbuff"
        return "a round without its late replies" if self.rounds.on else ""

    @property
    def num_training(self) -> int:
        """The number of clients that are not new."""
        return self.num_clients - self.num_new_clients

    @property
    def num_sampled(self) -> int:
        """The number of clients of a round."""
        return self.clients_per_round or self.num_training

    @property
    def timed(self) -> bool:
        """Whether the run has a clock."""
        return bool(self.paced) or self.time.speed not in ("auto", "off")

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
        weight, relative = self.max_weight, self.max_relative_update
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
            self.max_metric_bytes,
        )

    def deployed(self) -> "Settings":
        """Return the settings with the defaults of a run on SuperNodes."""
        # Compiling would delay a site's first reply by a minute.
        compiled = "off" if self.train.compile == "auto" else self.train.compile
        device = "cpu" if self.device == "auto" else self.device
        log = "on" if self.audit_log == "auto" else self.audit_log
        return self.but(train={"compile": compiled}, device=device, hardened=True, audit_log=log)

    def but(self, **values: Any) -> "Settings":
        """Return the settings with other values, by field; those of a table as a
        dictionary.
        """
        changed = {
            name: replace(getattr(self, name), **value) if isinstance(value, dict) else value
            for name, value in values.items()
        }
        return replace(self, **changed)

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

    def recorded(self, key: str) -> Value | None:
        """Return the value of a setting in the run that is resumed; ``None`` in a new
        run.
        """
        before = Path(self.out) / "settings.toml"
        return read_toml(before).get(key) if self.resume and before.exists() else None

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
