"""Secure sums around a strategy that needs only sums: the server learns the weighted
mean of the clients' replies, and no single reply.

    SecureSum(FedAdam()).start(grid=grid, initial_arrays=arrays, num_rounds=20)

and at the clients ``app = SecureApp(app)``. The clients mask what they send so that the
masks cancel in the sum. With ``SecureSum(PrivateSum(FedAvg(), PrivacyOptions(...)))``
they also add noise. Threat model, cost and limits: docs/secure-sums.md.

Sources: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, doi
10.1145/3133956.3133982, with the consistency check for a server that lies; Bell,
Bonawitz, Gascon, Lepoint, Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", CCS 2020, doi 10.1145/3372297.3417885, for ``neighbours``.

Contract: that of the wrapped strategy. A reply holds one record of real or whole
arrays, and numbers as metrics. Text in it does not reach the server.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from logging import INFO
from typing import Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedapps.algorithms.common.options import Options, option
from fedapps.algorithms.secure.vector import Terms
from fedapps.strategies.base.capabilities import (
    Capabilities,
    declared,
    declarer,
    is_private,
    needs_only_sums,
    require_declaration,
    weigher,
)
from fedapps.strategies.base.client_grid import ClientGrid
from fedapps.strategies.base.messages import weight_key
from fedapps.strategies.base.reply_validation import UpdateBound
from fedapps.strategies.base.rounds import EvaluateFn, Plan, ShouldStop
from fedapps.strategies.base.secure_grid import SecureGrid
from fedapps.strategies.base.secure_sessions import Protocol
from fedapps.strategies.base.wrapper import Wrapper
from fedapps.strategies.private import PrivateSum


@dataclass(frozen=True)
class SecureOptions(Options):
    """Options of secure sums."""

    on: bool = option(False, "the server learns sums over the clients, and no single reply")
    bound: float = option(
        16.0,
        "largest change of a number of the model; a client with a larger one is left out",
        low=0,
        open_low=True,
    )
    max_weight: int = option(
        65_535, "largest number of samples of a client; one with more is left out", low=1
    )
    corrupted: int = option(0, "clients of a round that may work together with the server", low=0)
    consistency: bool = option(
        True,
        "clients sign the list of survivors, against a server that lies: one more short phase",
    )
    neighbours: int = option(
        0, "clients that a client masks with, an even number; 0: all others", low=0
    )
    clear_losses: bool = option(
        False,
        "rules that weight clients by their losses (aaggff-s, aaggff-d, afl, term): the server "
        "sees each client's loss, with prior = samples also its sample count, but no model",
    )
    min_change: int = option(
        0,
        "two sums in a row have equal members or differ by this many clients; 0: any number",
        low=0,
    )

    def check(self) -> None:
        """Check combinations of options."""
        if self.neighbours % 2:
            raise ValueError(f"neighbours = {self.neighbours}: must be an even number")
        if self.min_change and self.clear_losses:
            raise ValueError(
                f"min-change = {self.min_change}: weights that change from sum to sum tell clients "
                "apart, too: set it to 0, or clear-losses = false"
            )
        if self.neighbours and self.consistency:
            raise ValueError(
                f"neighbours = {self.neighbours}: a server that lies could choose them: set it to "
                "0, or consistency = false if the server is known to follow the protocol"
            )


def secured(
    grid: Grid, strategy: Strategy, options: SecureOptions, bound: UpdateBound | None = None
) -> Grid:
    """Return ``grid`` with secure sums for the training messages of ``strategy``:
    inside of a ``ClientGrid``, around any other. ``bound``: what the clients do with
    updates whose norm is too large. Raises ``ValueError`` if the strategy needs more
    than sums.
    """
    check_sums(strategy, options)
    by_losses = weigher(strategy) if options.clear_losses else None
    if by_losses:
        names = ", ".join(by_losses.weighing_metrics)
        log(INFO, "secure sums: models are masked, but each client's %s is in the clear", names)
    protocol = Protocol(
        options.neighbours, options.corrupted, options.consistency, options.min_change
    )
    terms = partial(_terms, strategy, options, bound or UpdateBound())
    if isinstance(strategy, PrivateSum):
        strategy.secured = True
    if isinstance(grid, ClientGrid):
        grid.grid = secure = SecureGrid(grid.grid, protocol, terms, by_losses)
        secure.sessions.name_of = grid.client_id
        return grid
    return SecureGrid(grid, protocol, terms, by_losses)


def check_sums(strategy: Strategy, options: SecureOptions) -> None:
    """Raise ``ValueError`` if a strategy needs more than sums of the replies, and than
    losses if the options show these.
    """
    found = require_declaration(strategy, "secure sums")
    if is_private(strategy) and not isinstance(strategy, PrivateSum):
        raise ValueError(
            f"secure sums: {type(strategy).__name__} clips single clients' updates at the server, "
            "which sees sums only: use PrivateSum, whose clients clip and add the noise"
        )
    if found.replies == "other":
        raise ValueError(
            f"secure sums: the replies to {declarer(strategy)} are no vectors that could be added: "
            "choose a method whose clients send models, updates or sums"
        )
    if weigher(strategy):
        if options.clear_losses:
            return
        raise ValueError(
            f"secure sums: {declarer(strategy)} weights clients by their losses, which the server "
            "would have to see: set secure.clear-losses = true to mask the models only"
        )
    if not needs_only_sums(strategy):
        raise ValueError(
            f"secure sums: {declarer(strategy)} looks at single clients' replies (their losses, "
            "models or distances), and a secure sum hides them: choose a method that needs sums "
            "only, such as fedavg, fedadam, scaffold or superfed-mm"
        )


def _terms(strategy: Strategy, options: SecureOptions, bound: UpdateBound, clients: int) -> Terms:
    capabilities = declared(strategy) or Capabilities()
    by_losses = weigher(strategy)
    norm = bound.max_update_norm if capabilities.replies in ("model", "update") else 0.0
    clip, noise = bound.on_large_update == "clip", 0.0
    if isinstance(strategy, PrivateSum):
        if norm:
            raise ValueError(
                f"max-update-norm = {norm:g}: clipping-norm = {strategy.options.clipping_norm:g} "
                "bounds the updates: set max-update-norm to 0"
            )
        norm, clip, noise = strategy.options.clipping_norm, True, strategy.options.noise_multiplier
    terms = Terms(
        replies=capabilities.replies,
        weight=weight_key(strategy),
        weighted=bool(by_losses) or capabilities.aggregation == "weighted average",
        clients=clients,
        bound=float(options.bound),
        max_weight=options.max_weight,
        max_norm=float(norm),
        clip=clip,
        clear=list(by_losses.weighing_metrics) if by_losses else [],
        noise=float(noise),
    )
    terms.check()
    return terms


class StartArguments(Plan, total=False):
    """Arguments of a strategy's ``start``, and those of this suite."""

    timeout: float
    train_config: ConfigRecord
    evaluate_config: ConfigRecord
    evaluate_fn: EvaluateFn
    should_stop: ShouldStop


class SecureSum(Wrapper):
    """Wrapper around ``strategy``, which takes part in its own loop: call
    :meth:`start`.
    """

    def __init__(self, strategy: Strategy, options: SecureOptions | None = None) -> None:
        self.strategy, self.options = strategy, options or SecureOptions(on=True)
        check_sums(strategy, self.options)

    @property
    def capabilities(self) -> Capabilities:
        """As the wrapped strategy's, but nobody else decides the weights."""
        wrapped = require_declaration(self.strategy, "secure sums")
        return Capabilities(wrapped.replies, "single replies", beside=wrapped.beside)

    def start(  # type: ignore[override]
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        **arguments: Unpack[StartArguments],
    ) -> Result:
        """Run the wrapped strategy's rounds with secure sums; arguments are those of
        its own ``start``.
        """
        safe = secured(grid, self.strategy, self.options)
        given: dict[str, Any] = {**arguments}  # Flower's strategies do not take all of them
        return self.strategy.start(safe, initial_arrays, num_rounds, **given)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not offered: the grid would be one without secure sums."""
        raise ValueError("SecureSum: call its start(), which makes the grid for it")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the wrapped strategy."""
        return self.strategy.aggregate_train(server_round, replies)
