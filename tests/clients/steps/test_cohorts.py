"""Local steps by the cohort: each client's equal those that it takes alone."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn
from torch.nn import functional

from fedapps.algorithms.common.steps import Eager
from fedapps.algorithms.contract.sent import (
    APFLTraining,
    DittoSent,
    FedDynSent,
    FedRepSent,
    FinetuneSent,
    IFCASent,
    PerFedAvgTraining,
    PFedMeSent,
    PropFairSent,
    ProximalSent,
    ShareSent,
    SuPerFedTraining,
)
from fedapps.clients import (
    APFLClient,
    ClientData,
    DittoClient,
    FedAvgClient,
    FedDynClient,
    FedProxClient,
    FedRepClient,
    FinetuneClient,
    IFCAClient,
    MessageStore,
    PartialClient,
    PerFedAvgClient,
    PFedMeClient,
    PropFairClient,
    ScaffoldClient,
    Split,
    SuPerFedClient,
)
from fedapps.clients.base.regression import regression
from fedapps.clients.base.together import known, once, one_of_many, result, together
from fedapps.clients.base.training import get_arrays
from fedapps.clients.steps import cohorts, stacked
from tests.helpers import assert_arrays

SIZES = (23, 9, 3, 1, 20, 14)
DEVICE = "cpu"
PLAIN = {"seed": 1, "server-round": 2, "local-epochs": 3, "batch-size": 5, "learning-rate": 0.05}


def small_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))  # odd sizes
    net.head = ("2.",)  # type: ignore[assignment]  # prefixes of parameter names
    return net.to(DEVICE)


def data(size: int, number: int) -> ClientData:
    rng = np.random.default_rng(number)
    x = torch.from_numpy(rng.normal(size=(size, 7)).astype(np.float32))
    split = Split(x.to(DEVICE), torch.from_numpy(rng.integers(0, 3, size)).to(DEVICE))
    return ClientData(split, split, split)


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nets and samples be there, on machines with a GPU also on that."""
    monkeypatch.setitem(globals(), "DEVICE", request.param)


Client = Callable[[int, RecordDict, nn.Module], FedAvgClient]


def client(
    kind: type[FedAvgClient], number: int, state: RecordDict, net: nn.Module
) -> FedAvgClient:
    return kind(small_net, data(SIZES[number], number), number, MessageStore(state), net)


def fits(
    kind: type[FedAvgClient], config: dict[str, Any], who: Sequence[int] = range(len(SIZES))
) -> list[tuple[Any, ...]]:
    """Return replies and states of two rounds of clients that share a net."""
    net, states = small_net(0), {number: RecordDict() for number in who}
    out = []

    def fit(number: int, config: dict[str, Any]) -> tuple[Any, ...]:
        own = RecordDict(dict(states[number]))
        arrays = get_arrays(small_net(5))
        if kind is ScaffoldClient:
            arrays += [np.full_like(a, 0.01) for a in arrays]
        if kind is PartialClient or kind is FedRepClient:
            arrays = arrays[2:] if config.get("share") == "head" else arrays[:2]
        return client(kind, number, own, net).fit(arrays, config), own

    for of_round in (2, 3):
        replies = together(
            (number, partial(fit, number, {**config, "server-round": of_round})) for number in who
        )
        states = {number: own for number, (_, own) in zip(who, replies, strict=True)}
        out += replies
    return out


def one_by_one(kind: type[FedAvgClient], config: dict[str, Any]) -> list[tuple[Any, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cohorts, "is_together", lambda: False)
        return fits(kind, config)


def assert_replies(found: Any, wanted: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Compare what :func:`fits` returns, by default to the bit."""
    for results in zip(found, wanted, strict=True):
        one, other = (
            [*arrays, *(a for r in state.array_records.values() for a in r.values()),
             np.array([samples, *metrics.values()])]
            for (arrays, samples, metrics), state in results
        )  # fmt: skip
        assert_arrays(one, other, rtol, atol)


METHODS: dict[str, tuple[type[FedAvgClient], dict[str, Any]]] = {
    "fedavg": (FedAvgClient, {}),
    "momentum 0, bounded": (FedAvgClient, {"momentum": 0.0, "max-gradient-norm": 0.1}),
    "adam": (FedAvgClient, {"optimizer": "adamw", "max-gradient-norm": 0.5}),
    "a part of the round": (FedAvgClient, {"work-share": 0.4, "local-epochs": 2.6}),
    "all rows at once": (FedAvgClient, {"batch-size": 1000}),
    "pairs": (FedAvgClient, {"batch-size": 2}),
    "propfair": (PropFairClient, PropFairSent(2.0).to_config()),
    "propfair, pairs": (PropFairClient, {"batch-size": 2, **PropFairSent(2.0).to_config()}),
    "fedprox": (FedProxClient, ProximalSent(0.3).to_config()),
    "scaffold": (ScaffoldClient, {}),
    "feddyn": (FedDynClient, FedDynSent(0.1).to_config()),
    "ditto": (DittoClient, DittoSent(0.2, 2).to_config()),
    "apfl": (APFLClient, APFLTraining(0.4, True).to_config()),
    "pfedme": (PFedMeClient, PFedMeSent(2.0, 0.0, 4).to_config()),
    "pfedme, same batches": (PFedMeClient, PFedMeSent(2.0, 0.0, 3, "same").to_config()),
    "per-fedavg": (PerFedAvgClient, PerFedAvgTraining(0.02, "differences").to_config()),
    "superfed-mm": (SuPerFedClient, {**ProximalSent(0.1).to_config(), **SuPerFedTraining(0.5, mixing="model").to_config()}),
    "superfed-lm": (SuPerFedClient, {**ProximalSent(0.1).to_config(), **SuPerFedTraining(0.5, mixing="layer").to_config()}),
    "fedper": (PartialClient, ShareSent("body").to_config()),
    "lg-fedavg": (PartialClient, ShareSent("head").to_config()),
    "fedrep": (
        FedRepClient,
        {**ShareSent("body").to_config(), **FedRepSent(2, 1).to_config()},
    ),
    "ifca": (IFCAClient, IFCASent(1).to_config()),
}  # fmt: skip


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_equals_its_clients_one_by_one(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, config = METHODS[method]
    config = {**PLAIN, **config}
    alone = one_by_one(kind, config)
    # no step is taken outside of the cohort
    monkeypatch.setattr(Eager, "run", None)
    assert_replies(fits(kind, config), alone, rtol=1e-5, atol=3e-6)


class PowerClient(FedAvgClient):
    def surrogate(self, config: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        return _power


def _power(loss: torch.Tensor) -> torch.Tensor:
    return loss**1.7


def narrow_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 1), nn.Softplus(), nn.Linear(1, 3)).to(DEVICE)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("kind", [FedAvgClient, PowerClient])
def test_the_last_numbers_of_a_tensor_are_those_of_no_client(
    kind: type[FedAvgClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyTorch takes softplus and powers of them by other functions than of the others
    if kind is FedAvgClient:
        monkeypatch.setitem(globals(), "small_net", narrow_net)
    monkeypatch.setitem(globals(), "SIZES", (10,) * 40)
    config = {**PLAIN, "batch-size": 1 if kind is FedAvgClient else 3}
    every = fits(kind, config, range(40))
    for number in (0, 7, 14, 21, 28, 38, 39):
        assert_replies(fits(kind, config, [number]), every[number::40])


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("method", METHODS)
def test_the_bits_of_a_client_do_not_depend_on_the_others(method: str) -> None:
    kind, config = METHODS[method]
    config = {**PLAIN, **config}
    every = fits(kind, config)
    for who in ([0], [4, 1], [3, 5, 2]):
        wanted = [every[first + number] for first in (0, len(SIZES)) for number in who]
        assert_replies(fits(kind, config, who), wanted)


def test_a_client_that_waits_for_no_other_has_the_same_bits() -> None:
    state = RecordDict()
    found = one_of_many(client(FedAvgClient, 0, state, small_net(0)).fit)(
        get_arrays(small_net(5)), PLAIN
    )
    assert_replies([(found, state)], fits(FedAvgClient, PLAIN, [0])[:1])


@pytest.mark.usefixtures("device")
def test_a_recorded_graph_has_the_bits_of_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**PLAIN, "local-epochs": 5}
    results = []
    for warm_up in (10**6, 3):
        monkeypatch.setattr(stacked, "WARM_UP", warm_up)
        stacked._kernels.clear()
        results.append(fits(FedAvgClient, config))
    assert any(kernel and kernel.graph for kernel in stacked._kernels.values())
    assert all(all(kernel.same.values()) for kernel in stacked._kernels.values() if kernel)
    assert_replies(*results)


def test_a_client_without_finite_numbers_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = fits(FedAvgClient, PLAIN)
    sound = data

    def broken(size: int, number: int) -> ClientData:
        own = sound(size, number)
        if number == 1:
            own.train.x[0, 0] = float("nan")
        return own

    monkeypatch.setitem(globals(), "data", broken)
    found = fits(FedAvgClient, PLAIN)
    assert np.isnan(found[1][0][2]["loss"])
    for results in (whole, found):
        del results[1 :: len(SIZES)]
    assert_replies(found, whole)


@pytest.mark.parametrize(("wrong", "rows"), [(0, slice(None)), (1, slice(1))])
def test_an_error_of_one_client_is_its_own(wrong: int, rows: slice) -> None:
    many = [client(FedAvgClient, number, RecordDict(), small_net(0)) for number in range(3)]
    many[wrong].data.train.y[rows] = 9  # there are three classes
    stacked._kernels.clear()

    def tried(one: FedAvgClient) -> Any:
        try:
            return one.fit(get_arrays(small_net(5)), PLAIN)[0]
        except (IndexError, RuntimeError) as error:
            return str(error)

    found = together((one, partial(tried, one)) for one in many)
    assert "out of bounds" in found[wrong]
    for place in {0, 1, 2} - {wrong}:
        assert_arrays(found[place], together([(0, partial(tried, many[place]))])[0])


class Changed(nn.Module):
    """A layer whose inputs are changed by a function."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(7, 3), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.change(x))


def watched(of_layer: bool) -> nn.Module:
    net = nn.Linear(7, 3)
    if of_layer:
        net.register_full_backward_hook(lambda *_: None)
    else:
        net.weight.register_hook(lambda _: None)
    return net


class Counting(nn.Linear):
    """A layer that falls with its calls."""

    count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return super().forward(x) / self.count


class Doubting(torch.autograd.Function):
    """Looks at a gradient, which vmap cannot."""

    generate_vmap_rule = True
    forward = staticmethod(lambda x: x.clone())
    setup_context = staticmethod(lambda *_: None)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (2 if gradient.sum() > 0 else 1)


class Doubtful(nn.Linear):
    """A layer with such a function after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, Doubting.apply(super().forward(x)))


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(7, 3), nn.Dropout(0.5)),
        nn.Linear(7, 3).double(),
        watched(False),
        nn.Sequential(nn.Linear(7, 3000), nn.Linear(3000, 3000), nn.Linear(3000, 3)),
    ],
)
def test_other_nets_take_their_steps_one_by_one(
    net: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohorts.Training, "done", None)
    own = data(5, 0)
    split = Split(own.train.x.to(next(net.parameters()).dtype), own.train.y)
    one_of_many(FedAvgClient(lambda _: net, ClientData(split, split, split)).fit)(
        get_arrays(net), {**PLAIN, "local-epochs": 1}
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Changed(lambda x: x - x.mean(0)),
        lambda: Changed(partial(functional.dropout, p=0.5)),
        partial(watched, True),
        partial(Counting, 7, 3),
        lambda: nn.Sequential(nn.Linear(7, 3), nn.Tanh(), Doubtful(3, 3)),
    ],
)
def test_a_net_that_is_more_than_its_parameters_trains_as_alone(
    make: Callable[[], nn.Module],
) -> None:
    """It looks at other samples, draws, counts, has a hook or a gradient of its own,
    also after one without.
    """
    own, replies = data(9, 0), []
    plain = nn.Linear(7, 3)
    one_of_many(FedAvgClient(lambda _: plain, own).fit)(get_arrays(plain), PLAIN)
    for many in (False, True):
        torch.manual_seed(0)
        net = make()
        of = FedAvgClient(lambda _, net=net: net, own)
        replies.append((one_of_many(of.fit) if many else of.fit)(get_arrays(net), PLAIN))
    assert_arrays(replies[0][0], replies[1][0])


def test_a_recorded_graph_is_of_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "WARM_UP", 1)
    found = []
    for first in (torch.tanh, torch.relu):
        stacked._kernels.clear()
        for function in (first, torch.tanh):
            torch.manual_seed(0)
            net = Changed(function)
            one = client(FedAvgClient, 0, RecordDict(), net)
            (reply,) = together([(0, partial(one.fit, get_arrays(net), PLAIN))])
        found.append(reply[0])
    assert_arrays(*found)


class HalfUsed(nn.Module):
    """A net with a layer that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(7, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, self.used(x))


def test_an_unused_layer_stays_as_in_a_step_alone() -> None:
    start = get_arrays(HalfUsed())
    config = {**PLAIN, "weight-decay": 0.1, "momentum": 0.9}
    fit = FedAvgClient(lambda _: HalfUsed(), data(9, 0)).fit
    (arrays,) = together([(0, lambda: fit(start, config)[0])])
    assert_arrays(arrays, fit(start, config)[0], rtol=1e-5, atol=1e-6)
    assert_arrays(arrays[2:], start[2:])


class Doubled:
    """Work that doubles numbers."""

    nbytes = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def undone(self) -> int:
        return 0

    @staticmethod
    def done(together: Sequence["Doubled"]) -> list[int]:
        return [2 * work.number for work in together]


def test_a_call_that_is_made_again_computes_once() -> None:
    """Also within what is computed once, and between two works."""
    made: list[int] = []

    def noted(number: int) -> int:
        made.append(number)
        return once(lambda: number)

    def call(number: int) -> list[int]:
        out = [once(lambda: noted(number)), known() or result(Doubled(number))]
        out += [once(lambda: noted(number + 10)), known() or result(Doubled(number + 10))]
        return out

    assert together((number, partial(call, number)) for number in (1, 2, 3)) == [
        [n, 2 * n, n + 10, 2 * n + 20] for n in (1, 2, 3)
    ]
    assert sorted(made) == [1, 2, 3, 11, 12, 13]


def test_a_call_stops_once_for_works_that_need_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ditto's clients come for their global model and three personal ones at once."""
    counted, done = [], cohorts.Training.done
    counting = staticmethod(lambda works: (counted.append(len(works)), done(works))[1])
    monkeypatch.setattr(cohorts.Training, "done", counting)
    config = PLAIN | DittoSent(1.0, 0, choose=True).to_config()
    many = [client(DittoClient, place, RecordDict(), small_net(0)) for place in (0, 1)]
    together((one, partial(one.fit, get_arrays(small_net(5)), config)) for one in many)
    assert counted == [2 * 4]


def test_memory_is_bounded_without_a_change_of_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    every = fits(FedAvgClient, PLAIN)
    sizes: list[int] = []
    done = cohorts.Training.done
    monkeypatch.setattr("fedapps.clients.base.together.MOST_BYTES", 3000)
    monkeypatch.setattr(
        cohorts.Training, "done", staticmethod(lambda all_: sizes.append(len(all_)) or done(all_))
    )
    monkeypatch.setattr(cohorts, "MOST_BYTES", 3000)
    assert_replies(fits(FedAvgClient, PLAIN), every)
    assert len(sizes) > 2
    # one client with many steps does not pad all others
    many = cast(Any, [SimpleNamespace(padded=bytes_) for bytes_ in (2000, 1000, 1000, 900, 100)])
    assert list(cohorts._bounded(range(5), many)) == [[0], [1, 2, 3], [4]]


def test_regression_and_fine_tuning_before_use() -> None:
    def evaluate(number: int) -> tuple[float, int, dict[str, Any]]:
        torch.manual_seed(0)
        own, net = data(SIZES[number], number), nn.Linear(7, 1)
        split = Split(own.train.x, own.train.x[:, :1] * 2)
        of = FinetuneClient(
            lambda _: net, ClientData(split, split, split), number, model=net,
            objective=regression("huber"),
        )  # fmt: skip
        return of.evaluate(get_arrays(net), {**PLAIN, **FinetuneSent(3, 0.0).to_config()})

    alone = [evaluate(number) for number in range(len(SIZES))]
    found = together((number, partial(evaluate, number)) for number in range(len(SIZES)))
    for a, b in zip(found, alone, strict=True):
        assert a[0] == pytest.approx(b[0], rel=1e-5)
        assert a[0] < a[2]["global-loss"]


def test_calls_with_the_same_key_follow_one_another() -> None:
    states = {0: 0}
    net = small_net(0)

    def add(place: int) -> int:
        before = states[0]
        client(FedAvgClient, 0, RecordDict(), net).fit(get_arrays(small_net(5)), PLAIN)
        states[0] = before + 1
        return states[0]

    assert together(("same", partial(add, place)) for place in range(3)) == [1, 2, 3]


class TwoTrainings(FedAvgClient):
    """Takes steps of its own before the others."""

    def train(self, config: Any) -> float:
        """Train twice."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedapps.clients.steps.trained_net.by_cohort", lambda *_: False)
            super().train(config)
        return super().train(config)


def test_steps_of_its_own_stay_before_those_of_the_cohort() -> None:
    assert_replies(fits(TwoTrainings, PLAIN), one_by_one(TwoTrainings, PLAIN), rtol=1e-5, atol=1e-6)
