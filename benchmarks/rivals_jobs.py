"""The job of ``rivals.py`` in other frameworks; each runs in its own process.

    python benchmarks/rivals_jobs.py pfl|flower JOB.npz OUT.npz
    [PROCESSES]

JOB.npz holds the clients' samples, the start model and the settings as arrays. OUT.npz
gets the trained model and the seconds of each round. Only NumPy is imported before the
framework is known.
"""

import importlib
import itertools
import os
import sys
import time
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def read(path: str) -> Any:
    """Return the job: x, y, ends (of each client's rows), start (the model's arrays),
    and its numbers.
    """
    with np.load(path, allow_pickle=False) as file:
        job = SimpleNamespace(**{name: file[name] for name in file})
    for name in ("rounds", "sampled", "batch", "seed"):
        setattr(job, name, int(getattr(job, name)))
    job.rate = float(job.rate)
    job.start = [getattr(job, f"start-{i}") for i in range(int(job.arrays))]
    return job


def net_of(job: Any) -> Any:
    """Return the net with the job's start parameters."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    sizes = [job.start[0].shape[1], *(weight.shape[0] for weight in job.start[::2])]
    layers: list[Any] = []
    for place, (before, after) in enumerate(itertools.pairwise(sizes)):
        layers += [torch.nn.ReLU()] if place else []
        layers += [torch.nn.Linear(before, after)]
    net = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), job.start, strict=True):
            parameter.copy_(torch.from_numpy(value))
    return net


def clients_of(job: Any) -> list[tuple[Any, Any]]:
    """Return each client's training samples as tensors."""
    torch = importlib.import_module("torch")
    spans = zip([0, *job.ends[:-1]], job.ends, strict=True)
    x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)
    return [(x[a:b], y[a:b]) for a, b in spans]


def write(path: str, net: Any, times: list[float]) -> None:
    """Write the model and the seconds between the times."""
    arrays = {f"model-{i}": p.detach().numpy() for i, p in enumerate(net.parameters())}
    np.savez(path, **arrays, seconds=np.diff(times))


def pfl(job: Any, out: str) -> None:
    """pfl-research's FederatedAveraging, as in its benchmarks."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.selector import get_framework_module
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    net, times = net_of(job), [time.monotonic()]
    lossy = torch.nn.CrossEntropyLoss()
    net.loss = lambda x, y: lossy(net(x), y)
    net.metrics = lambda x, y: {}
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    np.random.seed(job.seed)  # noqa: NPY002 - pfl draws from it
    data = [PyTorchTensorDataset([x, y]) for x, y in clients_of(job)]
    users = FederatedDataset(
        data.__getitem__, get_user_sampler("minimize_reuse", list(range(len(data))))
    )

    class Note(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):  # type: ignore[no-untyped-def]
            times.append(time.monotonic())
            return False, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(job.rounds, job.rounds + 1, job.sampled, None),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=job.rate
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Note()],
    )
    if get_framework_module().distributed.global_rank == 0:
        write(out, net, times)


# --- Flower ---------------------------------------------------------------------------

#: Flower looks for plain assignments to the names of both apps.
APPS = """from benchmarks.rivals_jobs import flower_apps
apps = flower_apps()
server = apps[0]
client = apps[1]
"""


@lru_cache(maxsize=1)
def kept(path: str) -> tuple[Any, Any, Any]:
    """Return the job, its clients and a net, which a worker keeps."""
    job = read(path)
    return job, clients_of(job), net_of(job)


def flower_apps() -> tuple[Any, Any]:
    """Return the ServerApp and the ClientApp of a plain Flower project."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid, context):  # type: ignore[no-untyped-def]
        config = context.run_config
        job, times = read(config["job"]), []
        net = net_of(job)
        everyone = len(job.ends)
        strategy = FedAvg(
            fraction_train=job.sampled / everyone,
            fraction_evaluate=0.0,
            min_train_nodes=job.sampled,
            min_available_nodes=everyone,
        )
        result = strategy.start(
            grid,
            ArrayRecord(net.state_dict()),
            job.rounds,
            evaluate_fn=lambda number, arrays: times.append(time.monotonic()),
        )
        net.load_state_dict(result.arrays.to_torch_state_dict())
        write(config["out"], net, times)

    @client.train()
    def train(message, context):  # type: ignore[no-untyped-def]
        job, clients, net = kept(context.run_config["job"])
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = clients[context.node_config["partition-id"]]
        optimizer, lossy = torch.optim.SGD(net.parameters(), job.rate), torch.nn.CrossEntropyLoss()
        for rows in torch.randperm(len(y)).split(job.batch):
            optimizer.zero_grad()
            lossy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(net.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y)}),
            }
        )
        return Message(content, reply_to=message)

    return server, client


def flower(job: Any, out: str, processes: int, path: str) -> None:
    """Flower's own FedAvg in its Ray simulation, one node per client."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from benchmarks.common import run_ray

    config = {"job": path, "out": out}
    run_ray(APPS, config, len(job.ends), processes, Path(out).with_suffix(".log"))


def main() -> None:
    """Run the job of the command line."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    name, path, out, *more = sys.argv[1:]
    job = read(path)
    if name == "flower":
        flower(job, out, int(more[0]), path)
    else:
        pfl(job, out)


if __name__ == "__main__":
    main()
