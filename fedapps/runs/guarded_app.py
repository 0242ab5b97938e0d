"""The app at a site, with its policy and audit log, if it has them: every message is
checked before the method's code runs, every reply before it leaves, and both are
recorded.

The node configuration names them: ``policy``, a file (``fedapps.settings.site_policy``)
and ``audit``, another one (default: ``audit.jsonl`` in ``store-dir``; "": none). A
refusal is an error reply of one line, which leaves the site out of the round. Of any
other error only the class leaves a site, unless its policy says ``errors = true``.

This is code of the app, which comes with the run. With ``fedapps deploy warm
--installed`` a site runs its own copy, whatever a server sends.
"""

import json
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property, partial, wraps
from logging import ERROR
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common import log

from fedapps.algorithms.secure.wire import Refusal
from fedapps.clients.base.adapter import client_id, is_site
from fedapps.clients.base.locks import locked
from fedapps.clients.base.together import alone
from fedapps.engines.node_app import CLIENTS, MANY
from fedapps.errors import SiteFault, UserError
from fedapps.extensions.own_code import code_named
from fedapps.records.audit import FILE, AuditLog, round_in
from fedapps.records.files import write_text
from fedapps.records.rounds import settings_digest
from fedapps.strategies.base.flower_private import ErrorCode
from fedapps.strategies.base.messages import content_bytes
from fedapps.strategies.base.named_grid import IDENTITY

if TYPE_CHECKING:
    from fedapps.settings.site_policy import SitePolicy

T = TypeVar("T")

#: The file in ``store-dir`` with the numbers of rounds.
COUNTS = "policy-rounds.json"
MOST_RUNS = 10_000  # of which the numbers are kept


class Site:
    """The policy and the audit log of a site, for one message and its parts."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.asked: Counter[object] = Counter()  # times, of each client, and the most
        self.broken = ""  # a policy that cannot be read allows nothing
        self.policy: SitePolicy | None = None
        if path := context.node_config.get("policy"):
            from fedapps.settings import site_policy

            try:
                self.policy = site_policy.read_policy(str(path))
            except UserError as error:
                self.policy, self.broken = site_policy.SitePolicy(), str(error)

    @cached_property
    def refusal(self) -> str:
        """Why the site takes no part in the run, or ""."""
        if self.broken or self.policy is None:
            return self.broken
        try:
            return self.policy.refuses_run(self.context.run_config)
        except UserError as error:
            return str(error)

    def refuses(self, kind: str, context: Context) -> str:
        """Return why a message of a kind is not answered, or "". A site that refuses a
        run still names itself, without a look at its data.
        """
        if kind == IDENTITY or self.policy is None:
            return ""
        return self.refusal or self._count(self.policy, kind.partition(".")[0], context)

    def _count(self, policy: "SitePolicy", kind: str, context: Context) -> str:
        """Count the rounds that a message holds: as many as it asks a client. The
        client is the part of its name that chooses the data, whatever a server puts
        before it. Return why one round is too many, or "".
        """
        limited = policy.rounds_per_run or policy.rounds_per_day
        if not limited or kind not in ("train", "evaluate"):
            return ""
        client = kind, str(client_id(context)).rpartition(":")[2]
        if (times := self.asked[client] + 1) > self.asked[kind]:
            if why := count_round(policy, context, kind):
                return why
            self.asked[kind] = times
        self.asked[client] = times
        return ""

    @property
    def tells_errors(self) -> bool:
        """Whether texts of errors may leave, which can hold values of data."""
        return self.policy.errors if self.policy else not is_site(self.context)

    def logged(self, error: Exception) -> str:
        """Log an error; return what may leave of it: its class, and the line of code
        that raised it.
        """
        log(ERROR, "client %s failed", client_id(self.context), exc_info=error)
        if isinstance(error, SiteFault | Refusal):
            return str(error)
        *_, (frame, line) = walk_tb(error.__traceback__)
        module = frame.f_globals.get("__name__")
        return f"{type(error).__name__} in {module}, line {line}: the site's log says more"

    @cached_property
    def digest(self) -> str:
        """The digest of the settings; "" if they name code that is not allowed."""
        from fedapps.settings.reading import read_settings

        config = self.context.run_config
        if code_named(config) and self.refusal:
            return ""
        with suppress(UserError):
            return settings_digest(read_settings(config).deployed().flat())
        return ""

    def note(self, event: str, message: Message, context: Context, **facts: Any) -> None:
        """Append an event to the audit log, if there is one."""
        folder = self.context.node_config.get("store-dir")
        path = self.context.node_config.get("audit", str(Path(str(folder), FILE)) if folder else "")
        if not path:
            return
        kind = message.metadata.message_type
        AuditLog(Path(str(path)))(
            event,
            run=context.run_id,
            method=context.run_config.get("method"),
            # reading the settings would take longer than all of an introduction
            settings="" if kind == IDENTITY else self.digest,
            client=client_id(context),
            type=kind,
            round=round_in(message),
            **facts,
        )


class Guarded(ClientApp):
    """An app behind a site's policy and audit log."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self.app = app
        self.site: Site | None = None  # while the parts of a message for many are answered

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message, or refuse it."""
        kind = message.metadata.message_type
        answer = super().__call__ if kind in (MANY, CLIENTS) else self.app
        if not is_site(context):
            return answer(message, context)
        if kind not in (MANY, CLIENTS):  # what is counted and logged is done once
            answer = partial(alone, self.app)
        outer = self.site
        self.site = site = outer or Site(context)
        facts: dict[str, Any] = {"bytes-down": content_bytes(message.content)}
        event = "failed"
        try:
            reply, why = None, site.refuses(kind, context)
            if not why:
                with memory(site.policy.memory if site.policy else 0.0):
                    reply = answer(message, context)
                if kind not in (MANY, CLIENTS, IDENTITY) and site.policy and reply.has_content():
                    why = site.policy.refuses_reply(reply.content)
            if reply is None or why:
                event, facts["reason"] = "refused", why
                text = f"refused by the policy of site {client_id(context)}: {why}"
                log(ERROR, text)
                return _error(message, text)
            if reply.has_content():
                event, facts["bytes-up"] = "answered", content_bytes(reply.content)
            return reply
        except Exception as error:
            facts["reason"] = type(error).__name__
            if site.tells_errors:
                raise
            return _error(message, site.logged(error))
        finally:
            self.site = outer
            site.note(event, message, context, **facts)


@contextmanager
def memory(gigabytes: float) -> Iterator[None]:
    """Refuse this process more memory than that: settings of a server can name a net or
    a picture of any size. 0: as much as there is.
    """
    least, most = resource.getrlimit(resource.RLIMIT_DATA)
    if gigabytes:
        resource.setrlimit(resource.RLIMIT_DATA, (int(1e9 * gigabytes), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (least, most))


def told(function: Callable[[Context], T]) -> Callable[[Context], T]:
    """Return a function of a site whose errors may leave it."""

    @wraps(function)
    def call(context: Context) -> T:
        try:
            return function(context)
        except Exception as error:
            if (site := Site(context)).tells_errors:
                raise
            raise SiteFault(site.logged(error)) from None

    return call


def _error(message: Message, text: str) -> Message:
    return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, text), reply_to=message)


def today() -> str:
    """Return the day, in UTC."""
    return datetime.now(UTC).date().isoformat()


def count_round(policy: "SitePolicy", context: Context, kind: str) -> str:
    """Count a round of training or of evaluation on disk, before it is answered. Return
    why it is not to be answered, or "".

    A run is its results folder, so that a resumed run goes on counting.
    """
    if "store-dir" not in context.node_config:
        return "rounds are counted on disk: add store-dir to its node configuration"
    folder, day = Path(str(context.node_config["store-dir"])), today()
    path, run = folder / COUNTS, str(context.run_config.get("out") or context.run_id)
    with locked(folder / f"{COUNTS}.lock"):
        try:
            text = path.read_text() if path.exists() else '{"runs": {}}'
            known: dict[str, Any] = json.loads(text)
            runs = dict(list(known["runs"].items())[-MOST_RUNS:])
            of_run = dict(runs.pop(run, {}))
            day = max(day, known.get("day", day))  # a clock that is set back counts on
            of_day = dict(known["rounds"]) if known.get("day") == day else {}
            of_run[kind], of_day[kind] = of_run.get(kind, 0) + 1, of_day.get(kind, 0) + 1
        except (ValueError, TypeError, KeyError, AttributeError):
            return f"{path} cannot be read: delete it to count from 0 again"
        for limit, number, name in (
            (policy.rounds_per_run, of_run[kind], "rounds-per-run"),
            (policy.rounds_per_day, of_day[kind], f"on {day} rounds-per-day"),
        ):
            if limit and number > limit:
                return f"{name} = {limit} is used up"
        runs[run] = of_run
        write_text(path, json.dumps({"day": day, "rounds": of_day, "runs": runs}))
    return ""
