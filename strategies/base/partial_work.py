"""Partial work: a client that would be late takes fewer local steps, so that its reply
arrives by the deadline, and says how far it came (``rounds.late = "partial"``).

Source: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in
Heterogeneous Networks", MLSys 2020, arXiv 1812.06127 (FedProx), section 3: partial
solutions of stragglers are averaged with the usual weights.

Which share of the steps is done: on a simulated clock the largest one of whole steps
that is in time, by the model of the fleet. On a real clock the server sends the
seconds that the client's steps may take, and the client stops before a step would
exceed them.

Bias. Let client k take tau_k steps from w at the rate eta. To first order in eta,

    x_k - w = - eta tau_k grad F_k(w),

so the average with weights p_k moves w along sum_k p_k tau_k grad F_k(w) and rests
where sum_k p_k tau_k F_k is least, not sum_k p_k F_k: a client that does a share s of
its steps counts s times as much as it should. With momentum less than that, since a
short training ends before the buffer is full. The rest point does not move if the
shares do not depend on the client in the long run (stragglers are drawn anew in every
round, as in that paper's experiments), or if the F_k have a common minimum. It does
where slow clients hold data of their own. Long local trainings are biased less: x_k is
then near the minimum of F_k (plus the proximal term), which the last steps hardly
move. FedNova (Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020, arXiv 2007.07481) divides
each update by tau_k; that is not built here.
"""

from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from fedapps.algorithms.contract.sent import PartialWork
from fedapps.strategies.base.capabilities import declarer, require_declaration
from fedapps.strategies.base.messages import metrics_of

#: Claims of a larger share than the one that was asked for are rounding.
ROUNDING = 1e-9


def check_partial(strategy: Strategy, what: str) -> None:
    """Raise ``ValueError``, with a message that begins with ``what``, if a strategy
    cannot use the replies of clients that ended early.
    """
    found, name = require_declaration(strategy, what), declarer(strategy)
    for part in ("strategy", "first", "then"):  # of a wrapper, of a warm start
        if isinstance(inner := getattr(strategy, part, None), Strategy):
            check_partial(inner, what)
    why = getattr(strategy, "needs_all_steps", None)
    if why:
        raise ValueError(f"{what}: {name}: {why}: choose a method that averages models")
    fits = found.replies in ("model", "update") and found.later in (None, found.replies)
    if why is None and not fits:
        raise ValueError(
            f"{what}: the replies to {name} are not models or updates that local steps make: "
            "choose a method that averages models, such as fedavg or fedprox"
        )


def ask(question: Message, work: PartialWork) -> None:
    """Ask for work in part; other messages may share the content of this one."""
    content = RecordDict(dict(question.content.items()))
    for name, record in question.content.items():
        if isinstance(record, ConfigRecord):
            content[name] = ConfigRecord({**record, **work.to_config()})
    question.content = content


def came(reply: Message) -> tuple[PartialWork, str]:
    """Return what a reply says about its work, and what is wrong with that, or ""."""
    work = PartialWork.from_config(metrics_of(reply.content))
    share, seconds = work.share, work.seconds
    if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
        return PartialWork(), f"{work.key('share')} = {_short(share)}: must be in (0, 1]"
    if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
        return PartialWork(), f"{work.key('seconds')} = {_short(seconds)}: must be from 0 on"
    return work, ""


def take_out(reply: Message) -> None:
    """Remove from the metrics what a reply says about its work: not all clients say
    it, and no strategy averages it.
    """
    for record in reply.content.values():
        for key in PartialWork.keys() if isinstance(record, MetricRecord) else ():
            record.pop(key, None)


def _short(value: Any) -> str:
    return str(value)[:60]
