"""Compiled local steps equal the eager ones: every method, momentum, partial batches,
several rounds; and the fits of boosting, up to rounding. Steps that cannot be compiled
run eagerly.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedapps.algorithms.boosting.fit_options import FitOptions
from fedapps.algorithms.boosting.oracle import Target
from fedapps.algorithms.boosting.regression import fit_network
from fedapps.algorithms.boosting.weak_learners import NetOptions, NetOracle
from fedapps.algorithms.common.steps import Eager
from fedapps.clients import (
    APFLClient,
    ClientData,
    DittoClient,
    FedALAClient,
    FedAvgClient,
    FedBABUClient,
    FedBNClient,
    FedDynClient,
    FedProxClient,
    FedRepClient,
    FFGBClient,
    FFGBDistillClient,
    FinetuneClient,
    LocalClient,
    PartialClient,
    PerFedAvgClient,
    PFedMeClient,
    PropFairClient,
    ScaffoldClient,
    Split,
    SuPerFedClient,
)
from fedapps.clients.base.training import get_arrays
from fedapps.clients.steps import compiled
from fedapps.clients.steps.compiled import OLDEST, Compiler
from tests.clients.steps.traced import Traced, assert_compiled
from tests.helpers import assert_arrays, blobs, refused, small_net, some_slow

TRAIN = {
    "local-epochs": 2,
    "batch-size": 5,
    "momentum": 0.9,
    "weight-decay": 1e-3,
    "learning-rate": 0.1,
    "seed": 1,
    "compile": "on",
}


OLD = tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Trace and compile two steps at once instead of four, which takes half as long,
    and compile what calls the kernels as it is written.
    """
    monkeypatch.setattr(compiled, "UNROLLED", 2)
    monkeypatch.setitem(compiled.OPTIONS, "aot_inductor.compile_wrapper_opt_level", "O0")


class Net(nn.Module):
    """Dense layers with batch normalisation and dropout between them, for the shapes of
    ``blobs``.
    """

    head = ("out.",)

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)
        )
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.body(x))


def unbiased(seed=0):
    """Return a net whose bias before the normalisation stays: its gradient is 0 but for
    rounding, which Adam would divide by itself.
    """
    net = Net(seed)
    net.body[1].bias.requires_grad_(False)
    return net


METHODS = {
    "fedavg": (FedAvgClient, {}),
    "fedprox": (FedProxClient, {"proximal-mu": 0.3}),
    "propfair": (PropFairClient, {"propfair-m": 4.0}),
    "feddyn": (FedDynClient, {"feddyn-alpha": 0.1}),
    "scaffold": (ScaffoldClient, {}),
    "local": (LocalClient, {}),
    "local, in shares": (LocalClient, {"local-share": 0.7}),
    "finetune": (FinetuneClient, {"finetune-epochs": 1, "finetune-rate": 0.05}),
    "fedbn": (FedBNClient, {}),
    "fedbabu": (FedBABUClient, {"share": "body", "fedbabu-epochs": 1, "fedbabu-part": "head"}),
    "fedala": (
        FedALAClient,
        {"fedala-layers": 2, "fedala-rate": 0.5, "fedala-samples": 0.8, "fedala-start-epochs": 2},
    ),
    "per-fedavg": (
        PerFedAvgClient,
        {"per-fedavg-alpha": 0.05, "per-fedavg-hessian": "none", "per-fedavg-steps": 1},
    ),
    "per-fedavg, differences": (
        PerFedAvgClient,
        {"per-fedavg-alpha": 0.05, "per-fedavg-hessian": "differences", "per-fedavg-steps": 1},
    ),
    "fedper": (PartialClient, {"share": "body"}),
    "fedrep": (FedRepClient, {"share": "body", "fedrep-head-epochs": 1, "fedrep-body-epochs": 1}),
    "ditto": (DittoClient, {"ditto-mu": 0.5, "ditto-epochs": 1}),
    "pfedme": (PFedMeClient, {"pfedme-lambda": 5.0, "pfedme-rate": 0.05, "pfedme-inner-steps": 3}),
    "pfedme, same batches": (
        PFedMeClient,
        {
            "pfedme-lambda": 5.0,
            "pfedme-rate": 0.05,
            "pfedme-inner-steps": 3,
            "pfedme-batches": "same",
        },
    ),
    "apfl": (APFLClient, {"apfl-alpha": 0.3, "apfl-adaptive": False}),
    "apfl, adaptive": (APFLClient, {"apfl-alpha": 0.3, "apfl-adaptive": True}),
    "superfed-mm": (
        SuPerFedClient,
        {"superfed-mixing": "model", "superfed-nu": 1.0, "proximal-mu": 0.01},
    ),
    "superfed-mm, scaled": (
        SuPerFedClient,
        {"superfed-mixing": "model", "superfed-step-scale": 2.0, "superfed-init": "global"},
    ),
    "superfed-lm": (SuPerFedClient, {"superfed-mixing": "layer", "superfed-nu": 1.0}),
    "superfed before mixing": (SuPerFedClient, {"superfed-mixing": "none", "proximal-mu": 0.01}),
}


#: The arrays that are not sent.
HOME = {"fedbn": "body.2.", "fedper": "out.", "fedrep": "out.", "fedbabu": "out."}


def sent_by(method: str, net: nn.Module) -> list[np.ndarray]:
    home = HOME.get(method)
    named = zip(net.state_dict(), get_arrays(net), strict=True)
    arrays = [a for name, a in named if not (home and name.startswith(home))]
    if method == "scaffold":
        arrays += [0.01 * np.ones(p.shape, np.float32) for p in net.parameters()]
    return arrays


def rounds(
    method: str,
    compiler: Compiler | None,
    clients: int = 1,
    net: nn.Module | None = None,
    config=(),
):
    """Return replies and test losses of two rounds; all clients work in the same
    module.
    """
    kind, own = METHODS[method]
    net, replies = net or Net(), []
    made = [
        kind(Net, blobs(n=80 + 10 * i, seed=i), i, model=net) for i in range(clients)
    ]  # 48, 54, 60 to train on: partial batches
    for number in (1, 2):
        for client in made:
            client.compiler = compiler
            sent = sent_by(method, Net(3))
            now = {**TRAIN, **own, "server-round": number}
            reply = client.fit(sent, {**now, **dict(config)})
            replies.append((*reply, client.evaluate(sent[: len(Net().state_dict())], now)[0]))
    return replies


def assert_close(ours, theirs):
    for (arrays, count, metrics, loss), other in zip(ours, theirs, strict=True):
        assert count == other[1]
        assert_arrays(arrays, other[0], rtol=0.0001, atol=1e-05)
        assert metrics == pytest.approx(other[2], rel=1e-4, abs=1e-6)
        assert loss == pytest.approx(other[3], rel=1e-3, abs=1e-5)


@pytest.fixture
def compiler(tmp_path):
    return Traced(tmp_path)


@pytest.mark.parametrize("method", some_slow(METHODS, "fedavg", "superfed-lm"))
def test_the_traced_steps_are_the_eager_ones(method, compiler):
    assert_close(rounds(method, compiler), rounds(method, None))
    assert_compiled(compiler)


OF_ADAM = [(m, o) for m in ("fedprox", "superfed-lm", "apfl, adaptive", "pfedme")
           for o in ("adam", "adamw")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("method", "optimizer"), [*OF_ADAM, ("feddyn", "adam")])
def test_traced_steps_of_adam_are_the_eager_ones(method, optimizer, compiler):
    net = unbiased()
    train_options = {"optimizer": optimizer, "learning-rate": 0.01, "weight-decay": 0.1}
    ours, eager = (rounds(method, how, 2, net, train_options) for how in (compiler, None))
    for (arrays, *_), (wanted, *_) in zip(ours, eager, strict=True):
        assert_arrays(arrays, wanted, rtol=0.002, atol=0.0002)
    assert_compiled(compiler)
    sgd = rounds(method, None, 2, net, {**train_options, "optimizer": "sgd"})
    assert not np.allclose(eager[0][0][0], sgd[0][0][0], atol=1e-4)


@pytest.mark.parametrize(
    ("method", "optimizer", "why"),
    [
        ("scaffold", "adam", "SCAFFOLD reads the mean gradient"),
        ("feddyn", "adamw", "decoupled weight decay moves"),
        ("propfair", "adam", "Adam divides gradients by their size"),
    ],
)
def test_methods_whose_equations_need_sgd_refuse_others(method, optimizer, why):
    refused(
        lambda: rounds(method, None, config={"optimizer": optimizer}),
        f"optimizer = '{optimizer}': .*{why}",
    )


@pytest.mark.parametrize("method", ["fedavg", "superfed-lm", "apfl, adaptive"])
def test_one_pair_of_graphs_serves_all_clients_and_rounds(method, compiler):
    """For any number of samples, learning rate of the round and mixing weights of the
    step; all clients train in the same module.
    """
    assert_close(rounds(method, compiler, clients=3), rounds(method, None, clients=3))
    assert len(compiler.graphs) == 2
    assert_compiled(compiler)


def test_off_is_eager_to_the_last_bit(compiler):
    off, eager = rounds("fedavg", compiler, config={"compile": "off"}), rounds("fedavg", None)
    assert not compiler.graphs
    assert_arrays(off[0][0], eager[0][0])


def test_a_library_that_does_not_agree_is_not_used(tmp_path, caplog):
    class Wrong(Traced):
        def _library(self, *args):
            run = super()._library(*args)
            return lambda inputs: [t * 1.01 if t.is_floating_point() else t for t in run(inputs)]

    (ours, *_), (eager, *_) = rounds("fedavg", Wrong(tmp_path)), rounds("fedavg", None)
    # both graphs, one line
    assert caplog.text.count("the compiled steps of Net do not agree with the eager ones") == 1
    assert_arrays(ours[0], eager[0])


@pytest.mark.skipif(OLD, reason="compiled steps take a newer PyTorch")
def test_without_a_compiler_steps_run_eagerly_with_one_line(tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("no C++ compiler: install g++")

    monkeypatch.setattr(compiled, "_build", fail)
    assert_close(rounds("fedavg", Compiler(tmp_path)), rounds("fedavg", None))
    assert caplog.text.count("local steps run uncompiled: no C++ compiler: install g++") == 1


def test_what_is_not_compiled_says_why(tmp_path, caplog):
    class Recurrent(Net):
        def __init__(self, seed=0):
            super().__init__(seed)
            self.layer = nn.LSTM(4, 4).requires_grad_(False)

    class Own(FedAvgClient):
        def loss(self, x, y):
            return 2 * super().loss(x, y)

    for client in (FedAvgClient(Recurrent, blobs(n=80)), Own(Net, blobs(n=80))):
        client.compiler = Compiler(tmp_path)
        client.fit(get_arrays(client.model), TRAIN)
    assert "recurrent nets are not compiled" in caplog.text
    assert "the client has its own loss" in caplog.text
    assert not list(tmp_path.glob("*.pt2"))


def test_a_folder_that_others_may_write_to_is_not_read(tmp_path, caplog):
    tmp_path.chmod(0o777)
    rounds("fedavg", Compiler(tmp_path))
    assert f"{tmp_path} must belong to you alone" in caplog.text


def facts_of(net, step_options=()):
    seen = []

    class Listening(Traced):
        def _library(self, training, x, y, numbers, many):
            seen.append(training.facts(x, y, numbers, many))
            raise RuntimeError("nothing else is asked")  # so steps run eagerly

    rounds("fedprox", Listening(None), net=net, config=step_options)
    return str(seen[0])


@pytest.mark.slow
def test_the_name_of_a_library_covers_what_it_depends_on():
    class Scaled(Net):
        scale = 1.0

        def forward(self, x):
            return super().forward(x) * self.scale

    assert facts_of(Net()) == facts_of(Net(5)), "the values of parameters do not matter"
    scaled = Scaled()
    scaled.scale = 2.0
    options = ({"proximal-mu": 0.5}, {"momentum": 0.5}, {"batch-size": 6})
    names = [facts_of(net) for net in (Net(), Scaled(), scaled)]
    names += [facts_of(Net(), changed) for changed in options]
    assert len(set(names)) == 6


@pytest.mark.skipif(not OLD, reason="this PyTorch is new enough")
def test_an_old_pytorch_is_named_and_steps_run_uncompiled(tmp_path, caplog):
    assert_close(rounds("fedavg", Compiler(tmp_path)), rounds("fedavg", None))
    assert "needs PyTorch 2.14 or newer" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="compiled steps take a newer PyTorch")
def test_compiled_for_real(tmp_path):
    """Two libraries for three clients with three numbers of samples; another process
    only loads them and has the same bits.
    """
    ours = rounds("fedavg", Compiler(tmp_path), clients=3)
    assert_close(ours, rounds("fedavg", None, clients=3))
    assert len(list(tmp_path.glob("*.pt2"))) == 2
    for one, other in zip(
        ours, rounds("fedavg", Compiler(tmp_path, build=False), clients=3), strict=True
    ):
        assert_arrays(one[0], other[0])


# --- a client whose samples are wrong -------------------------------------------------


def fit_in_turn(compiler, data):
    """Return what each client replies, or its error; all train in the same module."""
    net, replies = small_net(0), []
    for of_client in data:
        client = FedAvgClient(small_net, of_client, model=net)
        client.compiler = compiler
        try:
            replies.append(client.fit(get_arrays(small_net(1)), TRAIN)[0])
        except Exception as error:
            replies.append(error)
    return replies


@pytest.mark.parametrize("place", [0, 1])
def test_a_client_that_fails_changes_nothing_for_the_others(place, tmp_path):
    """Also if it is the first to use a library: its error does not mean that the
    library is broken.
    """
    data = [blobs(seed=i) for i in range(2)]
    # a label of which the net knows nothing in every mini-batch
    train = Split(data[0].train.x, torch.full_like(data[0].train.y, 9))
    alone, compiler = fit_in_turn(Traced(tmp_path), data), Traced(tmp_path)
    replies = fit_in_turn(compiler, [*data[:place], ClientData(train, train, train), *data[place:]])
    assert isinstance(replies.pop(place), IndexError)
    assert compiler.graphs
    assert not compiler.logged
    for ours, wanted in zip(replies, alone, strict=True):
        assert_arrays(ours, wanted)


@pytest.mark.slow
@pytest.mark.skipif(OLD, reason="compiled steps take a newer PyTorch")
def test_on_several_threads_a_wrong_label_is_an_error_and_not_the_end_of_the_process(tmp_path):
    """Thrown within a loop that runs on several threads, it could not be caught; the
    mini-batch is so large that loops would.
    """
    program = f"""
import torch
from pathlib import Path
from fedapps.clients import ClientData, FedAvgClient, Split
from fedapps.clients.steps.compiled import OPTIONS, Compiler
from fedapps.clients.base.training import get_arrays
torch.set_num_threads(2)
OPTIONS["aot_inductor.compile_wrapper_opt_level"] = "O0"
net = torch.nn.Linear(4, 3)
compiler = Compiler(Path({str(tmp_path)!r}))
for wrong in (0, 9):
    y = torch.zeros(20_000, dtype=torch.int64)
    y[11_000:] = wrong
    data = Split(torch.zeros(20_000, 4), y)
    client = FedAvgClient(lambda seed: torch.nn.Linear(4, 3), ClientData(data, data, data), model=net)
    client.compiler = compiler
    try:
        client.fit(get_arrays(net), {{"learning-rate": 0.1, "local-epochs": 1, "batch-size": 20_000, "compile": "on"}})
        print("trained", len(list(compiler.folder.glob("*.pt2"))))
    except RuntimeError as error:
        print(str(error)[:19])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["trained 1", "index out of bounds"], done.stderr[-500:]


FITS = {
    "epochs, the last batch smaller": FitOptions(epochs=4, batch_size=5, learning_rate=0.05),
    "one batch an epoch": FitOptions(epochs=30, batch_size=64, learning_rate=0.05),
    "steps that end within an epoch": FitOptions(
        steps=26, batch_size=5, learning_rate=0.05, clip=0.0
    ),
    "clipped, with weight decay": FitOptions(
        steps=20, batch_size=3, learning_rate=0.05, clip=0.1, weight_decay=0.1
    ),
    "divergence": FitOptions(epochs=3, batch_size=4, learning_rate=0.05, loss="kl"),
}

# of the server's function
NOTHING_NEW = [np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.float32)]


@pytest.mark.parametrize("fit", FITS)
def test_a_compiled_fit_is_the_eager_one(fit, tmp_path):
    x = blobs(n=80).train.x
    targets = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(0))
    compiler, ends = Traced(tmp_path), []
    for runner in (Eager, compiler):
        module = unbiased(1)
        loss = fit_network(module, x, targets, FITS[fit], np.random.default_rng(5), runner)
        ends.append([np.array(loss), *get_arrays(module)])
    assert_arrays(ends[1], ends[0], rtol=0.002, atol=0.0002)
    assert_compiled(compiler)


def test_targets_of_another_shape_are_refused_by_a_compiled_fit_too(tmp_path):
    x, fit, rng = blobs(n=80).train.x, FitOptions(batch_size=5), np.random.default_rng(0)
    refused(
        lambda: fit_network(small_net(0), x, x.new_zeros(48, 1), fit, rng, Traced(tmp_path)),
        r"outputs of shape \(5, 3\), but targets of shape \(5, 1\)",
    )


def distilling():
    """Return a function that makes a client i with this number of samples, what it
    reads, and what it is sent.
    """
    module = small_net(0)
    config = {"oracle-epochs": 5, "oracle-batch-size": 8, "oracle-learning-rate": 0.01}
    make = lambda i, count: FFGBDistillClient(small_net, blobs(i, count), i, model=module)
    return make, config, get_arrays(small_net(1))


def boosting():
    """Return the same of FFGB with nets: an oracle for all."""
    oracle = NetOracle(
        small_net, NetOptions(fit=FitOptions(steps=30, learning_rate=0.01, batch_size=8, clip=0.0))
    )
    config = {
        "loss": "cross-entropy",
        "variant": "ffgb",
        "residual": True,
        "etas": [1.0, 0.5],
        "mu": 0.0,
        "version": 0,
        "base": 0,
    }
    return lambda i, count: FFGBClient(blobs(i, count), oracle, 3, i), config, NOTHING_NEW


def play(method, compiler, setting="on"):
    """Return the replies of two rounds of three clients with unequal numbers of
    samples.
    """
    make, config, sent = method()
    replies = []
    for number in (1, 2):
        for i, count in enumerate((80, 100, 60)):
            client = make(i, count)
            client.compiler = compiler
            reply = client.fit(sent, {**config, "compile": setting, "server-round": number})
            replies.append((*reply[0], np.array([reply[1], reply[2]["oracle-error"]])))
    return replies


@pytest.mark.slow
@pytest.mark.parametrize("method", [distilling, boosting])
def test_clients_that_fit_with_adam_compiled(method, compiler, tmp_path):
    eager, ours, again = (play(method, how) for how in (None, compiler, Traced(tmp_path)))
    assert len(compiler.graphs) == 2
    assert_compiled(compiler)
    for arrays, wanted, same in zip(ours, eager, again, strict=True):
        assert_arrays(arrays, wanted, rtol=2e-3, atol=2e-4)
        assert_arrays(arrays, same)


@pytest.mark.parametrize("method", [distilling, boosting])
def test_told_to_be_eager_they_are_to_the_last_bit(method, compiler):
    for ours, wanted in zip(play(method, compiler, "off"), play(method, None), strict=True):
        assert_arrays(ours, wanted)
    assert not compiler.graphs


def test_an_oracle_fits_the_same_net_whatever_it_fitted_before():
    data, options = blobs(n=80).train, NetOptions(fit=FitOptions(steps=5, clip=0.0))
    target, other = (Target(torch.full((len(data), 3), value)) for value in (1.0, -1.0))
    used = NetOracle(small_net, options)
    used.fit(data.x, other, np.random.default_rng(1))
    ours, wanted = (
        oracle.fit(data.x, target, np.random.default_rng(2))
        for oracle in (used, NetOracle(small_net, options))
    )
    assert_arrays(wanted, ours)
