"""A million fuzzed replies through the wire format and the checks of a phase. No reply
may raise an exception, and no accepted reply may spoil a mean.

    python benchmarks/fuzz_messages.py [--messages 1000000] [--seconds S] [--seed 0]

Every step takes the replies of four clients, changes one at random
(``tests/strange.py``: bytes, headers, values, structure, metrics, configuration),
checks it alone and, if it passes, all four together, caps weights and averages, by
turns as for a method whose replies are models (with and without a bound), updates or
something else, and as for a strategy of Flower's own. Prints the counts by reason. An
exception ends the script with the seed and number of the message that raised it.
"""

import copy
import math
import re
import sys
import time
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import options
from fedapps.algorithms.contract.wire import read
from fedapps.records.measures import mean_curves, summarise
from fedapps.strategies.base.flower_private import identify_process, number_message
from fedapps.strategies.base.messages import (
    arrays_of,
    average_arrays,
    average_metrics,
    capped,
    metrics_of,
    to_record,
)
from fedapps.strategies.base.reply_validation import Rules, UpdateBound
from tests.strange import copied, mutate

CLIENTS = 4
MODEL = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "b": np.zeros(3),
    "count": np.array(7),
}
BOUND = UpdateBound(2.0, "clip", 10.0)
RULES = {
    "model": Rules(weight="num-examples"),
    "model, bounded": Rules(weight="num-examples", bound=BOUND),
    "update": Rules(like_model=False, updates=True, weight="num-examples", bound=BOUND),
    "other": Rules(like_model=False, weight="num-examples"),
    "Flower's": Rules(weight="num-examples", alike=True),
}


def valid_content(client: int) -> RecordDict:
    """Return the reply of an honest client."""
    arrays = to_record(
        list(MODEL), [np.asarray(value + client, value.dtype) for value in MODEL.values()]
    )
    metrics = MetricRecord(
        {
            "num-examples": 10 + client,
            "loss": 0.5,
            "accuracy": 0.5,
            "x-grid": [0.0, 1.0],
            "x-accuracy": [0.1, 0.2],
        }
    )
    return RecordDict({"arrays": arrays, "metrics": metrics})


VALID = [valid_content(client) for client in range(CLIENTS)]


@cache
def checked(kind: str, client: int, sent: Message) -> RecordDict:
    """Return the content of an honest client's reply after the checks."""
    reply = Message(valid_content(client), reply_to=sent)
    assert not RULES[kind].fault(sent, reply)
    return reply.content


@cache
def envelope(client: int, sent: Message) -> Message:
    """Return a reply of a client, for any content."""
    return Message(valid_content(client), reply_to=sent)


def try_one(
    rules: Rules, kind: str, number: int, seed: int, sent: Message, reasons: Counter[str]
) -> None:
    """Mutate one of the replies, check it, compare all and average them. A skipped
    reply is not used any further.
    """
    rng = np.random.default_rng([seed, number])
    victim = int(rng.integers(CLIENTS))
    replies = [envelope(client, sent) for client in range(CLIENTS)]
    replies[victim].content = mutate(VALID[victim], rng)
    if reason := rules.fault(sent, replies[victim]):
        reasons[_kind_of(reason)] += 1
        return
    for client, reply in enumerate(replies):
        if client != victim:  # metrics are changed by what follows, arrays are not
            reply.content = copied(checked(kind, client, sent))
    kept: list[tuple[int | str, Message]] = list(enumerate(replies))
    odd = rules.agreement.odd(kept, rules.alike)
    for place, reason in odd.items():
        reasons[_kind_of(reason)] += 1
        assert kept[place][0] == victim, (
            f"client {kept[place][0]} is honest and was skipped: {reason}"
        )
    if odd:
        return
    reasons["used"] += 1
    capped(kept, "num-examples", 10.0)
    contents = [reply.content for _, reply in kept]
    assert all(
        np.isfinite(np.asarray(value)).all()
        for value in average_metrics(contents, "num-examples").values()
    )
    metrics = {client: metrics_of(reply.content) for client, reply in kept}
    assert 0 <= summarise(metrics)["accuracy-mean"] <= 1
    mean_curves(metrics)
    if kind not in ("update", "other"):
        mean = average_arrays(
            contents, [float(str(metrics_of(content)["num-examples"])) for content in contents]
        )
        assert {name: (array.dtype, tuple(array.shape)) for name, array in mean.items()} == {
            name: (value.dtype.name, value.shape) for name, value in MODEL.items()
        }
        assert all(np.isfinite(read(array)).all() for array in mean.values())
    else:
        for record in arrays_of(contents[victim]):
            assert all(np.isfinite(read(array)).all() for array in record.values())


def _kind_of(reason: str) -> str:
    text = re.sub(r"'.*?'|\[.*?\]|\(.*?\)", "...", reason)  # names and values are the message's own
    return re.sub(r"[-\d.+e]*\d[-\d.+e]*|\bnan\b|\binf\b", "N", text)[:90]


def main() -> None:
    """Run and print the counts."""
    chosen = options(__doc__, {"--messages": 1_000_000, "--seconds": math.inf, "--seed": 0})
    # messages cannot be made outside of a run
    identify_process(1)
    warnings.simplefilter("error")  # a number that overflows here should have been rejected before
    # of Python, which parses a header
    warnings.filterwarnings("ignore", message="invalid escape", category=SyntaxWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    arrays: ArrayRecord = to_record(list(MODEL), list(MODEL.values()))
    sent = Message(
        RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1})}),
        2,
        MessageType.TRAIN,
    )
    number_message(sent)
    reasons: Counter[str] = Counter()
    began, deadline, kinds, number = (
        time.process_time(),
        time.monotonic() + chosen.seconds,
        list(RULES),
        0,
    )
    while number < chosen.messages and time.monotonic() < deadline:
        kind = kinds[number % len(kinds)]
        try:
            try_one(copy.copy(RULES[kind]), kind, number, chosen.seed, sent, reasons)
        except Exception:
            print(f"message {number} of seed {chosen.seed}, as for {kind}:", file=sys.stderr)
            raise
        number += 1
    print(f"{number} messages, {time.process_time() - began:.0f} s of CPU time, no exception")
    for reason, count in reasons.most_common(25):
        print(f"{count:9d}  {reason}")


if __name__ == "__main__":
    main()
