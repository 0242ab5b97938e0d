import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedapps.errors import UserError
from fedapps.tasks.predictor_library import Library
from tests.helpers import refused


def tables(q=5, size=4, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(size), q).astype(np.float32)


def nets(q=3, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(q, 2, 3)).astype(np.float32),
        "b": rng.normal(size=(q, 2)).astype(np.float32),
    }


def test_taken_predictors_are_stacked_in_the_order_asked_for():
    library = Library.from_arrays({"table": tables()})
    taken = library.take([3, 0])
    assert library.q == 5
    np.testing.assert_array_equal(taken["table"], tables()[[3, 0]])
    taken["table"][:] = 0  # a copy: the library stays frozen
    np.testing.assert_array_equal(library.take([3])["table"][0], tables()[3])


@pytest.mark.parametrize("ids", [[5], [-1], [0, 9]])
def test_an_unknown_id_is_refused(ids):
    refused(lambda: Library.from_arrays({"table": tables()}).take(ids), r"0\.\.4", IndexError)


@pytest.mark.parametrize("arrays", [{"table": tables(12)}, nets()], ids=["tables", "nets"])
def test_a_saved_library_comes_back_the_same(tmp_path, arrays):
    q = len(next(iter(arrays.values())))
    library = Library.from_arrays(arrays, [f"role {k}" for k in range(q)])
    library.save(tmp_path / "lib")
    opened = Library.open(tmp_path / "lib")
    assert (opened.names, opened.spec) == (library.names, dict(sorted(library.spec.items())))
    assert [opened.hash_of(k) for k in range(opened.q)] == [
        library.hash_of(k) for k in range(library.q)
    ]
    for name, array in opened.take([2, 0]).items():
        np.testing.assert_array_equal(array, arrays[name][[2, 0]])
    refused(lambda: library.save(tmp_path / "lib"), "choose an empty folder", UserError)


def test_a_hash_names_the_content_and_nothing_else():
    values = tables(3)
    values[2] = values[0]
    first, second, third = map(Library.from_arrays({"table": values}).hash_of, range(3))
    assert first == third != second
    assert Library.from_arrays({"other": values}).hash_of(0) != first
    assert Library.from_arrays({"table": values[:, :, None]}).hash_of(0) != first


@pytest.mark.parametrize("chunk", [1, 40, 10**9])
def test_the_mixture_is_the_weighted_sum(monkeypatch, tmp_path, chunk):
    monkeypatch.setattr("fedapps.tasks.predictor_library.CHUNK", chunk)
    values, alpha = tables(7), np.array([0.1, 0, 0.3, 0.2, 0, 0.15, 0.25])
    library = Library.from_arrays({"table": values})
    library.save(tmp_path)
    expected = sum(a * v.astype(float) for a, v in zip(alpha, values, strict=True))
    for one in (library, Library.open(tmp_path)):
        np.testing.assert_allclose(one.mixture(alpha)["table"], expected, atol=1e-7)
    refused(lambda: library.mixture(alpha[:3]), "7 predictors")


def test_densities_are_checked_by_name(monkeypatch):
    monkeypatch.setattr("fedapps.tasks.predictor_library.CHUNK", 1)
    values = tables(4)
    Library.from_arrays({"table": values}).check_densities()
    for row, message in (
        (values[2] * 0.93, r"predictor 'HAMLET' sums to 0\.93"),
        ([1.5, -0.5, 0, 0], r"'HAMLET' has the probability -0\.5"),
        (np.nan, "predictor 'HAMLET'"),
    ):
        values[2] = row
        library = Library.from_arrays({"table": values}, ["A", "B", "HAMLET", "D"])
        refused(library.check_densities, message, UserError)
    other = Library.from_arrays(nets())
    refused(other.check_densities, "a density is one array 'table'", UserError)
    assert other.mixture(np.full(3, 1 / 3)) is None, "nor have they one that is one predictor"


# --- folders that are not as they should be -------------------------------------------


def folder_of(path, **files):
    for name, arrays in files.items():
        save_file(arrays, path / f"{name}.safetensors")
    return path


ONES = {size: {"table": np.ones(size, np.float32)} for size in (4, 5)}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Library.open, r"no \.safetensors file"),
        (lambda tmp_path: Library.open(tmp_path / "missing"), "no such folder"),
        (
            lambda tmp_path: Library.open(folder_of(tmp_path, first=ONES[4], second=ONES[5])),
            r"second.safetensors holds table \[5\] float32, but first.safetensors holds table "
            r"\[4\] float32",
        ),
        (
            lambda _: Library.from_arrays({"a": np.zeros((2, 3)), "b": np.zeros((3, 3))}),
            "one entry a predictor",
        ),
        (lambda _: Library.from_arrays({"table": tables()}, ["a", "b", "c"]), "3 names for 5"),
    ],
)
def test_what_is_no_library_is_refused(call, message, tmp_path):
    refused(lambda: call(tmp_path), message, UserError)


HEADER = json.dumps({"table": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode()
DAMAGE = {
    "truncated": lambda content: content[:-3],
    "long header": lambda _: (10**12).to_bytes(8, "little") + b"{}",
    "broken header": lambda _: (5).to_bytes(8, "little") + b"hello",
    "empty": lambda _: b"",
    "wrong offsets": lambda _: len(HEADER).to_bytes(8, "little") + HEADER + bytes(8),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_file_is_named_when_the_library_is_opened(tmp_path, damage):
    path = folder_of(tmp_path, a=ONES[4], b=ONES[4]) / "b.safetensors"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    refused(lambda: Library.open(tmp_path), r"b\.safetensors cannot be read", UserError)


def test_values_that_are_not_finite_or_a_file_that_went_away_are_named(tmp_path):
    wrong, right = ({"table": np.array([1, value], np.float32)} for value in (np.nan, 1))
    library = Library.open(folder_of(tmp_path, a=wrong, b=right))
    (tmp_path / "b.safetensors").unlink()
    for predictor, message in (
        (0, r"a\.safetensors: array 'table' holds values that are not finite"),
        (1, r"b\.safetensors cannot be read any more"),
    ):
        refused(lambda: library.take([predictor]), message, UserError)


def test_opening_reads_no_values(tmp_path, monkeypatch):
    Library.from_arrays({"table": tables(6)}).save(tmp_path)
    read = []
    monkeypatch.setattr(
        "fedapps.tasks.predictor_library._fill", lambda path, spec, out, row: read.append(path.name)
    )
    library = Library.open(tmp_path)
    assert read == []
    library.take([4, 1])
    assert read == ["4.safetensors", "1.safetensors"]
