"""Arguments of another kind than declared are refused when they are given, in one line
with what to type.
"""

from contextlib import nullcontext

import pytest
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as flower

from fedapps import clients
from fedapps.engines.inline import InlineGrid
from fedapps.strategies import (
    APFL,
    AAggFFS,
    FedAdam,
    FedAvg,
    FedFW,
    FedProx,
    FedProxOptions,
    FedRep,
    Robust,
    RobustOptions,
    SuPerFed,
    SuPerFedOptions,
    TooFewReplies,
)


@pytest.mark.parametrize(
    ("make", "typed"),
    [
        (lambda: Robust(FedAvg(), RobustOptions()), "RobustOptions(rule='median')"),
        (lambda: Robust(FedAvg(), "median"), "RobustOptions(rule='median')"),
        (lambda: FedRep("fc"), "['fc']"),
        (lambda: FedAdam(0.1), "FedOptOptions(server_learning_rate=0.1)"),
        (lambda: FedAdam(eta=0.1), "FedAdam(FedOptOptions(server_learning_rate=0.1))"),
        (lambda: FedProx(0.1), "FedProxOptions(mu=0.1)"),
        (lambda: FedProx(proximal_mu=0.1), "FedProx(FedProxOptions(mu=0.1))"),
        (lambda: FedProx(mu=0.1), "FedProx(FedProxOptions(mu=0.1))"),
        (lambda: FedProxOptions(mu="0.1"), "FedProxOptions(mu=0.01)"),
        (lambda: FedProxOptions(mu=True), "FedProxOptions(mu=0.01)"),
        (lambda: FedFW("l1"), "Domain (fedapps.algorithms.frank_wolfe)"),
        (lambda: AAggFFS(FedAvg), "FedAvg()"),
        (lambda: AAggFFS(flower.FedAvg), "FedAvg()"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_to_type(make, typed):
    with pytest.raises((TypeError, ValueError)) as error:
        make()
    assert typed in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["SuPerFed", "APFL"])
@pytest.mark.parametrize("early", [False, True])
def test_an_optimiser_made_before_the_training_is_refused(name, early):
    """It would leave the personal model where it was."""
    torch = pytest.importorskip("torch")
    app, kind = ClientApp(), getattr(clients, f"{name}Loop")

    @app.train()
    def fit(message, context):
        method = kind(lambda: torch.nn.Linear(4, 2), message, context)
        before = torch.optim.SGD(method.model.parameters(), 0.1)

        def train(model, loader, epochs):
            optimiser = before if early else torch.optim.SGD(model.parameters(), 0.1)
            for x, y in loader:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimiser.step()

        method.train(train, [(torch.eye(4), torch.arange(4) % 2)], 1)
        return method.reply({"num-examples": 4})

    strategy = APFL() if name == "APFL" else SuPerFed(SuPerFedOptions(start=0.0))
    model = torch.nn.Linear(4, 2).state_dict()
    refused = pytest.raises(TooFewReplies, match="make it in the function that trains")
    with refused if early else nullcontext():
        strategy.start(InlineGrid(app, 2), ArrayRecord(model), num_rounds=2)
