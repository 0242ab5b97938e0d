"""FedBABU's client; source: ``strategies/fedbabu.py``."""

from contextlib import nullcontext
from typing import Any

from fedapps.algorithms.contract.sent import FedBABUSent
from fedapps.clients.base.scores import as_global
from fedapps.clients.base.training import Arrays, Config
from fedapps.clients.partial_sharing import FedRepClient


class FedBABUClient(FedRepClient):
    """Trains the body under the initial head; fine-tunes the model before it is
    scored.
    """

    epochs_before_use = FedBABUSent.key("epochs")
    reads = (FedBABUSent,)
    needs_all_steps = ""

    def train_parts(self, config: Config) -> float:
        """Train the body; return the mean loss."""
        with self.only(config, shared=True):
            return self.train(config)

    def evaluate(self, parameters: Arrays, config: Config) -> tuple[float, int, dict[str, Any]]:
        """Evaluate the model after fine-tuning, and before it as ``global-...``."""
        self.assemble(parameters, config, before=False)
        before = as_global(self.score(self.data.test))
        sent = FedBABUSent.from_config(config)
        if sent.epochs:
            shared = sent.part == "body"
            with nullcontext() if sent.part == "all" else self.only(config, shared):
                self.train({**config, "local-epochs": sent.epochs})
        scores = self.score(self.data.test)
        return scores["loss"], len(self.data.test), {**scores, **before}
