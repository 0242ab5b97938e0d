"""Partitioners of flwr-datasets by their names: what each promises of its parts, their
seed, what they cannot do in one line.
"""

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
from fedapps.toml_text import read_toml


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
    sizes = [100, 200, 300, 50, 80]
    assert [
        len(part) for part in parts_of(digits, "SizePartitioner", ARGUMENTS["SizePartitioner"])
    ] == sizes
    assert [
        len(part)
        for part in parts_of(
            digits, "InnerDirichletPartitioner", ARGUMENTS["InnerDirichletPartitioner"]
        )
    ] == sizes
    assert np.ptp([len(part) for part in parts_of(digits, "IidPartitioner")]) <= 1
    linear = np.array([len(part) for part in parts_of(digits, "LinearPartitioner")])
    assert np.abs(linear - 1797 * np.arange(1, 6) / 15).max() <= 5
    square = np.array([len(part) for part in parts_of(digits, "SquarePartitioner")])
    assert np.abs(square - 1797 * np.arange(1, 6) ** 2 / 55).max() <= 5
    two = parts_of(digits, "PathologicalPartitioner", "num_classes_per_partition = 2")
    assert all(len(np.unique(digits.labels[part])) == 2 for part in two)
    assert all(
        len(np.unique(digits.labels[part])) > 8 for part in parts_of(digits, "IidPartitioner")
    ), "shuffled before it is cut"
    uneven = [
        np.mean(
            [
                np.bincount(digits.labels[part]).max() / len(part)
                for part in parts_of(digits, "DirichletPartitioner", text)
            ]
        )
        for text in ("alpha = 0.1", "alpha = 100.0")
    ]
    assert uneven[0] > 2 * uneven[1]


def test_a_set_that_is_sorted_by_class_is_shuffled_before_it_is_cut(folder):
    images = read_samples(DataOptions(source=folder, partition="flwr:IidPartitioner"))
    assert (np.diff(images.labels) >= 0).all()
    assert all(
        len(np.unique(images.labels[part])) == 3
        for part in parts_of(images, "IidPartitioner", clients=3)
    )


def test_columns_of_a_table(folder):
    by_site = {
        "source": folder,
        "partition": "flwr:NaturalIdPartitioner",
        "partition_arguments": "partition_by = 'site'",
    }
    images = read_samples(DataOptions(**by_site))
    assert images.x.shape[-1] == 2, "x and age; whose a sample is is no input"
    natural = read_samples(DataOptions(source=folder, partition="natural", natural_id="site"))
    wanted = partition(
        natural, DataOptions(source=folder, partition="natural", natural_id="site"), 6, 0
    )
    assert natural_clients(images, DataOptions(**by_site)) == 6
    assert [part.tolist() for part in partition(images, DataOptions(**by_site), 6, 0)] == [
        part.tolist() for part in wanted
    ]
    grouped = DataOptions(
        **{
            **by_site,
            "partition": "flwr:GroupedNaturalIdPartitioner",
            "partition_arguments": "partition_by = 'site', group_size = 2",
        }
    )
    images = read_samples(grouped)
    assert natural_clients(images, grouped) == 3
    for part in partition(images, grouped, 3, 0):
        assert len(part) == 20
        assert len(np.unique(part % 6)) == 2
    ordered = DataOptions(
        source=folder,
        partition="flwr:ContinuousPartitioner",
        partition_arguments="partition_by = 'age', strictness = 1.0",
    )
    images = read_samples(ordered)
    assert images.x.shape[-1] == 8, "x, age, and the six values of site"
    ages = [np.sort(images.by[part]).tolist() for part in partition(images, ordered, 4, 0)]
    assert ages == [list(range(start, start + 15)) for start in (0, 15, 30, 45)]


def test_the_settings_file_of_a_run_repeats_it(tmp_path, capsys):
    asked = [
        "data.partition=flwr:DirichletPartitioner",
        "data.partition-arguments=alpha = 0.7",
        "num-clients=4",
    ]
    job = [
        "run",
        "--engine",
        "inline",
        *asked,
        "num-rounds=1",
        "clients-per-round=0",
        "train.local-epochs=1",
        "device=cpu",
    ]
    assert main([*job, "--out", str(tmp_path / "first")]) == 0
    kept = read_toml(tmp_path / "first" / "settings.toml")
    assert (kept["data.partition"], kept["data.partition-arguments"]) == (
        "flwr:DirichletPartitioner",
        "alpha = 0.7",
    )
    capsys.readouterr()
    assert main(["data", *asked]) == 0
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
    with pytest.raises(UserError) as caught:
        partition(read_samples(options), options, 8 if name == "ExponentialPartitioner" else 5, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
    with pytest.raises(UserError) as caught:
        read_settings(settings)
    assert str(caught.value).startswith(message)
