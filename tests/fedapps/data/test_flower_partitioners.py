"""Partitioners of flwr-datasets by their names: what each promises of its parts, their
seed, what they cannot do in one line.
"""

import re

import datasets
import numpy as np
import pytest

from fedapps.commands.parser import main
from fedapps.data import flower_partitioners
from fedapps.data.images import read_samples
from fedapps.data.options import DataOptions
from fedapps.data.partition import natural_clients, partition
from fedapps.errors import UserError
from fedapps.settings.reading import read_settings
from tests.helpers import refused


@pytest.fixture(scope="module")
def digits():
    return read_samples(DataOptions())


@pytest.fixture
def folder(tmp_path, own_caches):
    """60 rows: ``site`` names 6 clients of 10, ``age`` is 0..59 in a mixed order,
    ``label`` one of 3 classes.
    """
    age = np.random.default_rng(0).permutation(60)
    columns = {
        "x": age / 10,
        "age": age,
        "site": [f"s{i % 6}" for i in range(60)],
        "label": [i // 20 for i in range(60)],
    }
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(columns).to_csv(tmp_path / "set" / "train.csv")
    return str(tmp_path / "set")


def parts_of(images, name, arguments="", clients=5, seed=3, **others):
    options = DataOptions(partition=f"flwr:{name}", partition_arguments=arguments, **others)
    return partition(images, options, clients, seed)


ARGUMENTS = {
    "ContinuousPartitioner": 'partition_by = "label", strictness = 0.7',
    "DirichletPartitioner": "alpha = 0.5",
    "DistributionPartitioner": f"distribution_array = {[[1, 2, 1, 3]] * 10}, num_unique_labels_per_partition = 4, "
    "preassigned_num_samples_per_label = 3",
    "GroupedNaturalIdPartitioner": 'partition_by = "label", group_size = 2',
    "InnerDirichletPartitioner": "partition_sizes = [100, 200, 300, 50, 80], alpha = 0.4",
    "NaturalIdPartitioner": 'partition_by = "label"',
    "PathologicalPartitioner": "num_classes_per_partition = 2",
    "ShardPartitioner": "num_shards_per_partition = 2",
    "SizePartitioner": "partition_sizes = [100, 200, 300, 50, 80]",
}


@pytest.mark.parametrize("name", flower_partitioners.names())
def test_every_partitioner_deals_disjoint_samples_by_the_seed(digits, name):
    given = {"name": name, "arguments": ARGUMENTS.get(name, "")}
    clients = 10 if name in ("NaturalIdPartitioner", "DistributionPartitioner") else 5
    parts = parts_of(digits, **given, clients=clients)
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert len(set(rows.tolist())) == len(rows), "no sample is dealt twice"
    assert all((np.diff(part) > 0).all() for part in parts)
    again = parts_of(digits, **given, clients=clients)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    other = parts_of(digits, **given, clients=clients, seed=4)
    same = all(np.array_equal(a, b) for a, b in zip(parts, other, strict=True))
    assert same == (
        name == "NaturalIdPartitioner" or (name == "GroupedNaturalIdPartitioner" and same)
    )


def test_each_does_what_its_name_says(digits):
    def sizes(name):
        return [len(part) for part in parts_of(digits, name, ARGUMENTS.get(name, ""))]

    assert sizes("SizePartitioner") == [100, 200, 300, 50, 80]
    assert sizes("InnerDirichletPartitioner") == [100, 200, 300, 50, 80]
    assert np.ptp(sizes("IidPartitioner")) <= 1
    np.testing.assert_allclose(sizes("LinearPartitioner"), 1797 * np.arange(1, 6) / 15, atol=5)
    np.testing.assert_allclose(sizes("SquarePartitioner"), 1797 * np.arange(1, 6) ** 2 / 55, atol=5)
    two = parts_of(digits, "PathologicalPartitioner", "num_classes_per_partition = 2")
    assert all(len(np.unique(digits.labels[part])) == 2 for part in two)

    def skew(alpha):
        parts = parts_of(digits, "DirichletPartitioner", f"alpha = {alpha}")
        return np.mean([np.bincount(digits.labels[part]).max() / len(part) for part in parts])

    assert skew(0.1) > 2 * skew(100.0)


def test_a_set_that_is_sorted_by_class_is_shuffled_before_it_is_cut(folder):
    images = read_samples(DataOptions(source=folder, partition="flwr:IidPartitioner"))
    assert (np.diff(images.labels) >= 0).all()
    assert all(
        len(np.unique(images.labels[part])) == 3
        for part in parts_of(images, "IidPartitioner", clients=3)
    )


def test_columns_of_a_table(folder):
    def dealt(clients, name, **arguments):
        options = DataOptions(
            source=folder,
            partition=f"flwr:{name}",
            partition_arguments=", ".join(f"{key} = {one!r}" for key, one in arguments.items()),
        )
        images = read_samples(options)
        return images, natural_clients(images, options), partition(images, options, clients, 0)

    images, number, parts = dealt(6, "NaturalIdPartitioner", partition_by="site")
    assert images.x.shape[-1] == 2, "x and age; whose a sample is is no input"
    assert number == 6
    natural = DataOptions(source=folder, partition="natural", natural_id="site")
    wanted = partition(read_samples(natural), natural, 6, 0)
    assert [part.tolist() for part in parts] == [part.tolist() for part in wanted]
    _, number, parts = dealt(3, "GroupedNaturalIdPartitioner", partition_by="site", group_size=2)
    assert number == 3
    for part in parts:
        assert len(part) == 20
        assert len(np.unique(part % 6)) == 2
    images, _, parts = dealt(4, "ContinuousPartitioner", partition_by="age", strictness=1.0)
    assert images.x.shape[-1] == 8, "x, age, and the six values of site"
    ages = [np.sort(images.by[part]).tolist() for part in parts]
    assert ages == [list(range(start, start + 15)) for start in (0, 15, 30, 45)]


def test_the_command_names_partitioner_and_arguments(capsys):
    asked = ["data.partition=flwr:DirichletPartitioner", "data.partition-arguments=alpha = 0.7"]
    assert main(["data", *asked, "num-clients=4"]) == 0
    assert capsys.readouterr().out.startswith(
        "digits: 4 clients (flwr:DirichletPartitioner, alpha = 0.7), 10 classes"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "Dirichlet",
            "",
            "data.partition = 'flwr:Dirichlet': did you mean 'DirichletPartitioner'? choose one of "
            "ContinuousPart",
        ),
        (
            "DirichletPartitioner",
            "",
            "data.partition = 'flwr:DirichletPartitioner': needs alpha: data.partition-arguments = "
            "'alpha = ...'",
        ),
        (
            "DirichletPartitioner",
            "alhpa = 1",
            "data.partition-arguments: DirichletPartitioner has no argument 'alhpa': did you mean "
            "'alpha'?",
        ),
        (
            "IidPartitioner",
            "num_partitions = 3",
            "data.partition-arguments: num_partitions is the number of clients: set num-clients",
        ),
        (
            "DirichletPartitioner",
            "alpha = -1.0",
            "data.partition = 'flwr:DirichletPartitioner': flwr-datasets refuses: ",
        ),
        (
            "SizePartitioner",
            "partition_sizes = [9, 9]",
            "makes 2 clients of digits, 5 are asked for: leave num-clients 0",
        ),
        (
            "ExponentialPartitioner",
            "",
            "of 8 gets 1 samples of digits, it needs 5: choose fewer clients",
        ),
        (
            "VerticalEvenPartitioner",
            "",
            "data.partition = 'flwr:VerticalEvenPartitioner': deals columns",
        ),
        ("IdToSizeFncPartitioner", "", "takes a function: choose Linear-, Square-"),
        ("NaturalIdPartitioner", "", "name a column: data.partition-arguments = 'partition_by"),
        (
            "NaturalIdPartitioner",
            "partition_by = 3",
            "data.partition-arguments: partition_by = 3: must be the name of a column",
        ),
        (
            "NaturalIdPartitioner",
            "partition_by = 'writer'",
            "partition_by = 'writer': the digits have no such column",
        ),
    ],
)
def test_mistakes_are_one_line(name, arguments, message):
    options = DataOptions(partition=f"flwr:{name}", partition_arguments=arguments)
    clients = 8 if name == "ExponentialPartitioner" else 5
    refused(
        lambda: partition(read_samples(options), options, clients, 0), re.escape(message), UserError
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data.partition-arguments": "alpha = 1"},
            "data.partition-arguments = 'alpha = 1': are those of partition = 'flwr:NAME'",
        ),
        (
            {"data.partition": "flwr:IidPartitioner", "data.partition-arguments": "alpha: 1"},
            "data.partition-arguments = 'alpha: 1': must be name = value, with commas between them",
        ),
    ],
)
def test_text_that_cannot_be_read_is_refused_at_once(settings, message):
    refused(lambda: read_settings(settings), "^" + re.escape(message), UserError)
