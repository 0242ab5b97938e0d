"""Base of the tasks with a torch model: one working model per process, the initial
model, and a cache of the clients' tensors.
"""

from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import derived_seed
from fedapps.algorithms.fairness.groups import Groups
from fedapps.clients.base.data import ClientData
from fedapps.errors import UserError
from fedapps.models.options import names_of_nets, net_of
from fedapps.tasks.context import RunContext

if TYPE_CHECKING:  # imported where it is needed: trees on a table do without
    import torch
    from torch import nn

#: Bytes of clients' samples that a process caches as tensors; beyond this, the least
#: recently used are dropped and rebuilt on demand.
KEPT_BYTES = 2**30


class TorchTask:
    """Base of tasks that train a torch model. Subclasses add ``check``, ``objective``,
    ``model_fn`` and ``prepare``.
    """

    name: str
    #: Whether the task deals samples with a class to its clients, and so supports
    #: data.noise, data.test and data.standardise.
    deals_samples = False

    def __init__(self, options: Any, context: RunContext) -> None:
        parts = {"test": "", "validation-split": "", "part": ""}
        for key, usual in (
            () if self.deals_samples else {"noise": "none", **parts, "standardise": "auto"}.items()
        ):
            if (chosen := getattr(context.data, key.replace("-", "_"))) != usual:
                raise UserError(
                    f"data.{key} = {chosen!r}: is for samples with a class, which this task does "
                    f"not deal: leave it {usual!r}"
                )
        self.options = options
        self.context = context
        self._work_model: nn.Module | None = None
        self._client_data: dict[int, ClientData] = {}
        self._kept_bytes = 0

    @cached_property
    def device(self) -> "torch.device":
        """The device of the net and of the clients' tensors. Raises ``UserError`` for
        one that is not there.
        """
        return device_of(self.context.device)

    def model_fn(self, seed: int) -> "nn.Module":
        """Return a newly initialised model on the device."""
        raise NotImplementedError

    @property
    def groups(self) -> Groups | None:
        """The groups that test samples are scored by (``data.group``), if any."""
        return None

    @property
    def has_images(self) -> bool:
        """Whether samples are images, which ``data.augment`` may ask to augment."""
        return False

    @property
    def num_outputs(self) -> int:
        """The number of model outputs per sample: the number of classes, or 1 for
        binary classification.
        """
        raise NotImplementedError

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return the data of client ``client`` of ``num_clients``, on any device;
        deterministic.
        """
        raise NotImplementedError

    def work_model(self) -> "nn.Module":
        """Return the module shared by the clients of this process for training and
        evaluation.
        """
        if self._work_model is None:
            self._work_model = self.fresh_model(0)
        return self._work_model

    def initial_model(self) -> "nn.Module":
        """Return the model that the run starts from."""
        return self.fresh_model(self._first_seed)

    def fresh_model(self, seed: int) -> "nn.Module":
        """Return a new model to be trained: drawn by ``seed``, or, with the run's own
        seed, with the weights of ``model.weights``; with ``model.adapter`` the frozen
        part is always the run's.
        """
        model, chosen = self._start(seed), self.context.model
        if chosen.adapter != "none":
            from fedapps.models.lora import adapt

            adapt(model, chosen, self.frozen, seed)
        return model

    @cached_property
    def frozen(self) -> "dict[str, torch.Tensor]":
        """The parameters that ``model.adapter`` leaves as they are, by name. Raises
        ``UserError`` if they are not those of the run.
        """
        from fedapps.models.lora import fingerprint, frozen_part

        start, chosen = self._start(self._first_seed), self.context.model
        found = frozen_part(start, declared_head(start, chosen.name))
        if chosen.frozen not in ("", now := fingerprint(found)):
            raise UserError(
                f"model.frozen = {chosen.frozen!r}: this process has other frozen weights ({now}): "
                "give it the same version of PyTorch, and the same file as model.weights or folder "
                "as model.name"
            )
        return found

    @property
    def _first_seed(self) -> int:
        return derived_seed(self.context.seed, "model")

    def _start(self, seed: int) -> "nn.Module":
        """Return a net without adapters."""
        model, chosen = self.model_fn(seed), self.context.model
        if chosen.weights and seed == self._first_seed:
            from fedapps.models.weights import read_weights

            read_weights(model, chosen.weights)
        if chosen.head:  # "head" may be a layer
            model.chosen_head = head_of(model, chosen.head)  # type: ignore[assignment]
        return model

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the initial model by name."""
        from fedapps.algorithms.common.modules import get_arrays

        model = self.initial_model()
        return dict(zip(model.state_dict(), get_arrays(model), strict=True))

    def client_data(self, client_id: int | str, num_clients: int) -> ClientData:
        """Return a client's training, validation and test samples, on the device."""
        client_id = dealt(client_id, num_clients)
        kept = self._client_data
        data = kept.pop(client_id, None)
        if data is None:
            data = self.to_train_on(self.prepare(client_id, num_clients))
            if self.context.data.test_rows:
                data = replace(data, test=replace(data.test, rows=True))
            self._kept_bytes += data.nbytes
            while kept and self._kept_bytes > KEPT_BYTES:
                self._kept_bytes -= kept.pop(next(iter(kept))).nbytes
        kept[client_id] = data  # at the end: the first entry is the least recently used
        return data

    def to_train_on(self, data: ClientData) -> ClientData:
        """Return a client's data on the device, its training samples marked as
        ``data.augment`` says. Raises ``UserError`` if that is not for them.
        """
        data, how = data.to(self.device), self.context.data.augment
        if how == "none":
            return data
        if not self.has_images:
            raise UserError(
                f"data.augment = {how!r}: is for images, which the samples are not: leave it 'none'"
            )
        train = replace(data.train, augment=how)
        shared = data.validation is data.train
        return replace(data, train=train, validation=train if shared else data.validation)


class NetByShape(TorchTask):
    """Base of the tasks whose samples have one shape, so that nets of any name fit."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a sample; (1, 1, d) of a vector."""
        raise NotImplementedError

    @property
    def usual_net(self) -> str:
        """The net that ``model.name = "auto"`` stands for."""
        from fedapps.models.image_nets import net_for

        return net_for(self.image_shape)

    @cached_property
    def _by_net(self) -> dict[str, Self]:
        return {}

    def with_net_of(self, client_id: int | str) -> Self:
        """Return the task with the net of a client, if clients have different ones."""
        name = net_of(self.context.model.name, client_id)
        if name == self.context.model.name:
            return self
        if name not in self._by_net:
            own = self._by_net[name] = copy(self)
            own.context = replace(self.context, model=replace(self.context.model, name=name))
            own._work_model = None
        return self._by_net[name]

    def model_fn(self, seed: int) -> "nn.Module":
        """Return a newly initialised model. With ``model.start = "zero"`` a net of one
        layer starts at 0: its loss is convex, so that no random weights are needed to
        tell units apart, and its first prediction is the trivial one, the mean of the
        targets or even odds. Random weights of variance 2 / (F + 1) on F standardised
        features add about 2 to the mean squared standardised error, until they are
        forgotten.
        """
        import torch

        from fedapps.algorithms.common.modules import trains_alone
        from fedapps.models.image_nets import BY_SHAPE, ONE_LAYER, build_model

        chosen = self.context.model
        first = names_of_nets(chosen.name)[0]
        name = self.usual_net if first == BY_SHAPE else first
        model = build_model(name, self.image_shape, self.num_outputs, seed, chosen.pretrained)
        for parameter in model.parameters() if name in ONE_LAYER else ():
            if chosen.start == "zero":
                parameter.detach().zero_()
        two = torch.zeros(2, *self.image_shape)
        if self.context.train.batch_size == 1 and not trains_alone(model, two):
            raise UserError(
                f"train.batch-size = 1: model.name = {name!r} cannot train on a single sample, as "
                "with batch normalisation: choose 2 or more"
            )
        return model.to(self.device)


def dealt(client_id: int | str, num_clients: int) -> int:
    """Return the id of a client to whom data are dealt. Raises ``UserError`` for
    another one.
    """
    if not isinstance(client_id, int) or not 0 <= client_id < num_clients:
        raise UserError(
            f"client {client_id!r}: this task gives data to clients 0..{num_clients - 1} (set "
            "partition-id)"
        )
    return client_id


def declared_head(model: "nn.Module", name: str) -> tuple[str, ...]:
    """Return the name prefixes of the head of the net ``name``. Raises ``UserError`` if
    it declares no head.
    """
    from fedapps.clients import partial_sharing

    try:
        return partial_sharing.head_of(model)
    except ValueError:
        raise UserError(
            f"model.head = '': {name!r} declares no head: set it to one of "
            f"{', '.join(layers_of(model))}"
        ) from None


def head_of(model: "nn.Module", names: str) -> tuple[str, ...]:
    """Return the comma-separated layers of a setting as prefixes of array names. Raises
    ``UserError`` if one does not exist.
    """
    head = tuple(f"{name.strip().rstrip('.')}." for name in names.split(","))
    for prefix in head:
        if not any(name.startswith(prefix) for name in model.state_dict()):
            raise UserError(
                f"model.head = {names!r}: there is no layer {prefix[:-1]!r}: choose among "
                f"{', '.join(layers_of(model))}, or whole "
                "parts of these"
            )
    return head


def layers_of(model: "nn.Module") -> list[str]:
    """Return the names of the layers that have arrays."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in model.state_dict()))


def device_of(name: str) -> "torch.device":
    """Return the device of a setting. ``auto`` is the CPU here: whether a GPU pays is
    decided where the run is launched. Raises ``UserError`` for one that is not there.
    """
    import torch

    kind, _, number = ("cpu" if name == "auto" else name).partition(":")
    if kind != "cpu":
        found = torch.get_device_module(kind).device_count()
        remedy = (
            "choose 'cpu', or give clients one with --gpus-per-client (flwr run: "
            "client-resources-num-gpus)"
        )
        if kind == "cuda" and not found:
            raise UserError(f"device = {name!r}, but no GPU is visible here: {remedy}")
        if int(number or 0) >= found:
            raise UserError(
                f"device = {name!r}, but {found} devices of kind {kind} are visible here: choose "
                + (f"{kind}:0 to {kind}:{found - 1}" if found else "'cpu'")
            )
    return torch.device(f"{kind}:{number}" if number else kind)
