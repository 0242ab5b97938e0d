"""Random changes to the bytes of every wire format and file give either an expected
error or a valid object, and use little memory.
"""

import contextlib
import json
import shutil
import tracemalloc

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays_st

from fedapps.algorithms.boosting.additive import Block, pack_blocks, unpack_blocks
from fedapps.algorithms.contract.wire import WireError, fields, read
from fedapps.algorithms.ensembles import sparse_tables
from fedapps.clients.base.store import DiskStore, MessageStore
from fedapps.errors import UserError
from fedapps.records.checkpoint import Checkpoints
from fedapps.records.reader import STATES, read_run
from fedapps.records.rounds import read_rounds
from fedapps.records.writer import Recorder
from fedapps.settings.settings import Settings
from fedapps.strategies import FedAdam, FedAvg, PrivacyOptions, Private
from fedapps.strategies.base.messages import to_record
from fedapps.strategies.base.slots import pack_ids, unpack_ids
from fedapps.tasks.predictor_library import Library
from tests.domains import ALL
from tests.strange import mutate_bytes

pytestmark = pytest.mark.slow

# WireError is a ValueError; NumPy's and Python's own show with which file or client
# they came
OURS = (ValueError, UserError)
MEMORY = 20 * 2**20  # thousands of times what the formats below hold


class Wire:
    def __init__(self, array):
        self.dtype, self.shape, self.stype, self.data = fields(np.asarray(array))


def formats():
    """Return name -> (arrays to send, function that reads them) for every format."""
    rng = np.random.default_rng(0)
    packed = sparse_tables.pack(np.where(rng.random((3, 50)) < 0.1, rng.random((3, 50)), 0.0))
    blocks = [
        Block(0.5, np.ones(2), {"w": rng.normal(size=(2, 3))}),
        Block(1.0, np.ones(1), {"w": rng.normal(size=(1, 3))}),
    ]
    by_name = {
        f"{type(d).__name__} {i}": (d.lmo(rng.normal(size=d.shape)).pack(), d.unpack)
        for i, d in enumerate(ALL)
    }
    by_name["tables"] = (
        list(packed.values()),
        lambda a: sparse_tables.unpack(dict(zip(sparse_tables.FIELDS, a, strict=True))),
    )
    by_name["columns"] = (
        list(packed.values()),
        lambda a: sparse_tables.columns(
            dict(zip(sparse_tables.FIELDS, a, strict=True)), np.arange(3)
        ),
    )
    by_name["blocks"] = (pack_blocks(blocks)[0], lambda a: unpack_blocks(a, ["w"]))
    by_name["ids"] = ([pack_ids([3, "site-a", 12])], lambda a: [unpack_ids(one) for one in a])
    return by_name


FORMATS = formats()


@pytest.mark.filterwarnings("ignore:invalid escape")  # of Python, which parses a header
def test_ten_thousand_mutations_of_bytes():
    """Mutates the header and the values of arrays as they are in messages, for every
    format in turn.
    """
    rng = np.random.default_rng(1)
    names, valid, refused = list(FORMATS), 0, 0
    for i in range(10_000):
        if i == 8000:  # traces the rest only, since tracing is slow
            tracemalloc.start()
        packed, unpack = FORMATS[names[i % len(names)]]
        wires = [Wire(array) for array in packed]
        victim = wires[rng.integers(len(wires))]
        victim.data = mutate_bytes(victim.data, rng)
        try:
            with np.errstate(all="ignore"):
                unpack([read(wire) for wire in wires])
            valid += 1
        except OURS:
            refused += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert valid + refused == 10_000
    assert refused > 5000
    assert peak < MEMORY


QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
SOME = arrays_st.arrays(
    st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<i4", "i1", "u1", "?", "<c8"]),
    arrays_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=8),
)


@QUICK
@given(
    st.binary(max_size=300),
    st.text(max_size=20),
    st.lists(st.one_of(st.integers(), st.none(), st.text()), max_size=5),
)
def test_any_bytes_of_any_announced_type_and_shape(data, dtype, shape):
    wire = Wire(np.zeros(1))
    for wire.data in (data, b"\x93NUMPY\x01\x00" + data):
        wire.dtype, wire.shape = dtype, shape
        with pytest.raises(WireError):
            read(wire)


@QUICK
@given(SOME)
def test_any_array_survives_serialisation(array):
    got = read(Wire(array))
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("name", FORMATS)
@settings(QUICK, max_examples=40)
@given(st.lists(SOME, max_size=4))
def test_any_arrays_in_place_of_the_expected_ones(name, arrays):
    with np.errstate(all="ignore"), contextlib.suppress(OURS):
        FORMATS[name][1](arrays)


# --- files ----------------------------------------------------------------------------


def damaged(path, trials, seed=2):
    """Change a file's bytes at random, the given number of times, each time from its
    original content.
    """
    rng, true = np.random.default_rng(seed), path.read_bytes()
    for _ in range(trials):
        path.write_bytes(mutate_bytes(true, rng))
        yield
    path.write_bytes(true)


def test_files_of_a_clients_store(tmp_path):
    store = DiskStore(tmp_path, 1)
    store.save("m", [np.ones(3), np.zeros((2, 2))], {"server-round": 1})
    (path,) = tmp_path.iterdir()
    for _ in damaged(path, 300):
        try:
            assert all(
                isinstance(array, np.ndarray)
                for array in store.load("m", {"server-round": 2}, before=True)
            )
        except ValueError as error:
            assert "delete it to start this client's state anew" in str(error)  # noqa: PT017 - most changes are harmless


def test_a_clients_state_in_messages(tmp_path):
    rng = np.random.default_rng(3)
    for _ in range(300):
        state = RecordDict()
        MessageStore(state).save("m", [np.ones(3)], {})
        record = state["store.m"]
        record["0"].data = mutate_bytes(record["0"].data, rng)
        with contextlib.suppress(WireError):
            MessageStore(state).load("m", {}, before=True)


@pytest.mark.parametrize("name", ["model.safetensors", "strategy.safetensors", "names.json"])
def test_files_of_a_checkpoint(name, tmp_path):
    strategy = Private(FedAdam(), PrivacyOptions(1.0))
    strategy.strategy.m = strategy.strategy.v = np.ones(4)
    Checkpoints(tmp_path, strategy, 1).save(
        3, to_record(["a", "b"], [np.ones(3), np.zeros((2, 2))])
    )
    for _ in damaged(tmp_path / "3" / name, 200):
        try:
            number, arrays = Checkpoints(
                tmp_path, Private(FedAdam(), PrivacyOptions(1.0)), 1
            ).load()
            assert number == 3
            assert isinstance(arrays, ArrayRecord)
        except UserError as error:
            assert "the checkpoint cannot be read" in str(error)  # noqa: PT017 - most changes are harmless


def test_files_of_a_library(tmp_path):
    Library.from_arrays({"table": np.full((2, 4), 0.25)}).save(tmp_path)
    path = sorted(tmp_path.iterdir())[1]
    for _ in damaged(path, 300):
        try:
            assert Library.open(tmp_path).take([0, 1])["table"].shape[0] == 2
        except UserError as error:
            assert str(error).startswith("library")  # noqa: PT017 - most changes are harmless
            assert path.name in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json", "settings.toml", "clients.csv"])
def test_files_of_a_run(name, tmp_path):
    recorder = Recorder(tmp_path, Settings(out=str(tmp_path)).flat(), "digits", FedAvg())
    row = {
        "round": 1,
        "clients": [0],
        "failures": [],
        "train": {"loss": 1.0},
        "bytes-up": 1,
        "bytes-down": 1,
        "seconds": 0.1,
    }
    (tmp_path / "rounds.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "clients.csv").write_text("client,accuracy\n0,0.5\n")
    recorder.finish("completed")
    for _ in damaged(tmp_path / name, 200):
        run = read_run(tmp_path)
        assert run.state in STATES
        assert run.method
        assert all(isinstance(value, int | float) for value in run.numbers.values())
        assert len(run.failures) <= 1
        assert all(isinstance(value, int | float) for value in run.column("accuracy"))
        with contextlib.suppress(OURS):
            read_rounds(tmp_path)
    shutil.rmtree(tmp_path)
