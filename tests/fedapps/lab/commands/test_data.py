"""`fedapps data`: the table, the notes and the picture show the partition of
the task.
"""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedapps.commands.parser import main
from fedapps.lab.client_samples import ClientSamples, samples_of, warnings_of
from fedapps.runs.prepare import assemble
from fedapps.settings.reading import read_settings


def samples(train, test, validation=None):
    held_back = np.zeros_like(train) if validation is None else validation
    counts = np.stack([np.array(train), np.array(held_back), np.array(test)], 1)
    return ClientSamples(tuple("abcdef"[: len(counts)]), tuple("xyz"[: counts.shape[2]]), counts)


ALONE = "1 of 2 clients ({}) have one class only: a model that always predicts it is right"
UNSEEN = "1 of 2 clients (a) have test samples of classes that they do not train on"
FEW = "1 of 2 clients (a) have fewer than 3 test samples: their scores are mostly chance"


@pytest.mark.parametrize(
    ("parts", "lines"),
    [
        (([[5, 5], [6, 4]], [[3, 2], [2, 2]]), []),
        (([[5, 5], [0, 9]], [[3, 2], [0, 4]]), [ALONE.format("b")]),
        (([[5, 5], [6, 4]], [[1, 1], [2, 2]]), [FEW]),
        (([[5, 5, 0], [3, 3, 3]], [[3, 2, 1], [2, 2, 1]]), [UNSEEN]),
        (
            ([[50, 51], [5, 5]], [[3, 2], [2, 2]]),
            ["the largest client has 101 training samples, the smallest 10"],
        ),
        (([[5, 5, 0]] * 2, [[3, 2, 0]] * 2), ["no client trains on class z"]),
        # nobody trains on validation samples
        (
            ([[0, 5], [2, 5]], [[2, 3], [2, 3]], [[5, 0], [0, 0]]),
            [ALONE.format("a"), UNSEEN],
        ),
    ],
)
def test_warnings_name_the_clients_they_are_about(parts, lines):
    assert warnings_of(samples(*parts)) == lines
    # quarters of numbers to predict are no classes
    numbers = warnings_of(replace(samples(*parts), numbers=True))
    assert not [line for line in numbers if "class" in line]


def test_the_table_counts_what_clients_get(capsys, tmp_path):
    config = {
        "data.classes-per-client": 3,
        "num-clients": 5,
        "data.validation": 0.2,
        "device": "cpu",
    }
    _, task, _ = assemble(read_settings(config))
    samples = samples_of(task, 5)
    for client in range(5):
        data = task.client_data(client, 5)
        for part, counts in zip(
            (data.train, data.validation, data.test), samples.counts[client], strict=True
        ):
            assert np.bincount(part.y.numpy(), minlength=10).tolist() == counts.tolist()
    path = tmp_path / "samples.png"
    words = [f"{key}={value}" for key, value in config.items()]
    assert main(["data", *words, "--png", str(path)]) == 0
    out = capsys.readouterr().out
    heading = "digits: 5 clients (pathological), 10 classes, counted in training samples\n"
    assert out.startswith(heading)
    row = next(line for line in out.splitlines() if line.startswith("3 ")).split()
    assert row[1:5] == [*map(str, samples.sizes[3]), "3"]
    assert [0 if cell == "·" else int(cell) for cell in row[5:]] == samples.counts[3, 0].tolist()
    assert sum(int(cell) for cell in row[5:] if cell != "·") == int(row[1])  # as its column says
    with Image.open(path) as image:
        assert min(image.size) > 200
        assert len(set(image.convert("RGB").getdata())) > 10, "something is drawn"


def test_a_table_is_shown_by_the_names_of_its_clients(tmp_path, capsys):
    rows = [f"{ward},{n},{n % 2}" for ward in ("north", "south") for n in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["ward,age,label", *rows]))
    table = [f"data.source={tmp_path / 't.csv'}", "data.natural-id=ward", "data.label=label"]
    assert main(["data", "task=tabular", *table]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 clients" in lines[0]
    assert [line.split()[0] for line in lines[2:4]] == ["north", "south"]


def test_data_that_cannot_be_shown_give_a_one_line_error(error_of):
    assert error_of("data", "task=text", "num-clients=4") == (
        "fedapps: fedapps data: the samples of task 'text' are sequences, which have no "
        "class to show\n"
    )
    said = error_of("data", "method=fedfw", "task=lasso")
    assert "has no samples with a class to show" in said
