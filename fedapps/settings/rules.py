"""What does not go together: all refusals of a setting because of other settings.

Refusals that need more than settings, such as the data or a strategy, are where that is
known (``runs.assembly``).
"""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from fedapps.algorithms.secure.graph import LEAST
from fedapps.errors import UserError
from fedapps.methods import METHODS
from fedapps.models.options import ModelOptions
from fedapps.settings.tables import start_of
from fedapps.tasks.registry import find_task

if TYPE_CHECKING:
    from fedapps.settings.settings import Settings

#: Tasks whose test samples can have groups (``data.group``), and whose files can have a
#: column for them.
GROUPED = ("classification", "constrained-classification", "tabular")
WITH_COLUMNS = (*GROUPED, "regression", "survival")
#: Methods whose clients may have different nets.
ANY_NET = tuple(name for name, method in METHODS.items() if method.any_net)


class Rule(NamedTuple):
    """A ``setting``; with what it does not go, as a function of the settings; why, and
    the way out. The texts are formatted with the settings, ``s``. Without a key as the
    setting, they are the whole message.
    """

    setting: str
    clash: "Callable[[Settings], object]"
    why: str
    way: str


#: Rules about settings as they are given.
GIVEN = (
    Rule(
        "client-store",
        lambda s: s.client_store == "message" and s.checkpoint_every,
        "a resumed run could not find the clients' state",
        "set checkpoint-every = 0, or client-store = 'disk'",
    ),
    Rule(
        "until",
        lambda s: s.until and not s.checkpoint_every,
        "a paused run continues from a checkpoint",
        "set checkpoint-every above 0",
    ),
    Rule(
        "evaluate-train",
        lambda s: s.evaluate_train and s.secure.on,
        "secure sums hide the losses of training samples",
        "set it to false, or secure.on = false",
    ),
    Rule(
        "evaluate-train",
        lambda s: s.evaluate_train and s.dp.noise_multiplier,
        "losses on training samples are not private",
        "set it to false, or dp.noise-multiplier = 0",
    ),
    Rule(
        "num-clients",
        lambda s: s.sites.client and not s.num_clients,
        "with sites.client = {s.sites.client!r}",
        "set it to the number of clients of all sites together",
    ),
    Rule(
        "num-new-clients",
        lambda s: 0 < s.num_clients <= s.num_new_clients,
        "but there are {s.num_clients} clients, and at least one must train",
        "choose fewer new clients",
    ),
    Rule(
        "clients-per-round",
        lambda s: 0 < s.clients_per_round < s.robust.least,
        "but robust.rule = {s.robust.rule!r} with num-malicious = {s.robust.num_malicious} needs "
        "{s.robust.least} replies",
        "choose at least that many, or 0 for all",
    ),
    Rule(
        "",
        lambda s: s.asynchronous and s.rounds.on,
        "rounds.deadline and rounds.over-select are for synchronous rounds",
        "leave them out with fedbuff",
    ),
    Rule(
        "secure.on",
        lambda s: s.paced and s.secure.on,
        "{s.paced} needs single replies, and a sum holds all of them",
        "set it to false",
    ),
    Rule(
        "time.speed",
        lambda s: s.paced and s.time.speed == "off",
        "{s.paced} depends on how long clients take",
        "choose another one",
    ),
    Rule(
        "",
        lambda s: s.validates and not s.evaluate_every,
        "{s.validates}: evaluate-every = 0 has one evaluation only",
        "set it to 1 or more",
    ),
    Rule(
        "",
        lambda s: s.validates and s.dp.noise_multiplier,
        "{s.validates}: scores on validation samples are not private",
        "leave it out, or set dp.noise-multiplier = 0",
    ),
    Rule(
        "keep-best",
        lambda s: s.keep_best and not s.keeps_clients_on_disk,
        "what clients store in the best round is kept on disk",
        'set client-store = "disk"',
    ),
    Rule(
        "max-update-norm",
        lambda s: s.max_update_norm and s.dp.noise_multiplier and s.secure.on,
        "with secure.on = true, dp.clipping-norm bounds the updates",
        "set it to 0",
    ),
    Rule(
        "model.adapter",
        lambda s: (
            s.model.adapter == "none"
            and any(
                getattr(s.model, f"lora_{key}") != getattr(ModelOptions, f"lora_{key}")
                for key in ("rank", "alpha", "targets")
            )
        ),
        "with lora-rank, lora-alpha or lora-targets, which are for adapters",
        "choose 'lora', or leave these out",
    ),
    Rule(
        "model.start",
        lambda s: s.model.start == "zero" and start_of(s.entry, s.flat()),
        "{s.method} mixes two models that must differ",
        "choose 'random'",
    ),
    Rule(
        "model.name",
        lambda s: "," in s.model.name and not all(m.any_net for m in s.methods),
        "{s.method} needs one net for all clients",
        f"name one, or choose a method that sends none ({', '.join(ANY_NET)})",
    ),
    Rule(
        "model.adapter",
        lambda s: "," in s.model.name and s.model.adapter != "none",
        "is for one net, and clients have several",
        "leave it 'none'",
    ),
    Rule(
        "model.weights",
        lambda s: "," in s.model.name and s.model.weights,
        "are those of one net, and clients have several",
        "set it to ''",
    ),
    Rule(
        "data.synthetic",
        lambda s: s.data.synthetic and s.task not in ("classification", "digits"),
        "task {s.task!r} does not start from a set of images",
        "set it to ''",
    ),
    Rule(
        "data.synthetic-use",
        lambda s: s.data.synthetic and s.data.synthetic_use == "mix" and s.sites.own,
        "the sites do not have the folder data.synthetic",
        "choose 'pretrain', which only the server needs",
    ),
    Rule(
        "data.group",
        lambda s: s.data.group and s.sites.own,
        "sites with their own data are not scored by group",
        "set it to ''",
    ),
    Rule(
        "data.group",
        lambda s: s.data.group and s.task not in GROUPED,
        "task {s.task!r} is not scored by group",
        f"set it to '' (tasks with groups: {', '.join(GROUPED)})",
    ),
    Rule(
        "data.group-split",
        lambda s: (
            s.data.group_split
            and (
                s.task not in WITH_COLUMNS
                or s.sites.own
                or s.data.source in find_task(s.task).sources
            )
        ),
        f"is for files with such a column (tasks {', '.join(WITH_COLUMNS)})",
        "set it to ''",
    ),
)
#: Rules about the number of clients, once it is known.
COUNTED = (
    *(rule for rule in GIVEN if rule.setting == "num-new-clients"),
    Rule(
        "clients-per-round",
        lambda s: s.num_new_clients and s.clients_per_round > s.num_training,
        "but there are {s.num_training} clients that are not new",
        "choose 1..{s.num_training}, or 0 for all",
    ),
    Rule(
        "clients-per-round",
        lambda s: s.clients_per_round > s.num_training,
        "but there are {s.num_training} clients",
        "choose 1..{s.num_training}, or 0 for all",
    ),
    Rule(
        "clients-per-round",
        lambda s: (
            any(method.all_clients for method in s.methods) and s.num_sampled < s.num_training
        ),
        "but {s.method} needs all {s.num_training} clients in every round",
        "choose 0, or method = 'aaggff-d'",
    ),
    Rule(
        "secure.on",
        lambda s: s.secure.on and s.num_sampled < LEAST,
        f"a secure sum has at least {LEAST} clients, and a round has {{s.num_sampled}}",
        "choose more, or secure.on = false",
    ),
    Rule(
        "min-replies",
        lambda s: s.min_replies > s.num_sampled,
        "but a round has {s.num_sampled} clients",
        "choose 1..{s.num_sampled}",
    ),
)


def refuse(settings: "Settings", rules: Iterable[Rule]) -> None:
    """Raise ``UserError`` for the first setting that does not go with others."""
    for rule in rules:
        if rule.clash(settings):
            why, way = (text.format(s=settings) for text in (rule.why, rule.way))
            if rule.setting:
                joint = ", " if why.startswith("but ") else ": "
                why = f"{rule.setting} = {shown(settings, rule.setting)}{joint}{why}"
            raise UserError(f"{why}: {way}")


def shown(settings: "Settings", key: str) -> str:
    """Return the value of a setting as users write it."""
    value: Any = reduce(getattr, key.replace("-", "_").split("."), settings)
    return repr(value).lower() if isinstance(value, bool) else repr(value)
