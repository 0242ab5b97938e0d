"""Whether the clients do their half of a strategy.

Without its client half, Ditto or FedProx is FedAvg: the replies look the same. So the
clients of this package say in every training reply which methods made it: text under
``method`` in a ConfigRecord, names separated by spaces. A strategy declares in
``client_half`` what its clients read; where replies do not acknowledge that, it says so
once, or ends the run if it is ``strict``.
"""

from collections.abc import Iterable
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.contract.sent import METHOD, Reads, Sent
from fedapps.strategies.base.capabilities import declared, is_flowers_privacy
from fedapps.strategies.base.messages import wrapped

#: Strategies with a class in ``clients`` for a training loop of the user's own.
LOOPS = frozenset({"APFL", "Ditto", "FedDyn", "FedProx", "FedRep", "Scaffold", "SuPerFed"})
MOST_NAMED = 5
GUIDE = "docs/strategy-in-your-project.md"


def asked_of(strategy: Strategy) -> list[tuple[str, type[Sent]]]:
    """Return (strategy, what its clients read) of a strategy and those that it
    wraps.
    """
    half: Reads = getattr(strategy, "client_half", ())
    name = next((k.__name__ for k in type(strategy).__mro__ if "client_half" in vars(k)), "")
    current = getattr(strategy, "current", None)
    inner = current if isinstance(current, Strategy) else wrapped(strategy)
    return [(name, sent) for sent in half] + (asked_of(inner) if inner else [])


def methods_in(content: RecordDict) -> set[str]:
    """Return the methods that a reply acknowledges."""
    words = (r.get(METHOD) for r in content.values() if isinstance(r, ConfigRecord))
    return {name for text in words if isinstance(text, str) for name in text.split()}


class Acknowledgements:
    """What a run has heard of; ``strict``: a missing acknowledgement ends it."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self._said: set[str] = set()

    def hear(
        self,
        asked: list[tuple[str, type[Sent]]],
        replies: Iterable[tuple[int | str, Message]],
        summed: bool = False,
    ) -> None:
        """Check the training replies (client, reply) of a round; ``summed``: those of a
        secure sum, which acknowledge what all clients do.

        Raises ``ValueError`` if one lacks an acknowledgement and the run is strict.
        """
        if not asked:
            return
        made_by = [(client, methods_in(reply.content)) for client, reply in replies]
        for name, sent in asked:
            without = [client for client, methods in made_by if sent.method not in methods]
            if without and name not in self._said:
                self._said.add(name)
                text = _missing(name, sent.method, [] if summed else without, len(made_by))
                if self.strict:
                    raise ValueError(text)
                log(WARNING, text)


def _missing(name: str, method: str, without: list[int | str], count: int) -> str:
    named = ", ".join(str(client) for client in without[:MOST_NAMED])
    more = ", ..." if len(without) > MOST_NAMED else ""
    which = f"client{'s' if len(without) > 1 else ''} {named}{more}" if without else "a secure sum"
    loop = f" (around your training function: fedapps.clients.{name}Loop)" if name in LOOPS else ""
    number = len(without) or "at least one"
    return (
        f"{name}: {number} of {count} clients do not acknowledge its client half ({which}). "
        f"Without it the method is not {name}, but FedAvg in most cases. Use "
        f"fedapps.clients.{name}Client{loop}. If your own code does this half, return {method!r} "
        f"under {METHOD!r}, among the metrics of fit or in a ConfigRecord of the reply "
        f"(see {GUIDE})"
    )


def notice_noise(strategy: Strategy) -> None:
    """Warn if a wrapper for differential privacy is around a strategy that takes more
    than an average from the replies.
    """
    found = declared(strategy)
    if found is not None and found.aggregation == "single replies":
        log(
            WARNING,
            "%s runs inside another strategy. Flower's wrappers for differential privacy put noise "
            "on the new model only: the weights or the state that %s computes from single "
            "clients' replies carry no noise, so the epsilon does not hold. Use "
            "fedapps.strategies.Private around a method that averages (docs/privacy.md)",
            *[_inside(strategy)] * 2,
        )


def _inside(strategy: Strategy) -> str:
    inner = wrapped(strategy) if is_flowers_privacy(strategy) else None
    return type(inner or strategy).__name__
