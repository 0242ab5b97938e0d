"""Files of a results folder from elsewhere: readers neither hang nor end with a
traceback, writers stay in the folder.
"""

import json
import os
import tomllib
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedapps.commands.parser import main
from fedapps.data.local_files import read_local
from fedapps.data.source import Source
from fedapps.errors import UserError
from fedapps.lab.results.report import write_report
from fedapps.records.reader import read_run
from fedapps.records.rounds import read_rounds, status_of
from fedapps.toml_text import load_toml, parse_toml
from tests.helpers import refused, write_file


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    write_file(
        folder / "settings.toml", 'method = "fedavg"\ntask = "digits"\nnum-rounds = 1\nseed = 0\n'
    )
    row = {"round": 1, "clients": [0], "failures": [], "train": {"loss": 1.0}, "seconds": 0.1}
    (folder / "rounds.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "summary.json").write_text('{"status": "completed"}')
    (folder / "clients.csv").write_text("client,accuracy\n0,0.5\n")
    save_file({"w": np.zeros(2, np.float32)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "a." * 50_000 + "a = 1",
        "[" + "a." * 50_000 + "a]",
        "a = 1\n" + ' "b" . ' * 20_000 + "a = 1",
        "'x'." * 20_000 + "a = 1",
        "a = " + "[" * 50_000 + "]" * 50_000,
        "a = " + "{a = " * 50_000 + "1" + "}" * 50_000,
    ],
)
def test_toml_that_is_nested_too_deeply(text, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    refused(
        lambda: load_toml(tmp_path / "a.toml"),
        r"cannot be read as TOML: (a key of more|values are)",
        UserError,
    )


def test_ordinary_toml_is_read_as_before():
    text = 'a.b.c = 1\n[d."e.f"]\ng = "' + "w. " * 100 + '"\nh = [0.1, 0.2]\n' + "i" * 10**5 + "=1"
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("name", ["settings.toml", "rounds.jsonl", "summary.json", "clients.csv"])
def test_a_pipe_in_the_place_of_a_file(name, folder, error_of):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    write_report(folder)
    status_of(folder)
    error_of("run", "--resume", "--engine", "inline", "--out", folder)


def test_nested_json_is_one_line(folder):
    (folder / "rounds.jsonl").write_text("[" * 10**5 + "\n")
    refused(lambda: read_rounds(folder), "a line is not the record of a round", UserError)
    (folder / "summary.json").write_text("[" * 10**5)
    assert status_of(folder) is None


def test_links_lead_nowhere_else(folder, tmp_path, capsys):
    """Neither is another file shown in a report, nor is one written."""
    secret = write_file(tmp_path / "secret.csv", "client,accuracy\npassword,0.5\n")
    (folder / "clients.csv").unlink()
    (folder / "clients.csv").symlink_to(secret)
    assert read_run(folder).clients == []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = write_file(elsewhere / "kept", "kept")
    for name in ("report.html", "report.html.partial", "global.safetensors"):
        (folder / name).symlink_to(kept)
    (folder / "figures").symlink_to(elsewhere)
    write_report(folder)
    assert main(["figures", str(folder)]) == 2
    assert main(["export", str(folder)]) in (0, 2)
    assert ([path.name for path in elsewhere.iterdir()], kept.read_text()) == (["kept"], "kept")
    assert not (folder / "report.html").is_symlink()


def test_an_npz_that_claims_four_tebibytes(tmp_path):
    path = tmp_path / "train.npz"
    header = "{'descr': '<f8', 'fortran_order': False, 'shape': (549755813888,), }"
    text = header.ljust(117).encode() + b"\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    refused(
        lambda: read_local(path.parent, Source(str(path.parent))),
        "cannot be read, it must hold plain arrays",
        UserError,
    )
    path.unlink()
    os.mkfifo(path)
    refused(
        lambda: read_local(path.parent, Source(str(path.parent))), "holds no file of", UserError
    )
