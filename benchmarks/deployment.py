"""Time of a round on SuperNodes, and what a client process needs on a small device.

    python benchmarks/deployment.py rounds [--rounds 6] [--methods "fedavg superfed-mm"]
    python benchmarks/deployment.py devices [--jobs "METHOD:TASK ..."]

rounds: three SuperNodes of this machine with TLS. Measures the whole round, the
simultaneous start of the three client processes up to the first line of the app, and
the local steps in one process. The rest of the round is Flower: polling for messages
and moving them. The first round includes the app's installation and does not count.

devices: runs each job (METHOD, METHOD:TASK or METHOD:key=value,...) for two rounds in
this process, on the default data of its task, and records the message to client 0 in
the second round. Then a new process answers that message, like the process that a
SuperNode starts for every message: Flower's program, the app, the client, its training.
Peak memory is resident memory, as Linux counts it; start is the time (wall clock and
CPU) until the app is ready, answer is the rest. Bytes are those of a round's training
message and its reply.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

# from a checkout that is not installed
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flwr.app import Message
from flwr.common.serde import context_to_proto, message_to_proto

from benchmarks.common import ROOT, options, show
from fedapps.deployment.local import Deployment
from fedapps.engines.inline import InlineGrid
from fedapps.records.rounds import read_rounds
from fedapps.runs.client_app import app
from fedapps.runs.execution import execute
from fedapps.runs.prepare import prepare_folder
from fedapps.settings.reading import read_settings

# --- rounds ---------------------------------------------------------------------------

SITES = 3
JOB = [
    "num-clients=3",
    "clients-per-round=0",
    "evaluate-every=0",
    "train.local-epochs=1",
    "checkpoint-every=0",
]
# Same order as in a ClientApp process: Flower's program and its imports, then the app.
START = (
    "import flwr.supernode.cli.flwr_clientapp, flwr.supernode.runtime.run_clientapp; "
    "import fedapps.runs.client_app, fedapps.runs.client_factory"
)


def round_rows(methods: Sequence[str], rounds: int) -> Iterator[list[str]]:
    """Yield a row per method."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    sites = {f"site-{i}": {"partition-id": i, "num-partitions": SITES} for i in range(SITES)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Deployment.create(folder / "deployment", sites) as deployment:
            deployment.start()
            for method in methods:
                whole, steps = (
                    run(method, rounds, folder, environment, engine, deployment.folder)
                    for engine in ("deployment", "inline")
                )
                start = median(parallel_start(environment) for _ in range(3))
                cells = (whole, start, steps, max(whole - start - steps, 0.0))
                yield [method, *(f"{seconds:.2f}" for seconds in cells)]


def run(
    method: str,
    rounds: int,
    folder: Path,
    environment: dict[str, str],
    engine: str,
    deployment: Path,
) -> float:
    """Return the median seconds of a round after the first, in which nothing is
    evaluated.
    """
    out = folder / f"{method}-{engine}"
    words = ["run", f"method={method}", f"num-rounds={rounds + 2}", *JOB, "--engine", engine]
    command = [sys.executable, "-m", "fedapps", *words, "--deployment", deployment, "--out", out]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    # the first installs the app, the last one is evaluated
    return median(row["seconds"] for row in read_rounds(out)[1:-1])


def parallel_start(environment: dict[str, str]) -> float:
    """Return the seconds that as many client processes as there are sites need to
    start, all at once.
    """
    begin = time.perf_counter()
    for process in [
        subprocess.Popen([sys.executable, "-c", START], env=environment) for _ in range(SITES)
    ]:
        process.wait()
    return time.perf_counter() - begin


# --- small devices --------------------------------------------------------------------

DEVICE_JOBS = [
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
]
# As ``flwr-clientapp`` does: Flower's program, the app, the client.
CHILD = """
import json, re, sys, time
from importlib.machinery import PathFinder
class WithoutPandas(PathFinder):  # as with the extra [site]; pyarrow imports it where it is
    @classmethod
    def find_spec(cls, name, *more):
        return None if name == "pandas" else super().find_spec(name, *more)
sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutPandas
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


def device_rows(jobs: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row per job."""
    with tempfile.TemporaryDirectory() as scratch:
        for job in jobs:
            one = measure(job, Path(scratch))
            times = [f"{one[key]:.1f} ({one[f'{key}-cpu']:.1f})" for key in ("start", "answer")]
            kilobytes = [f"{one[way] / 1000:.1f}" for way in ("down", "up")]
            torch = "yes" if one["torch"] else "no"
            yield [job.replace(":", ", "), f"{one['peak']:.0f}", torch, *times, *kilobytes]


def main() -> None:
    """Measure and print."""
    given = options(
        __doc__,
        {
            "study": ("rounds", "devices"),
            "--rounds": 6,
            "--methods": "fedavg superfed-mm",
            "--jobs": " ".join(DEVICE_JOBS),
        },
    )
    if given.study == "rounds":
        columns = ("method", "s a round", "start of the client processes", "local steps")
        rows = round_rows(given.methods.split(), given.rounds)
        show("Three SuperNodes", (*columns, "polling and messages"), rows)
    else:
        columns = ("method, task", "peak, MB", "PyTorch", "start, s (CPU)", "answer, s (CPU)")
        columns += ("down, kB a round", "up, kB a round")
        show("A client process", columns, device_rows(given.jobs.split()))


if __name__ == "__main__":
    main()
