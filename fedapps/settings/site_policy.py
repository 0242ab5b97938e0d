"""What a site allows: its policy, a TOML file that the node configuration names. No
server can change it. Everything that the file does not limit is allowed.

The limits concern what a site can see. How many other sites take part is not among
that: ``min-clients`` compares with ``min-replies``, which is the server's word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedapps.algorithms.common.options import Options, kebab, names_in, nearest, option
from fedapps.algorithms.contract.sent import METHOD
from fedapps.algorithms.secure.wire import CLEAR, FRAME, MASKED, RECORD
from fedapps.errors import UserError
from fedapps.extensions.own_code import code_named, names_method
from fedapps.settings.reading import read_settings
from fedapps.settings.tables import read_table
from fedapps.toml_text import load_toml


@dataclass(frozen=True)
class SitePolicy(Options):
    """What a site lets a run do, and what it lets leave."""

    methods: str = option("", 'names of the methods that may run; "": all')
    own_code: bool = option(True, "settings may name code of the user's own (module:NAME)")
    min_clients: int = option(0, "smallest min-replies that a run may have", low=0)
    rounds_per_run: int = option(
        0, "training messages, and as many evaluations, of a run; 0: no limit", low=0
    )
    rounds_per_day: int = option(0, "the same for all runs of a day (UTC)", low=0)
    memory: float = option(
        0.0, "gigabytes that the process may hold while it answers (Linux); 0: no limit", low=0
    )
    arrays: bool = option(True, "arrays may leave: models, gradients, learners")
    secure_sums: bool = option(False, "a run must use secure sums (secure.on)")
    clients: str = option(
        "*",
        "columns that may name the site's clients (sites.client), with * for any letters: who "
        "guesses a value sees whether it occurs",
    )
    metrics: str = option("*", "names of the metrics that may leave, with * for any letters")
    counts: bool = option(True, "lists of numbers may leave: counts by class, sums by group")
    errors: bool = option(False, "texts of errors may leave; else only their class, and where")

    def refuses_run(self, config: Mapping[str, Any]) -> str:
        """Return why a run with these settings is refused, or "". No code that the
        settings name is imported before it is allowed.
        """
        allowed, own = names_in(self.methods), code_named(config)
        if own and not self.own_code:
            return f"{own[0]} = {config[own[0]]!r} is code of the run's own, and own-code = false"
        if allowed:
            keys = ["method", *filter(names_method, own)]
            names: Sequence[str] = [str(config.get(key)) for key in keys]
            if not set(names) - set(allowed):
                names = read_settings(config).names  # and those that it wraps
            if other := [name for name in names if name not in allowed]:
                return f"method = {other[0]!r}, but methods = {self.methods}"
        if (column := str(config.get("sites.client") or "")) and not any(
            fnmatchcase(column, one) for one in names_in(self.clients)
        ):
            return f"sites.client = {column!r}, but clients = {self.clients!r}"
        if self.secure_sums and config.get("secure.on") is not True:
            return "secure.on is not true, but secure-sums = true"
        if self.min_clients:
            least = config.get("min-replies", "unknown")
            if not isinstance(least, int) or least < self.min_clients:
                return f"min-replies = {least}, but min-clients = {self.min_clients}: raise it"
        return ""

    def refuses_reply(self, content: RecordDict) -> str:
        """Return what in a reply may not leave, or "". The number of samples, the name
        of the method and the frame of a masked reply always may.
        """
        allowed = names_in(self.metrics)
        for place, record in content.items():
            if isinstance(record, ArrayRecord) and record and not self.arrays:
                return "its reply holds arrays, but arrays = false"
            if not isinstance(record, MetricRecord | ConfigRecord):
                continue
            for name, value in record.items():
                # the frame of a masked reply, whose metrics leave in sums only
                masked = place == RECORD and content.keys() <= {CLEAR, MASKED, RECORD}
                framed = masked and name in FRAME
                if framed or name in ("num-examples", METHOD):
                    continue
                if isinstance(value, list) and not self.counts:
                    return f"its reply holds the list {name!r}, but counts = false"
                if not any(fnmatchcase(name, one) for one in allowed):
                    return f"its reply holds {name!r}, but metrics = {self.metrics!r}"
        return ""


def read_policy(path: str) -> SitePolicy:
    """Return the policy in a file. Raises ``UserError``."""
    given = {
        key: ", ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in load_toml(Path(path)).items()
    }
    if given.get("methods") == "":
        raise UserError(
            f"{path}: methods is empty: name those that may run, or leave it out for all"
        )
    known = [kebab(part.name) for part in fields(SitePolicy)]
    for key in given:
        if key not in known:
            raise UserError(
                f"{path}: unknown key {key!r}: {nearest(key, known)}choose from {', '.join(known)}"
            )
    try:
        policy: SitePolicy = read_table(
            SitePolicy, "policy", {f"policy.{key}": value for key, value in given.items()}
        )
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix('policy.')}") from None
    return policy
