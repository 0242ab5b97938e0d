"""What the round loop logs, in Flower's words."""

import io
from logging import INFO

from flwr.app import ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp.strategy import Result, Strategy

from fedapps.strategies.base.capabilities import counts_replies
from fedapps.strategies.base.exchange import Exchange

#: Rounds whose metrics the log repeats at the end.
MOST_TOLD = 200
#: A score on the server, and what a strategy made of the clients' metrics.
SCORED = "\t└──> MetricRecord: %s"
AGGREGATED = "\t└──> Aggregated MetricRecord: %s"


def told(config: ConfigRecord) -> str:
    """Return a configuration for the log, without its bytes."""
    words = [f"'{k}': {'<bytes>' if isinstance(v, bytes) else v}" for k, v in config.items()]
    return f"{{{', '.join(words)}}}" if words else "(empty!)"


def log_result(result: Result) -> None:
    """Log the result as Flower does. Of a very long run, log only the last rounds:
    Flower takes minutes to format thousands.
    """
    parts = [
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
    ]
    last = [dict(list(part.items())[-MOST_TOLD:]) for part in parts]
    long = any(len(part) > MOST_TOLD for part in parts)
    log(INFO, "Final results:" if not long else f"Final results, of the last {MOST_TOLD} rounds:")
    for line in io.StringIO(str(Result(result.arrays, *last))):
        log(INFO, "\t%s", line.strip("\n"))


def log_replies(phase: str, strategy: Strategy, exchange: Exchange) -> None:
    """Log the number of replies in Flower's words, unless Flower's own code does so and
    sees all failures.
    """
    if exchange.failures or (exchange.clients and not counts_replies(strategy, phase)):
        log(
            INFO,
            "%s: Received %s results and %s failures",
            phase,
            len(exchange.clients),
            len(exchange.failures),
        )


def note(table: dict[int, MetricRecord], number: int, metrics: MetricRecord | None) -> None:
    """Note, and log, what a strategy made of the clients' metrics."""
    if metrics is not None:
        log(INFO, AGGREGATED, metrics)
        table[number] = metrics
