"""Base of the strategies: ``start`` is :func:`run_rounds`.

In a loop of somebody else (a wrapper of Flower's, a ``start`` of the user's own, as in
Flower's advanced-pytorch) nobody checks the replies of a plain grid, and Flower's
loops do not say how many rounds there are. So the strategy sees to that by itself.
"""

import sys
from collections.abc import Iterable, Iterator
from logging import WARNING
from types import FrameType
from typing import Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapps.algorithms.contract.sent import Reads
from fedapps.strategies.base.acknowledgement import Acknowledgements, asked_of, notice_noise
from fedapps.strategies.base.arguments import checked
from fedapps.strategies.base.capabilities import is_flowers_privacy
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.messages import chain, error_line, trains
from fedapps.strategies.base.reply_validation import Rules
from fedapps.strategies.base.rounds import EvaluateFn, Plan, ShouldStop, run_rounds


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame := frame.f_back if frame else None:
        yield frame


def _are_ours(callers: Iterable[FrameType]) -> bool:
    return any(frame.f_code is run_rounds.__code__ for frame in callers)


class RunsRounds(Strategy):
    """Base of strategies whose :meth:`start` is :func:`run_rounds`."""

    #: What the method's clients read, if they do more than FedAvg's.
    client_half: Reads = ()
    #: Whether the method's schedule depends on the number of rounds.
    scheduled = False
    #: In another loop: what it has heard, the model of the round, the number of rounds.
    _heard: Acknowledgements | None = None
    _loop_model: ArrayRecord | None = None
    _loop_rounds: int | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check the arguments of this package's strategies when they are made."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls) and cls.__module__.startswith("fedapps."):
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    def enter_loop(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Notice whose loop is about to send ``arrays`` for training; in another than
        :func:`run_rounds`, tell a client grid what replies must hold.
        """
        callers = list(_callers())
        if _are_ours(callers):
            self._heard = self._loop_model = None
            return
        self._loop_model = arrays
        if isinstance(grid, ClientGrid):
            grid.rules.follow(self)
        if self._heard is None:
            self._heard = Acknowledgements()
            if any(
                is_flowers_privacy(frame.f_locals["self"])
                for frame in callers
                if "self" in frame.f_locals
            ):
                notice_noise(self)

    def answered(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies to use: all in :func:`run_rounds`, which has checked them.

        In another loop those that failed or are invalid are named and left out, and
        clients that do not do their half of the method are named.
        """
        heard = list(replies)
        if _are_ours(_callers()):
            return heard
        rules, valid = Rules(), []
        rules.follow(self)
        models = [inner._loop_model for inner in chain(self) if isinstance(inner, RunsRounds)]
        sent = RecordDict({f"{i}": one for i, one in enumerate(models) if one is not None})
        rules.like_model = rules.like_model and bool(sent)
        for reply in heard:
            node, kind = reply.metadata.src_node_id, reply.metadata.message_type
            asked = Message(sent, message_type=kind, dst_node_id=node)
            if why := error_line(reply) or rules.checked(asked, reply, f"node {node}"):
                log(WARNING, "node %d left out: %s", node, why)
            else:
                valid.append(reply)
        if self._heard and self.client_half:
            own = asked_of(self)[: len(self.client_half)]
            trained = [(one.metadata.src_node_id, one) for one in valid if trains(one)]
            self._heard.hear(own, trained)
        return valid

    def rounds_in(self, config: ConfigRecord, server_round: int) -> int:
        """Return how many rounds the run has, by this configuration or an earlier one.
        A loop that has not sent it is taken to end with ``server_round``; a method with
        a schedule warns once.
        """
        if "num-rounds" in config:
            self._loop_rounds = int(str(config["num-rounds"]))
        elif self._loop_rounds is None and self.scheduled:
            self._loop_rounds = 0
            log(
                WARNING,
                "%s goes by the number of rounds, which this loop does not send, so it takes every "
                'round for the last: before configure_train, add train_config["num-rounds"] = '
                "num_rounds",
                type(self).__name__,
            )
        return self._loop_rounds or server_round

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: ShouldStop | None = None,
        **plan: Unpack[Plan],
    ) -> Result:
        """Run the rounds; see :func:`run_rounds`, which takes any strategy."""
        return run_rounds(
            self,
            grid,
            initial_arrays,
            num_rounds,
            timeout,
            train_config,
            evaluate_config,
            evaluate_fn,
            should_stop,
            **plan,
        )
