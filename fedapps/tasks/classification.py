"""Classification of images, arrays or numbers with a torch model: the task of the
averaging and personalised methods.

The data set is loaded once per process; clients' tensors are cached.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedapps.algorithms.common.seeds import generator
from fedapps.algorithms.fairness.groups import Groups
from fedapps.clients.base.data import ArrayData, ClientData, Split
from fedapps.data import partition as partitions
from fedapps.data.held_out import dealt_part, part_of, remark
from fedapps.data.images import read_samples, read_set
from fedapps.data.remarks import remarks_on
from fedapps.data.scaling import Moments, Scale, TableScale, inputs
from fedapps.data.source import TEST, VALIDATION, Samples
from fedapps.errors import UserError
from fedapps.extensions.registered import reference_of, registered
from fedapps.models.options import names_of_nets
from fedapps.notes import logger
from fedapps.strategies.base.reply_validation import LONGEST_METRIC
from fedapps.tasks.base import NetByShape
from fedapps.tasks.context import RunContext
from fedapps.tasks.dealt_samples import DealtSamples

if TYPE_CHECKING:  # trees on tables need no PyTorch
    from fedapps.clients.base.evaluation import Objective

#: The samples that a client trains on, validates with and is scored on.
ThreeParts = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


class Classification(DealtSamples, NetByShape):
    """Classification of a data set of images, arrays or numbers, partitioned over
    clients according to the settings.
    """

    name = "classification"
    deals_samples = True

    def __init__(self, options: Any, context: RunContext) -> None:
        from fedapps.models import image_nets

        known = (image_nets.BY_SHAPE, *image_nets.NAMES)
        for name in names_of_nets(context.model.name):
            if name not in known and not reference_of("model.name", name):
                raise UserError(image_nets.unknown(name, [*known, *registered("model.name")]))
        super().__init__(options, context)

    def read(self) -> Samples:
        """Read the whole data set."""
        return read_samples(self.context.data)

    @cached_property
    def objective(self) -> "Objective":
        """Cross-entropy; with ``data.class-weights`` weighted by class in training (not
        in the metrics).
        """
        import torch
        from torch.nn import functional

        from fedapps.clients.base.evaluation import CLASSIFICATION, Objective

        if not self.context.data.class_weights:
            return CLASSIFICATION
        counts = np.bincount(self.samples.labels, minlength=self.samples.num_classes)
        weights = torch.tensor(
            len(self.samples.labels) / (counts + 1), dtype=torch.float32, device=self.device
        )
        return Objective(partial(functional.cross_entropy, weight=weights), CLASSIFICATION.score)

    @property
    def from_clients(self) -> str:
        """What is made from the clients' data before the first round."""
        found = (
            ["the synthetic set (data.synthetic), unless it was made privately"]
            if self.context.data.synthetic
            else []
        )
        found += (
            ["the class weights (data.class-weights), from the labels of all clients"]
            if self.context.data.class_weights
            else []
        )
        columns = None if self.context.sites.own else self.samples.numbers
        if columns and columns.categories and not columns.known:
            found.append(
                f"the values of the columns {', '.join(columns.categories)}, found in the samples "
                "of all clients"
            )
        if not self.context.sites.own and self.standardise == "sums":
            found.append(
                "mean and deviation of the inputs (data.standardise = 'sums'), from the samples of "
                "all clients"
            )
        return " and ".join(found)

    @lru_cache(maxsize=2)  # noqa: B019 - a task lives as long as its process
    def test_parts(self, num_clients: int) -> list[NDArray[np.int64]] | None:
        """Return the samples that each client is scored on, if the data say which
        (``data.test``, ``data.part``); else None.
        """
        part = part_of(self.samples, self.context.data, TEST)
        return dealt_part(self.samples, self.partition(num_clients), part, self.context.split_seed)

    def own_test(self, num_clients: int) -> bool:
        """Return whether the data say which samples clients are scored on."""
        return self.test_parts(num_clients) is not None

    @lru_cache(maxsize=2)  # noqa: B019
    def validation_parts(self, num_clients: int) -> list[NDArray[np.int64]] | None:
        """Return the samples that each client chooses models by, if the data say which
        (``data.validation-split``); else None.
        """
        part = part_of(self.samples, self.context.data, VALIDATION)
        return dealt_part(self.samples, self.partition(num_clients), part, self.context.split_seed)

    def split(self, client: int, num_clients: int) -> ThreeParts:
        """Return the rows of a client's training, validation (empty if it is
        the training set) and test sets.
        """
        tests, validations = self.test_parts(num_clients), self.validation_parts(num_clients)
        share = self.context.data.validation if validations is None else 0.0
        mine, test = self.partition(num_clients)[client], None if tests is None else tests[client]
        rows = self.split_of(mine, client, share, test)
        own = rows if validations is None else (rows[0], validations[client], rows[2])
        return partitions.scored(own, self.context.data, self.samples.persons)

    def remarks(self, num_clients: int) -> list[str]:
        """Return a line for each thing that a user should know of the partition: who is
        left out, what is scored.
        """
        d, parts = self.context.data, self.partition(num_clients)
        lines = remarks_on(self.samples, d)
        for number, own in (
            (TEST, self.test_parts(num_clients)),
            (VALIDATION, self.validation_parts(num_clients)),
        ):
            part = part_of(self.samples, d, number)
            lines += [] if own is None else [remark(self.samples, parts, own, part)]
        return lines

    @property
    def standardise(self) -> str:
        """How inputs are brought to mean 0 and deviation 1: "none", "client" or
        "sums".
        """
        chosen = self.context.data.standardise
        return chosen if chosen != "auto" else "sums" if self.samples.numbers else "none"

    @lru_cache(maxsize=2)  # noqa: B019
    def common_scale(self, num_clients: int) -> Scale:
        """Return the scale that follows from the sums of all clients over their
        training samples.
        """
        rows = (self.split(client, num_clients)[0] for client in range(num_clients))
        return self.scale_over(rows)

    def scale_over(self, clients: Iterable[NDArray[np.int64]]) -> Scale:
        """Return the scale that follows from the training samples of these clients."""
        parts = (inputs(self.samples, mine) for mine in clients)
        columns = self.samples.numbers
        if columns and columns.used:
            return TableScale.of_rows(list(parts), columns, self.context.data.clip)
        return Scale.of_sums(map(Moments.of, parts))

    def scale_for(self, train: NDArray[np.int64], num_clients: int) -> Scale | None:
        """Return how the inputs of a client with these training samples are scaled."""
        return (
            self.common_scale(num_clients) if self.standardise == "sums" else self.scale_of(train)
        )

    def input_scale(self, num_clients: int) -> dict[str, list[Any]]:
        """Return names, mean and deviation of a table's features, for those who use the
        model elsewhere; {} if each client has its own.
        """
        columns = self.samples.numbers
        if not (columns and columns.used) or self.standardise != "sums":
            return {}
        scale: Any = self.common_scale(num_clients)
        named = {
            "mean": np.where(scale.numeric, scale.mean, 0),
            "deviation": scale.deviation,
            "clip": np.array(scale.clip),
        }
        return {
            "features": list(columns.used),
            **{key: values.ravel().tolist() for key, values in named.items()},
        }

    def scale_of(self, rows: NDArray[np.int64]) -> Scale | None:
        """Return a client's own scale, by its training samples; None unless each client
        has one.
        """
        return self.scale_over([rows]) if self.standardise == "client" else None

    @property
    def groups(self) -> Groups | None:
        """The groups of the column ``data.group``."""
        if self.samples.groups is None:
            return None
        groups = Groups(self.samples.groups.names, self.samples.num_classes)
        if (size := groups.shape[0] * groups.shape[1]) > LONGEST_METRIC:
            raise UserError(
                f"data.group = {self.context.data.group!r}: {len(groups.names)} groups and "
                f"{groups.classes} classes are {size} numbers "
                f"a client, more than {LONGEST_METRIC}: choose a column with fewer values, or "
                "data.group-edges"
            )
        return groups

    def check(self, num_clients: int) -> None:
        """Load and partition the data and build the model, so that errors are reported
        before a run starts.
        """
        if self.test_parts(num_clients) is not None and self.context.data.folds:
            raise UserError("data.folds: the data name their own test samples: leave it 0")
        self.validation_parts(num_clients)
        if self.samples.targets is None and self.samples.num_classes < 2:
            raise UserError(
                f"data.label: all samples of {self.context.data.source} are of one class: name the "
                "column of classes"
            )
        everything = np.arange(len(self.samples.labels))
        if self.standardise == "none" and np.isnan(inputs(self.samples, everything)).any():
            raise UserError(
                "data.standardise = 'none': missing values are filled only if inputs are scaled: "
                "choose 'sums' or 'client'"
            )
        for line in self.remarks(num_clients):
            logger.warning("%s", line)
        _ = self.objective
        _ = self.groups  # raises if they are too many
        if self.context.data.synthetic:  # without the pre-training, which would be done twice
            self.synthetic_set()
            self.initial_model()
        else:
            self.initial_arrays()

    @property
    def has_images(self) -> bool:
        """Whether samples have a height: those of numbers, sensors and sounds have
        none.
        """
        return self.image_shape[1] > 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.samples.x.shape[1:]
        return channels, height, width

    @property
    def num_outputs(self) -> int:
        """The number of classes."""
        return self.samples.num_classes

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the initial model, pre-trained on the set ``data.synthetic`` if that
        is to be used for pre-training.
        """
        chosen = self.context.data
        if not chosen.synthetic or chosen.synthetic_use != "pretrain":
            return super().initial_arrays()
        from fedapps.algorithms.common.modules import get_arrays
        from fedapps.tasks.set_training import fit

        model = self.initial_model()
        rng = generator(self.context.seed, "pre-training on synthetic samples")
        fit(model, self.synthetic_set(), self.context.synthetic.steps, rng)
        return dict(zip(model.state_dict(), get_arrays(model), strict=True))

    def prepare(self, client: int, num_clients: int) -> ClientData:
        """Return a client's training, validation and test samples; a synthetic set to
        be mixed in is added to training.
        """
        rows = self.split(client, num_clients)
        scale = self.scale_for(rows[0], num_clients)
        own = self.parts(rows, scale).tensors()
        # all may be scored on the same samples, or choose by them
        if client and self.standardise != "client":
            first = self.split(0, num_clients)
            own = (
                replace(own, test=self.client_data(0, num_clients).test)
                if rows[2] is first[2]
                else own
            )
        own = partitions.noisy(
            own,
            self.context.data,
            self.samples.num_classes,
            generator(self.context.seed, "noise", client),
        )
        if self.context.data.synthetic and self.context.data.synthetic_use == "mix":
            import torch

            made = self.synthetic_set()
            x, y = (
                torch.cat([own.train.x, made.x.to(own.train.x)]),
                torch.cat([own.train.y, made.y.to(own.train.y)]),
            )
            return replace(own, train=Split(x, y))
        return own

    def parts(self, rows: ThreeParts, scale: Scale | None) -> ArrayData:
        """Return these samples as arrays in the shape that nets take."""
        return partitions.client_arrays(self.samples, rows, scale)

    def synthetic_set(self) -> Split:
        """Return the set ``data.synthetic``. Raises ``UserError`` if it does not fit
        the task.
        """
        from fedapps.tasks.set_training import check_fits, tensors

        source = self.context.data.synthetic
        samples = read_set(source)
        check_fits(samples, self.image_shape, self.num_outputs, f"data.synthetic = {source!r}")
        return tensors(samples, self.device)


class Digits(Classification):
    """Classification of scikit-learn's bundled handwritten digits; needs no
    download.
    """

    name = "digits"

    def __init__(self, options: Any, context: RunContext) -> None:
        if context.data.source != "digits":
            raise UserError(
                f"task = 'digits', but data.source = {context.data.source!r}: choose task = "
                "'classification'"
            )
        super().__init__(options, context)
