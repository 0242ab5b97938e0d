"""Gains over a reference run, by hand: the pairing of clients, the table, the files,
and runs that cannot be paired.
"""

import re

import pytest

from fedapps.commands.parser import main
from fedapps.errors import UserError
from fedapps.lab.results.compare import compare
from tests.helpers import rows_of


def gains(comparison):
    matches = [section for section in comparison.sections if section.title.startswith("Gain over")]
    return matches[0] if matches else None


ALONE = [(0, 0.75), (1, 0.5), (2, 1.0), (3, 0.5)]
TOGETHER = [(3, 0.5), (2, 0.75), (1, 1.0), (0, 0.875)]  # 0: +0.125, 1: +0.5, 2: -0.25, 3: 0


def test_gain_of_each_client_over_training_alone(write_run):
    runs = [
        write_run("f", clients=TOGETHER),
        write_run("l", "local", clients=ALONE),
        write_run("l2", "local", clients=TOGETHER),
    ]
    comparison = compare(runs)
    section = gains(comparison)
    assert section.title == "Gain over local (l)"  # the first one of this method
    assert section.rows == (
        ("fedavg", "+9.4", "50", "25", "-25.0", "4"),
        ("local (l2)", "+9.4", "50", "25", "-25.0", "4"),
    )
    rows = [row for row in rows_of(comparison.out / "gains.csv") if row["label"] == "fedavg"]
    own = {int(row["client"]): float(row["gain"]) for row in rows}
    assert own == {0: 0.125, 1: 0.5, 2: -0.25, 3: 0}
    keys = ("gain-mean", "gain-share", "gain-share-lost", "gain-worst")
    table = {row["label"]: [row[key] for key in keys] for row in rows_of(comparison.csv)}
    assert table["fedavg"] == ["0.09375", "0.5", "0.25", "-0.25"]
    assert table["local (l)"][0] == ""
    page = comparison.report.read_text(encoding="utf-8")
    assert re.search(r"<h2>Gain over local \(l\)</h2>(.|\n)*\+9\.4", page)
    # an old table of gains is deleted
    assert not (compare(runs[:1], comparison.out).out / "gains.csv").exists()


@pytest.mark.parametrize(
    ("by_seed", "row", "said"),
    [
        # seed 0: gains of 0.25 and 0.25, seed 1: 0 and -0.5; seed 2 has no reference
        (
            [
                ({0: 0.75, 1: 1.0}, {0: 0.5, 1: 0.75}),
                ({0: 0.5, 1: 0.25}, {0: 0.5, 1: 0.75}),
                ({0: 1.0, 1: 1.0}, {}),
            ],
            ("fedavg", "+0.0\n±35.4", "50", "25", "-50.0", "2"),
            "means over the seeds",
        ),
        # clients that only one of both has
        (
            [({1: 1.0, 9: 0.5}, dict(ALONE))],
            ("fedavg", "+50.0", "100", "0", "+50.0", "1"),
            "3 clients of the reference have no partner",
        ),
    ],
)
def test_clients_are_paired_with_those_of_the_same_seed(write_run, by_seed, row, said):
    runs = [
        write_run(f"{method}{seed}", method, seed, clients=list(values.items()))
        for seed, pair in enumerate(by_seed)
        for method, values in zip(("fedavg", "local"), pair, strict=True)
        if values
    ]
    section = gains(compare(runs))
    assert section.rows == (row,)
    assert said in section.note


@pytest.mark.parametrize(
    ("partition", "more"),
    [("natural", {}), ("dirichlet", {"split-seed": "0"}), ("dirichlet", {"split-seed": "seed"})],
)
def test_with_three_seeds_the_mean_gain_has_intervals(write_run, partition, more):
    """Clients gain 0.2 + k / 100 + s / 50 at seed s: means of 0.295, 0.315 and 0.335,
    so for these sites 0.315 ± 4.303 * 0.02 / sqrt(3). Clients that each seed deals anew
    are in that interval already; the same ones have another one for sites like these.
    """
    runs, settings = [], {"data": {"source": "table.csv", "partition": partition, **more}}
    for seed in range(3):
        alone = [(k, 0.25) for k in range(20)]
        taught = [(k, 0.45 + k / 100 + seed / 50) for k in range(20)]
        for method, clients in (("local", alone), ("fedavg", taught)):
            name = f"{method}{seed}"
            runs.append(write_run(name, method, seed, clients=clients, settings=settings))
    comparison = compare(runs)
    row = next(row for row in rows_of(comparison.csv) if row["label"] == "fedavg")
    low = float(row["gain-mean-sites-like-these-low"])
    section, reach = gains(comparison), 4.302653 * 0.02 / 3**0.5
    shown = section.rows[0][1].split("\n")
    dealt_anew = more == {"split-seed": "seed"}
    first = "sites like these" if dealt_anew else "these sites"
    assert shown[:4] == ["+31.5", "±2.0", first, "+26.5 to +36.5"]
    assert (len(shown) == 4) == dealt_anew
    assert low == pytest.approx(0.315 - reach)  # never narrower
    note = "Each seed deals other clients" if dealt_anew else "other clients, too"
    assert note in section.note


def test_any_run_can_be_the_reference(write_run, capsys):
    runs = [write_run("f", clients=TOGETHER), write_run("l", "local", clients=ALONE)]
    other = write_run("p", "fedprox", clients=TOGETHER)
    section = gains(compare(runs, reference=other))  # the reference is added to the comparison
    assert section.title == "Gain over fedprox"
    assert [row[:2] for row in section.rows] == [("fedavg", "+0.0"), ("local", "-9.4")]
    assert main(["compare", str(runs[0]), "--reference", str(runs[1]), "--worst", "0.25"]) == 0
    assert "Gain over local" in capsys.readouterr().out
    assert main(["compare", str(runs[0]), "--reference", str(runs[0].parent / "none")]) == 2
    assert main(["compare", str(runs[0]), "--worst", "1.5"]) == 2
    said = "fedapps: --worst 1.5: must be above 0 and at most 1\n"
    assert capsys.readouterr().err.endswith(said)


def test_other_data_are_not_paired(write_run):

    def run(name, method="fedavg", seed=0, clients=TOGETHER, **data):
        settings = {"data": {"source": "digits", "alpha": 0.1, **data}}
        return write_run(name, method, seed, clients=clients, settings=settings)

    local, other = run("l", "local", clients=ALONE), run("f", alpha=0.5)
    late = run("g", "fedprox", seed=1)
    assert gains(compare([other, late, local])) is None
    with pytest.raises(
        UserError, match=r"no run has the same seed, data and clients as .*l, so gains cannot"
    ):
        compare([other, late], reference=local)
    noisy = run("n", noise="pair", group="sex")
    assert [row[0] for row in gains(compare([other, noisy, local])).rows] == [
        "fedavg alpha=0.1 noise=pair group=sex"
    ]
