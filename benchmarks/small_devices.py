"""Cost of a client process on a small device, by method: peak memory, seconds and bytes
per round.

    python benchmarks/small_devices.py [METHOD or METHOD:TASK or METHOD:key=value,...
    ...]

Runs each method for two rounds in this process, on the default data of its task, and
records the message to client 0 in the second round. Then a new process answers that
message, like the process that a SuperNode starts for every message: Flower's program,
the app, the client, its training. Peak memory is resident memory, as Linux counts it;
start is the time (wall clock and CPU) until the app is ready, answer is the rest. Bytes
are those of a round's training message and its reply. Prints a Markdown table.
"""

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # from a checkout that is not installed

from flwr.app import Message  # noqa: E402
from flwr.common.serde import context_to_proto, message_to_proto  # noqa: E402

from fedapps.engines.inline import InlineGrid  # noqa: E402
from fedapps.runs.client_app import app  # noqa: E402
from fedapps.runs.execution import execute  # noqa: E402
from fedapps.runs.prepare import prepare_folder  # noqa: E402
from fedapps.settings.reading import read_settings  # noqa: E402

JOBS = (
    "fedfw:lasso",
    "fedfw:sparse-logistic",
    "fedfw-plus:matrix-completion",
    "dfw-trace:matrix-completion",
    "fedboost:point-mass",
    "aflboost:unigram",
    "ffgb:tabular",
    "ffgb-c:tabular",
    "histogram-boosting:tabular",
    "fedavg:tabular",
    "fedavg:digits",
    "superfed-mm:digits",
    "fedevg:digits",
)
# As ``flwr-clientapp`` does: Flower's program, the app, the client.
CHILD = """
import json, re, sys, time
begun = time.perf_counter()
import flwr.supernode.cli.flwr_clientapp, flwr.supernode.runtime.run_clientapp
from flwr.common.serde import context_from_proto, message_from_proto
from flwr.proto.message_pb2 import Context, Message
from flwr.supercore.task_identity import TaskIdentity
from fedapps.runs.client_app import app
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
message, context = (
    convert(kind.FromString(open(path, "rb").read()))
    for convert, kind, path in (
        (message_from_proto, Message, sys.argv[1]),
        (context_from_proto, Context, sys.argv[2]),
    )
)
message.metadata.__dict__["_message_id"] = "1"
started, used = time.perf_counter() - begun, time.process_time()
reply = app(message, context)
assert not reply.has_error(), reply.error
print(json.dumps({
    "start": started,
    "start-cpu": used,
    "answer": time.perf_counter() - begun - started,
    "answer-cpu": time.process_time() - used,
    "peak": int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024,
    "torch": "torch" in sys.modules,
    "modules": sorted({name.partition(".")[0] for name in sys.modules}),
    "up": sum(record.count_bytes() for record in reply.content.values()),
}))
"""


class Recorder(InlineGrid):
    """Keeps the last training message of client 0, and its state as it was before."""

    last: tuple[bytes, bytes, int] | None = None

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Record the message to client 0, then answer all."""
        listed = list(messages)
        for message in listed:
            if message.metadata.dst_node_id == 1000 and message.metadata.message_type == "train":
                down = sum(record.count_bytes() for record in message.content.values())
                written = (
                    message_to_proto(message).SerializeToString(),
                    context_to_proto(self.contexts[1000]).SerializeToString(),
                )
                self.last = (*written, down)
        return super().push_messages(listed)


def measure(job: str, folder: Path) -> dict[str, Any]:
    """Run two rounds of a job and return the cost of its client in its own process."""
    method, *more = job.split(":")
    given: dict[str, Any] = {
        "method": method,
        "num-rounds": 2,
        "num-clients": 10,
        "clients-per-round": 0,
        "evaluate-every": 0,
    }
    given |= {"checkpoint-every": 0}
    for word in more[0].split(",") if more else []:
        key, equals, value = word.partition("=")
        given |= (
            {key: json.loads(value) if value[:1].isdigit() else value} if equals else {"task": word}
        )
    settings = replace(read_settings(given), out=str(folder / job.replace(":", "-")))
    grid = Recorder(app, settings.num_clients, settings.flat())
    prepare_folder(settings, overwrite=True)
    execute(settings, grid, [])
    assert grid.last is not None, f"{job}: client 0 received no message"
    for name, content in zip(("message", "context"), grid.last[:2], strict=True):
        (folder / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder / "message"), str(folder / "context")],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    cost: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return cost | {"down": grid.last[2]}


def main(jobs: list[str]) -> None:
    """Measure and print."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(
        "| method, task | peak, MB | PyTorch | start, s (CPU) | answer, s (CPU) | down, kB a round "
        "| up, kB a round |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs:
            one = measure(job, Path(scratch))
            times = " | ".join(
                f"{one[key]:.1f} ({one[f'{key}-cpu']:.1f})" for key in ("start", "answer")
            )
            down, up = (f"{one[way] / 1000:.1f}" for way in ("down", "up"))
            print(
                f"| {job.replace(':', ', ')} | {one['peak']:.0f} | "
                f"{'yes' if one['torch'] else 'no'} | {times} | {down} | {up} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or list(JOBS))
