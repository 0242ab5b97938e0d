import numpy as np
import pytest
from flwr.app import RecordDict

from fedapps.clients import DiskStore, MessageStore


def config(server_round, first=1, checkpoint=None):
    return {"server-round": server_round, "first-round": first} | (
        {} if checkpoint is None else {"checkpoint-round": checkpoint}
    )


def value(store, c, before=False):
    arrays = store.load("m", c, before)
    return None if arrays is None else float(arrays[0][0])


def put(store, c, number):
    store.save("m", [np.float32([number]), np.zeros((2, 3))], c)


@pytest.fixture(params=["message", "disk"])
def store(request, tmp_path):
    return MessageStore(RecordDict()) if request.param == "message" else DiskStore(tmp_path, 1)


def test_round_trip(store):
    assert store.load("m", config(1), before=True) is None
    store.save("m", [np.float32([5]), np.zeros((2, 3)), np.array(7)], config(1))
    arrays = store.load("m", config(2), before=True)
    # a single number stays one: a model checks the shapes
    kinds = [(a.shape, a.dtype) for a in arrays]
    assert kinds == [((1,), np.float32), ((2, 3), np.float64), ((), np.int64)]
    assert value(store, config(1)) == 5
    assert store.load("other", config(2), before=True) is None


def test_a_state_that_diverged_leaves_the_last_sound_one(store):
    put(store, config(1), 5)
    put(store, config(2), np.nan)
    assert value(store, config(3), before=True) == 5


@pytest.mark.parametrize("checkpoint", [None, 2])
def test_a_round_that_comes_twice_starts_from_the_one_before(checkpoint, tmp_path):
    store = DiskStore(tmp_path, 1)
    for number in (1, 2, 3):
        put(store, config(number, checkpoint=checkpoint), number)
    assert value(store, config(3), before=True) == 2
    assert value(store, config(3)) == 3


def test_a_resumed_run_sees_the_checkpoint_and_not_what_came_after(tmp_path):
    first = DiskStore(tmp_path, 111)
    for number in (2, 4, 5, 7):  # the checkpoint was written after round 4; the run died in round 8
        put(first, config(number, checkpoint=4 if number > 4 else 2 if number > 2 else 0), number)
    resumed = DiskStore(tmp_path, 222)
    assert value(resumed, config(5, first=5), before=True) == 4
    assert value(resumed, config(8, first=5), before=True) == 4  # not the 7 of the run that died
    put(resumed, config(7, first=5, checkpoint=4), 70)
    assert value(resumed, config(8, first=5), before=True) == 70
    again = DiskStore(tmp_path, 333)  # resumed once more from the checkpoint of round 4
    assert value(again, config(6, first=5), before=True) == 4


def test_three_versions_are_kept_at_most(tmp_path):
    """Three versions are kept: the newest, and those of the last two checkpoints or, if
    the client took no part in their rounds, the last ones before.
    """
    store = DiskStore(tmp_path, 1)
    for number in [*range(1, 8), *range(12, 30)]:
        put(store, config(number, checkpoint=(number - 1) // 10 * 10), number)
        assert sorted(int(p.name.split(".")[1]) for p in tmp_path.iterdir()) == sorted(
            {number} | ({7} if 10 < number < 21 else {7, 20} if number > 20 else set())
        )
    for number in (30, 31):  # no checkpoints
        put(store, config(number), number)
    assert {p.name.split(".")[1] for p in tmp_path.iterdir()} == {"30", "31"}


def test_a_broken_file_is_a_clear_error(tmp_path):
    store = DiskStore(tmp_path, 1)
    put(store, config(1), 1)
    next(tmp_path.iterdir()).write_bytes(b"torn")
    with pytest.raises(
        ValueError, match=r"cannot be read .*: delete it to start this client's state anew"
    ):
        store.load("m", config(1), before=False)


def test_drafts_of_killed_processes_go_with_the_next_save(tmp_path):
    """A draft of this run and round may belong to a process that still writes it."""
    for name in ("m.1.1.77.partial", "m.2.9.77.partial", "m.2.1.78.partial"):
        (tmp_path / name).touch()
    put(DiskStore(tmp_path, 1), config(2), 2)
    assert {path.name for path in tmp_path.iterdir()} == ({"m.2.1.78.partial", "m.2.1.safetensors"})
