"""The split that stays: which samples are for testing does not depend on the run's
seed, and a run that chooses settings never reads them.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedapps.data.options import DataOptions
from fedapps.data.partition import fold_rows, rows_by_person, scored
from fedapps.data.source import Categorical
from fedapps.errors import UserError
from fedapps.runs.assembly import Parts, build_task
from fedapps.runs.execution import execute_inline
from fedapps.runs.prepare import assemble, with_defaults
from fedapps.settings.reading import read_settings
from fedapps.tasks import (
    Classification,
    ConstrainedClassification,
    EnsembleClassification,
    Regression,
    Tabular,
    next_character,
)
from fedapps.tasks.ensemble_classification import _Rest
from tests.data_folders import write_parquet
from tests.helpers import refused

TASKS = {"classification": Classification, "tabular": Tabular, "regression": Regression}
#: Tasks that ``data.score-on`` applies to: the class that reads the samples, and
#: settings of a short run.
SCORED = {
    **{name: (kind, {}) for name, kind in TASKS.items()},
    "ensemble-classification": (
        _Rest,
        {"method": "fedboost", "ensemble.predictors": 2, "ensemble.epochs": 1},
    ),
    "constrained-classification": (ConstrainedClassification, {"method": "fedfw"}),
}
JOB = {"num-clients": 4, "data.validation": 0.2}


pytestmark = pytest.mark.usefixtures("own_caches")


def split(task, **given):
    keys = {key.replace("_", "-"): value for key, value in given.items()}
    keys = {key.replace("split-seed", "data.split-seed"): value for key, value in keys.items()}
    made = build_task(read_settings({**JOB, "task": task, **keys}))
    return [[part.tolist() for part in made.split(client, 4)] for client in range(4)]


@pytest.mark.parametrize("task", TASKS)
def test_all_seeds_have_the_same_test_samples_unless_the_split_follows_the_seed(task):
    still = split(task)
    assert split(task, seed=5) == still
    moved = split(task, seed=5, split_seed="seed")
    assert moved != still
    assert split(task, seed=5, split_seed=5) == moved == split(task, split_seed=5)
    scored = split(task, seed=5, **{"data.score-on": "validation"})
    assert scored == [[train, held, held] for train, held, _ in still]


def play(folder, name, job):
    """Run the job and return its clients' scores and its model."""
    parts = assemble(with_defaults({**job, "out": str(folder / name)}))
    execute_inline(parts.settings, (), Parts(*parts))
    return [(folder / name / file).read_bytes() for file in ("clients.csv", "model.safetensors")]


@pytest.mark.parametrize("task", SCORED)
def test_a_run_that_chooses_never_reads_a_test_sample(task, tmp_path, monkeypatch):
    """Test samples of the split are poisoned: model and scores stay the same to the
    bit; those of a run that is scored on them do not.
    """
    kind, given = SCORED[task]
    source = {} if task in ("tabular", "regression") else {"data.partition": "dirichlet"}
    job = {**JOB, **source, "task": task, "seed": 3, "num-rounds": 2, "evaluate-every": 1}
    job |= {"data.standardise": "sums", **given}
    if "method" not in given:
        job |= {"train.local-epochs": 1, "keep-best": True}
    made = build_task(read_settings(job))
    made = made.rest if isinstance(made, EnsembleClassification) else made
    tests = np.concatenate([made.split(client, 4)[2] for client in range(4)])
    read = kind.read

    def poisoned(self):
        samples = read(self)
        x = samples.x.astype(np.float32) / (255 if samples.x.dtype == np.uint8 else 1)
        x[tests] = poison
        targets = None if samples.targets is None else samples.targets.copy()
        if targets is not None:
            targets[tests] = poison
        return replace(samples, x=x, targets=targets)

    def scored(name, score_on):
        return play(tmp_path, name, {**job, "data.score-on": score_on})

    held_out = ("validation", "held-out")
    clean = {how: scored(f"clean-{how}", how) for how in (*held_out, "test")}
    monkeypatch.setattr(kind, "read", poisoned)
    poison = np.nan
    for how in held_out:
        assert scored(f"poisoned-{how}", how) == clean[how]
    poison = 7.0  # not NaN, which ends a run
    assert scored("poisoned-test", "test")[0] != clean["test"][0]


def test_a_run_that_chooses_never_reads_a_test_text(tmp_path, monkeypatch):
    job = {"task": "text", "num-clients": 2, "clients-per-round": 0, "seed": 3, "num-rounds": 2}
    job |= {"keep-best": True, "evaluate-every": 1}
    write = next_character.generated_play

    def poisoned(roles):
        text = write(roles)
        return replace(text, test=tuple(np.full_like(part, 7) for part in text.test))

    def scored(name, **more):
        return play(tmp_path, name, {**job, "text.validation": 0.2, **more})

    clean = scored("clean", **{"text.score-on": "validation"}), scored("clean-test")
    monkeypatch.setattr(next_character, "generated_play", poisoned)
    assert scored("poisoned", **{"text.score-on": "validation"}) == clean[0]
    assert scored("poisoned-test")[0] != clean[1][0]


def test_held_out_samples_are_half_of_the_validation_samples():
    on_test, on_validation, held_out = (
        build_task(read_settings({"data.partition": "iid", "data.score-on": how})).split(3, 20)
        for how in ("test", "validation", "held-out")
    )
    train, validation, _ = map(set, on_test)
    own, chooses, scored = map(set, held_out)
    assert own == train
    assert not chooses & scored
    assert chooses | scored == validation == set(on_validation[2])
    assert abs(len(chooses) - len(scored)) <= 1


@pytest.mark.parametrize(
    ("validation", "halves"), [(5, (2, 3)), (2, (1, 1)), (1, (0, 1)), (0, (0, 0))]
)
def test_a_client_with_too_few_validation_samples_is_not_refused(validation, halves):
    """One is scored on, none leaves the client without a score."""
    options = DataOptions(score_on="held-out")
    rows = np.arange(9), np.arange(9, 9 + validation), np.arange(20, 24)
    own, chosen_by, scored_on = scored(rows, options)
    assert own is rows[0]
    assert (len(chosen_by), len(scored_on)) == halves
    assert sorted([*chosen_by, *scored_on]) == rows[1].tolist()


def table(folder, people):
    """Three clients, whose people have four rows each."""
    person = [f"{client}{p}" for client in "abc" for p in range(people) for _ in range(4)]
    x = np.random.default_rng(0).normal(size=len(person))
    columns = {"client": [name[0] for name in person], "person": person, "x": x}
    source = write_parquet(folder, columns | {"label": np.arange(len(person)) % 2})
    named = {"data.natural-id": "client", "data.group-split": "person", "data.validation": 0.2}
    return {"task": "tabular", "data.source": source, **named}


def test_no_person_is_in_two_parts(tmp_path):
    given = table(tmp_path / "table", people=10)
    task = build_task(read_settings(given))
    assert task.image_shape == (1, 1, 1), "the person is no feature"
    for client in range(3):
        rows = task.split(client, 3)
        people = [{int(row) // 4 for row in part} for part in rows]
        assert [len(part) for part in people] == [6, 2, 2]
        assert len(set.union(*people)) == 10
        assert sum(map(len, rows)) == 40
    half = build_task(read_settings({**given, "data.validation": 0.5, "data.score-on": "held-out"}))
    whole = build_task(read_settings({**given, "data.validation": 0.5})).split(0, 3)
    own, chosen_by, scored = half.split(0, 3)
    assert own.tolist() == whole[0].tolist()
    assert sorted([*chosen_by, *scored]) == whole[1].tolist()
    halves = [{int(row) // 4 for row in part} for part in (chosen_by, scored)]
    assert [len(part) for part in halves] == [2, 3]
    assert not halves[0] & halves[1]
    few = build_task(read_settings(table(tmp_path / "few", people=2)))
    refused(
        lambda: few.split(0, 3),
        r"data.group-split: client 0 has rows of 2 persons, 3 are",
        UserError,
    )


@pytest.mark.parametrize("validation", [0.2, 0.0])
@pytest.mark.parametrize("sizes", [(1, 1, 8), (8, 1, 1), (1, 8, 1)])
def test_three_persons_of_any_sizes_fill_all_parts(sizes, validation):
    persons = Categorical(np.repeat(np.arange(3), sizes), ("a", "b", "c"))
    for seed in range(10):
        rows = rows_by_person(persons, np.arange(10), 0, seed, validation)
        assert [len(part) > 0 for part in rows] == [True, validation > 0, True]
        people = [set(persons.codes[part]) for part in rows]
        assert sum(map(len, people)) == len(set.union(*people)) == 3


def test_persons_of_several_clients_are_refused(tmp_path):
    given = table(tmp_path / "table", people=10)
    swapped = {**given, "data.natural-id": "label", "data.label": "client"}
    refused(
        lambda: build_task(read_settings(swapped)).split(0, 2),
        "30 persons have rows at several clients, 'a0' for one",
        UserError,
    )


# --- folds ----------------------------------------------------------------------------


def in_folds(folds=5, **given):
    """Return the parts of each client in each fold."""
    job = {"task": "tabular", "num-clients": 4, "data.validation": 0.2, **given}
    tasks = [
        build_task(read_settings({**job, "data.folds": folds, "data.fold": fold}))
        for fold in range(folds)
    ]
    return [[list(map(np.asarray, task.split(k, 4))) for task in tasks] for k in range(4)]


@pytest.mark.parametrize("task", ["tabular", "classification", "regression"])
def test_every_row_is_tested_on_in_one_fold_and_never_chosen_by_there(task):
    given = {"task": task, **({"data.partition": "iid"} if task == "classification" else {})}
    plain = build_task(read_settings({"num-clients": 4, "data.validation": 0.2, **given}))
    for k, folds in enumerate(in_folds(**given)):
        everything = sorted(np.concatenate(plain.split(k, 4)))
        assert sorted(np.concatenate([test for _, _, test in folds])) == everything
        sizes = {len(test) for _, _, test in folds}
        assert max(sizes) - min(sizes) <= 1
        for train, validation, test in folds:
            assert sorted(np.concatenate([train, validation, test])) == everything
            assert len(validation) == pytest.approx(0.2 * len(everything), abs=1.5)
        # the rows to choose by are drawn anew: no fold chooses by another's test rows
        chosen = [set(validation) for _, validation, _ in folds]
        assert len(set.union(*chosen)) > 2 * len(chosen[0])


def test_folds_of_a_table_have_their_shares_of_every_class():
    labels = build_task(read_settings({"task": "tabular", "num-clients": 4})).samples.labels
    for folds in in_folds():
        share = labels[np.concatenate(folds[0])].mean()
        for part in (0, 1, 2):
            for fold in folds:
                assert labels[fold[part]].sum() == pytest.approx(share * len(fold[part]), abs=1.01)


def test_rows_of_a_person_share_a_fold_and_a_part():
    codes = np.repeat(np.arange(12), 3)
    persons = Categorical(codes, tuple(map(str, range(12))))
    mine, tested = np.arange(36), []
    for fold in range(4):
        options = DataOptions(folds=4, fold=fold, validation=0.25)
        parts = fold_rows(mine, options, 0, 7, np.zeros(36, np.int64), persons)
        owners = [set(codes[part]) for part in parts]
        assert [len(own) for own in owners] == [6, 3, 3]
        assert sum(map(len, parts)) == 36
        tested.append(owners[2])
    assert set.union(*tested) == set(range(12))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data.folds": 1}, "choose 2 folds or more"),
        ({"data.folds": 3, "data.fold": 3}, "a fold below them"),
        ({"data.fold": 1}, "choose 2 folds or more"),
        ({"data.folds": 3, "data.part": "part"}, "name their own test samples"),
        (
            {"data.group-split": "person", "data.partition": "iid"},
            "partition = 'iid' may deal the rows of a person",
        ),
        ({"data.split-seed": -1}, r"data.split-seed = '-1': must be a whole number from 0"),
        (
            {"data.score-on": "validation", "data.validation": 0.0},
            "score-on = 'validation': clients have no validation",
        ),
        ({"sites.columns": "x", "data.test-rows": True}, "sites with data of their own send no"),
        ({"sites.columns": "x", "data.folds": 3}, "sites with data of their own send no rows"),
    ],
)
def test_splits_that_cannot_be_are_refused(given, said):
    refused(lambda: build_task(read_settings({"task": "tabular", **given})), said, UserError)
