"""An optimiser that is passed a closure computes the gradients inside its step: the
methods' terms must be added there.
"""

import pytest
import torch
from torch.nn import functional

from fedapps import clients
from fedapps.strategies import FedProx, FedProxOptions
from tests.helpers import arrays_of, assert_arrays, refused
from tests.loops import METHODS, loop_app, looped, run

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


@pytest.mark.parametrize("name", ["scaffold", "apfl", "superfed-mm"])
def test_an_optimiser_that_takes_several_gradients_a_step_is_refused(name):
    make, loop, _, _ = METHODS[name]
    refused(
        lambda: run(make(), loop_app(getattr(clients, loop), with_lbfgs), 2),
        "LBFGS takes several gradients in one step",
        RuntimeError,
    )


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
    ("make", "reason"),
    [(Twice, "Twice calls the step of another optimiser"), (Scaled, "gradients are still scaled")],
)
def test_what_cannot_be_held_is_refused(make, reason):
    refused(
        lambda: run(FedProx(), loop_app(clients.FedProxLoop, make=make), 1), reason, RuntimeError
    )
