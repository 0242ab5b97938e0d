"""A method around a user's own loop is the method: on full batches and plain SGD it
equals the method's own client.
"""

import functools

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from fedapps import clients
from fedapps.clients import answer_identity
from fedapps.clients.loops.hooks import once
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    APFL,
    APFLOptions,
    Ditto,
    DittoOptions,
    FedAvg,
    FedDyn,
    FedProx,
    FedProxOptions,
    FedRep,
    FedRepOptions,
    PartialSharing,
    Scaffold,
    SuPerFed,
    SuPerFedOptions,
)
from tests.clients.federation import own_app
from tests.helpers import arrays_of, assert_arrays, blobs, refused

RATE, EPOCHS, ROUNDS = 0.2, 2, 4
CONFIG = {
    "learning-rate": RATE,
    "lr-decay": 1.0,
    "momentum": 0.0,
    "weight-decay": 0.0,
    "local-epochs": EPOCHS,
}
CONFIG |= {"batch-size": 1000, "seed": 3}
HEAD = ("3.",)


class Net(torch.nn.Sequential):
    head = HEAD

    def __init__(self):
        super().__init__(
            torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        )
        # travels, and is no divergence
        self.register_buffer("mask", torch.tensor([0, -torch.inf]))


def seeded(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def train(net, loader, epochs, rate, make=torch.optim.SGD, **options):
    """What every tutorial has."""
    net.train()
    optimiser = make(net.parameters(), rate, **options)
    for _ in range(epochs):
        for x, y in loader:
            optimiser.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
    return loss.item()


def loop_app(
    kind, function=train, batches=lambda part: [(part.x, part.y)], epochs=EPOCHS, **options
):
    app = answer_identity(ClientApp())

    @app.train()
    def fit(message, context):
        data = blobs(context.node_config["partition-id"]).train
        method = kind(Net, message, context)
        loss = method.train(function, batches(data), epochs, RATE, **options)
        return method.reply({"loss": loss, "num-examples": len(data)})

    @app.evaluate()
    @torch.no_grad()
    def evaluate(message, context):
        data = blobs(context.node_config["partition-id"]).test
        net = kind(Net, message, context).model.eval()
        scores = {
            "loss": functional.cross_entropy(net(data.x), data.y).item(),
            "num-examples": len(data),
        }
        return Message(RecordDict({"metrics": MetricRecord(scores)}), reply_to=message)

    return app


def run(strategy, app, rounds=ROUNDS, config=None):
    start = ArrayRecord({name: Array(t.numpy()) for name, t in seeded(7).state_dict().items()})
    sent = CONFIG | (config or {})
    configs = {"train_config": ConfigRecord(sent), "evaluate_config": ConfigRecord(sent)}
    return strategy.start(InlineGrid(app, 3), start, rounds, **configs)


METHODS = {
    "fedavg": (FedAvg, "Loop", "FedAvgClient", "loss"),
    "fedprox": (lambda: FedProx(FedProxOptions(mu=0.5)), "FedProxLoop", "FedProxClient", "loss"),
    "scaffold": (Scaffold, "ScaffoldLoop", "ScaffoldClient", "loss"),
    "feddyn": (FedDyn, "FedDynLoop", "FedDynClient", "loss"),
    "ditto": (lambda: Ditto(DittoOptions(mu=0.5, epochs=3)), "DittoLoop", "DittoClient", "loss"),
    "fedper": (lambda: PartialSharing(HEAD, "body"), "PartialLoop", "PartialClient", "loss"),
    "lg-fedavg": (lambda: PartialSharing(HEAD, "head"), "PartialLoop", "PartialClient", "loss"),
    "fedrep": (
        lambda: FedRep(HEAD, FedRepOptions(head_epochs=3, body_epochs=1)),
        "FedRepLoop",
        "FedRepClient",
        "loss",
    ),
    "apfl": (lambda: APFL(APFLOptions(alpha=0.4)), "APFLLoop", "APFLClient", "loss"),
    "apfl-adaptive": (
        lambda: APFL(APFLOptions(alpha=0.4, adaptive=True)),
        "APFLLoop",
        "APFLClient",
        "loss",
    ),
    "superfed-mm": (
        lambda: SuPerFed(SuPerFedOptions(mu=0.3, start=0.25)),
        "SuPerFedLoop",
        "SuPerFedClient",
        "half-loss",
    ),
    "superfed-mm, scaled, from the global model": (
        lambda: SuPerFed(SuPerFedOptions(start=0.25, step_scale=2.0, init="global")),
        "SuPerFedLoop",
        "SuPerFedClient",
        "half-loss",
    ),
    "superfed-lm": (
        lambda: SuPerFed(SuPerFedOptions(start=0.25), "layer"),
        "SuPerFedLoop",
        "SuPerFedClient",
        "half-loss",
    ),
}


@functools.cache
def looped(name, rounds=ROUNDS):
    """Return the result of a method around the plain loop."""
    make, loop, _, _ = METHODS[name]
    return run(make(), loop_app(getattr(clients, loop)), rounds)


@pytest.mark.parametrize("name", METHODS)
def test_it_equals_the_methods_own_client_and_our_strategies_send_every_term(name, caplog):
    once.cache_clear()
    make, _, client, loss = METHODS[name]
    ours, theirs = looped(name), run(make(), own_app(getattr(clients, client), seeded))
    assert "does not send" not in caplog.text
    assert_arrays(arrays_of(theirs), arrays_of(ours), rtol=0.0001, atol=1e-05)
    # in SuPerFed's first round there is no personal model to score
    for number in range(2, ROUNDS + 1):
        assert ours.evaluate_metrics_clientapp[number]["loss"] == pytest.approx(
            theirs.evaluate_metrics_clientapp[number][loss], rel=1e-3
        )


@pytest.mark.parametrize("name", METHODS)
def test_the_users_function_may_move_the_parameters(name):
    """As ``net.to(device)`` does: the same parameters, with their values elsewhere."""
    make, loop, _, _ = METHODS[name]

    def elsewhere(net, loader, epochs, rate):
        for p in net.parameters():
            p.data = p.data.clone()
        return train(net, loader, epochs, rate)

    assert_arrays(
        arrays_of(looped(name)), arrays_of(run(make(), loop_app(getattr(clients, loop), elsewhere)))
    )


def test_what_is_fixed_has_no_gradient_left_from_before():
    """A gradient of 0 would let weight decay move it."""

    class Zeroing(torch.optim.SGD):
        def zero_grad(self):
            super().zero_grad(set_to_none=False)

    make = METHODS["fedrep"][0]
    wanted, found = (
        run(make(), loop_app(clients.FedRepLoop, make=kind, weight_decay=0.5))
        for kind in (torch.optim.SGD, Zeroing)
    )
    assert_arrays(arrays_of(wanted), arrays_of(found))
    assert wanted.evaluate_metrics_clientapp == found.evaluate_metrics_clientapp


def scaffold_reply(function):
    """Return what one client sends and the received arrays, c being 0.01 everywhere."""
    sent = {name: t.numpy() for name, t in seeded(7).state_dict().items()}
    control = {f"control.{name}": np.full_like(value, 0.01) for name, value in sent.items()}
    app = ClientApp()

    @app.train()
    def fit(message, context):
        data = blobs(0).train
        method = clients.ScaffoldLoop(Net, message, context)
        method.train(function, [(data.x, data.y)] * 3, EPOCHS, RATE)
        return method.reply({"num-examples": 1})

    content = RecordDict(
        {"a": ArrayRecord({n: Array(v) for n, v in (sent | control).items()}), "c": ConfigRecord()}
    )
    (reply,) = InlineGrid(app, 1).send_and_receive(
        [Message(content, dst_node_id=1000, message_type="train")]
    )
    (arrays,) = reply.content.array_records.values()
    del sent["mask"]  # which has no gradient
    return sent, {name: array.numpy() for name, array in arrays.items()}


SGDS = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "dampening": {"momentum": 0.9, "dampening": 0.5},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "a rate that changes": {"momentum": 0.5, "lr": lambda step: RATE / (1 + step)},
}


@pytest.mark.parametrize("name", SGDS)
def test_what_scaffold_reports_is_the_displacement_over_k_eta(name):
    """K eta is how far this optimiser moves a parameter whose gradient is always 1."""
    options = dict(SGDS[name])
    schedule = options.pop("lr", lambda step: RATE)

    def stepping(parameters, gradient):
        optimiser = torch.optim.SGD(parameters, RATE, **options)
        for step in range(3 * EPOCHS):
            optimiser.param_groups[0]["lr"] = schedule(step)
            optimiser.zero_grad()
            gradient(step)
            optimiser.step()

    one = torch.zeros((), requires_grad=True)
    stepping([one], lambda step: one.backward())

    def function(net, loader, epochs, rate):
        stepping(
            net.parameters(),
            lambda step: functional.cross_entropy(net(loader[0][0]), loader[0][1]).backward(),
        )

    sent, got = scaffold_reply(function)
    for key, start in sent.items():
        np.testing.assert_allclose(
            got[f"control.{key}"], (start - got[key]) / -one.item(), rtol=1e-4, atol=1e-6
        )


def test_with_adam_scaffolds_variate_is_the_mean_gradient_and_that_is_logged(caplog):
    seen = []

    def with_adam(net, loader, epochs, rate):
        names = {p: name for name, p in net.named_parameters()}
        for p in names:
            # called with each gradient, before the method's terms are added
            p.register_post_accumulate_grad_hook(lambda p: seen.append((names[p], p.grad.clone())))
        train(net, loader, epochs, rate, torch.optim.Adam)

    once.cache_clear()
    sent, got = scaffold_reply(with_adam)
    for name in sent:
        mean = np.mean([gradient.numpy() for of, gradient in seen if of == name], 0)
        np.testing.assert_allclose(got[f"control.{name}"], 0.01 + mean, rtol=1e-4, atol=1e-6)
    scaffold_reply(with_adam)
    assert caplog.text.count("SCAFFOLD is made for SGD") == 1


def test_the_users_optimiser_and_shuffling_are_repeatable():
    def batches(part):
        return DataLoader(TensorDataset(part.x, part.y), batch_size=8, shuffle=True)

    results = []
    for _ in range(2):
        app = loop_app(clients.SuPerFedLoop, batches=batches, make=torch.optim.Adam)
        results.append(arrays_of(run(SuPerFed(SuPerFedOptions(start=0.0)), app, 2)))
        torch.rand(5)
    assert_arrays(*results)


@pytest.mark.parametrize("kind", [clients.ScaffoldLoop, clients.FedDynLoop])
def test_a_function_without_an_optimiser_of_torch_is_refused(kind):
    def by_hand(net, loader, epochs, rate):
        ((x, y),) = loader
        functional.cross_entropy(net(x), y).backward()
        for p in net.parameters():
            p.data -= rate * p.grad

    strategy = {clients.ScaffoldLoop: Scaffold, clients.FedDynLoop: FedDyn}[kind]()
    refused(
        lambda: run(strategy, loop_app(kind, by_hand), 1),
        "took no step with an optimiser of torch",
        RuntimeError,
    )


def test_a_model_that_diverged_is_not_kept():
    def burst(net, loader, epochs, rate):
        train(net, loader, epochs, rate)
        net[1].weight.data.fill_(float("nan"))

    refused(
        lambda: run(Ditto(), loop_app(clients.DittoLoop, burst), 1),
        "lower the learning rate",
        RuntimeError,
    )


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (clients.FedProxLoop, ["proximal-mu"]),
        (
            clients.SuPerFedLoop,
            [
                "proximal-mu",
                "superfed-nu",
                "superfed-step-scale",
                "superfed-init",
                "superfed-mixing",
            ],
        ),
    ],
)
def test_a_term_that_the_server_does_not_send_is_named_once(kind, keys, caplog):
    once.cache_clear()
    run(FedAvg(), loop_app(kind), 2)
    said = [r.getMessage() for r in caplog.records if "does not send" in r.getMessage()]
    assert said == [
        f"{kind.__name__}: the server does not send {', '.join(keys)}, so this client trains "
        f"without the method's terms: use fedapps.strategies.{kind.__name__.removesuffix('Loop')}"
    ]


# --- closures -------------------------------------------------------------------------

# An optimiser that is passed a closure computes the gradients inside its step: the
# methods' terms must be added there.

MU = 20.0


def with_closure(net, loader, epochs, rate, keyword=True, make=torch.optim.SGD, **options):
    """Train as Lightning's automatic optimisation does: forward pass, ``zero_grad`` and
    backward pass are the closure, and the strategy wraps it once more.
    """
    net.train()
    optimiser = make(net.parameters(), rate, **options)
    last = None
    for _ in range(epochs):
        for x, y in loader:

            def closure(x=x, y=y):
                with torch.enable_grad():
                    loss = functional.cross_entropy(net(x), y)
                    optimiser.zero_grad()
                    loss.backward()
                return loss

            last = optimiser.step(closure=closure) if keyword else optimiser.step(closure)
    return last.item()


@pytest.mark.parametrize("keyword", [True, False])
@pytest.mark.parametrize("name", METHODS)
def test_a_step_with_a_closure_equals_a_step_without(name, keyword):
    make, loop, _, _ = METHODS[name]
    kind = getattr(clients, loop)
    plain = looped(name)
    closed = run(make(), loop_app(kind, with_closure, keyword=keyword))
    assert_arrays(arrays_of(plain), arrays_of(closed))
    assert plain.evaluate_metrics_clientapp == closed.evaluate_metrics_clientapp


def with_lbfgs(net, loader, epochs, rate, **options):
    return with_closure(
        net,
        loader,
        epochs,
        rate=1.0,
        make=torch.optim.LBFGS,
        max_iter=60,
        tolerance_grad=1e-9,
        tolerance_change=1e-12,
        **options,
    )


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_minimises_the_loss_with_the_proximal_term(search):
    """At the end the gradient of the whole objective is 0: the term's is minus the
    loss's.
    """
    nets = []

    def keeping(net, loader, epochs, rate):
        start = [p.detach().clone() for p in net.parameters()]
        loss = with_lbfgs(net, loader, epochs, rate, line_search_fn=search)
        net.zero_grad()
        ((x, y),) = loader
        functional.cross_entropy(net(x), y).backward()
        ends = [p.detach() for p in net.parameters()]
        terms = [MU * (end - begin) for end, begin in zip(ends, start, strict=True)]
        nets.append((terms, [-p.grad for p in net.parameters()]))
        return loss

    run(FedProx(FedProxOptions(mu=MU)), loop_app(clients.FedProxLoop, keeping), 1)
    assert len(nets) == 3
    for terms, wanted in nets:
        assert max(float(term.abs().max()) for term in terms) > 1e-2
        assert_arrays(terms, wanted, atol=1e-4)


class Twice(torch.optim.SGD):
    """An optimiser around another, as SAM and Lookahead are."""

    def __init__(self, parameters, rate):
        parameters = list(parameters)
        super().__init__(parameters, rate)
        self.inner = torch.optim.SGD(parameters, rate)

    def step(self, closure=None):
        return self.inner.step(closure)


class Scaled(torch.optim.SGD):
    """A fused optimiser under torch's GradScaler: its gradients are scaled until it
    moves the parameters.
    """

    def __init__(self, parameters, rate):
        super().__init__(parameters, rate)
        self.grad_scale = torch.tensor(1024.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: run(FedAvg(), loop_app(clients.ScaffoldLoop), 1),
            "the server's strategy must be Scaffold",
        ),
        *(
            (lambda make=make: run(FedProx(), loop_app(clients.FedProxLoop, make=make), 1), reason)
            for make, reason in [
                (Twice, "Twice calls the step of another optimiser"),
                (Scaled, "gradients are still scaled"),
            ]
        ),
        *(
            (
                lambda make=make, loop=loop: run(
                    make(), loop_app(getattr(clients, loop), with_lbfgs), 2
                ),
                "LBFGS takes several gradients in one step",
            )
            for make, loop, _, _ in (METHODS[name] for name in ("scaffold", "apfl", "superfed-mm"))
        ),
    ],
)
def test_what_a_loop_cannot_hold_is_refused(call, message):
    refused(call, message, RuntimeError)
