"""An estimate of the local steps of a run: from the settings and the data, never from a
clock, so that what depends on it is the same in every run with the same settings.
"""

from dataclasses import dataclass
from typing import Any

from fedapps.settings.settings import Settings
from fedapps.tasks.capabilities import HasNet

# Measured with benchmarks/speed.py steps on one core: seconds that a step takes besides
# its operations, and operations per second.
SECONDS_A_STEP, OPERATIONS_A_SECOND = 1.5e-4, 2e10
# Number of clients whose samples are counted.
COUNTED = 5


@dataclass(frozen=True)
class Work:
    """Local steps of a run, without compiling. ``clients``: how often a client trains;
    ``steps``: of one client in one round; ``operations``: floating-point operations of
    one step.
    """

    clients: int
    steps: float
    operations: float

    @property
    def seconds(self) -> float:
        """Seconds of a step on one core."""
        return SECONDS_A_STEP + self.operations / OPERATIONS_A_SECOND

    @property
    def of_client(self) -> float:
        """Seconds of a client in a round."""
        return self.steps * self.seconds

    @property
    def of_run(self) -> float:
        """Seconds of all local steps of the run."""
        return self.clients * self.of_client


def trainings(settings: Settings) -> int:
    """Return how often a client trains in the run: once in each round it is sampled."""
    return settings.num_rounds * (settings.clients_per_round or settings.num_clients)


def work_of(settings: Settings, task: Any) -> Work | None:
    """Return the estimate, or ``None`` where it is not known: sites with their own
    data, and tasks without a net. It reads the samples of some clients.
    """
    if settings.sites.own or not settings.num_clients or not isinstance(task, HasNet):
        return None
    train = settings.train
    counted = [
        task.client_data(client, settings.num_clients).train
        for client in range(min(COUNTED, settings.num_clients))
    ]
    samples = sum(map(len, counted)) / len(counted)
    # for methods whose number of local steps does not follow from ``train``
    own = getattr(settings.options, "steps_a_round", None)
    steps, batch_size = (
        own(samples)
        if own
        else (train.local_epochs * max(1, samples / train.batch_size), train.batch_size)
    )
    forward = operations(task.work_model(), counted[0].x[:1]) if len(counted[0]) else 0
    # backward takes twice as many
    return Work(trainings(settings), float(steps), 3.0 * forward * min(batch_size, samples))


def operations(model: Any, x: Any) -> int:
    """Return about how many operations a forward pass of one sample x (1, ...) takes:
    those of linear, convolutional and recurrent layers; in a net without these, two for
    each parameter. PyTorch's own counter finds none in a recurrent layer.
    """
    import torch
    from torch import nn

    total = 0

    def count(layer: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(layer, nn.RNNBase):
            weights = sum(p.numel() for name, p in layer.named_parameters() if "weight" in name)
            total += 2 * weights * inputs[0].numel() // inputs[0].shape[-1]
        elif isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
            total += 2 * layer.weight.numel() * output.numel() // len(layer.weight)

    hooks = [layer.register_forward_hook(count) for layer in model.modules()]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(x)
    except Exception:  # whatever is wrong with a net, its clients report it
        return 0
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return total or 2 * sum(p.numel() for p in model.parameters())
