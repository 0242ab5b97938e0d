"""A key of a configuration that no option reads is told, once; what the strategies
themselves send is known.
"""

import ast
from pathlib import Path

import pytest

from clients.base import options
from clients.base.options import TrainOptions, unknown

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(options, "_told", set())


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "learning-rate"),
        ("learning_rate", "learning-rate"),
        ("learnin-rate", "learning-rate"),
        ("batch_size", "batch-size"),
        ("epochs", "local-epochs"),
        ("weight-deacy", "weight-decay"),
    ],
)
def test_a_misspelt_option_is_told_once_with_the_one_that_is_meant(key, meant, caplog):
    for _ in range(3):
        assert TrainOptions.from_config({key: 0.5, "server-round": 1}) == TrainOptions()
    (line,) = caplog.messages
    assert f"{key!r} (did you mean {meant!r}?)" in line


def test_all_keys_that_it_did_not_know_are_in_one_line(caplog):
    TrainOptions.from_config({"lr": 1.0, "colour": "red", "momentum": 0.5})
    TrainOptions.from_config({"lr": 1.0, "size": 3})
    assert [line.partition(": ")[2] for line in caplog.messages] == [
        "'lr' (did you mean 'learning-rate'?), 'colour' (no such option)",
        "'size' (no such option)",
    ]


def keys_sent():
    """Return the constant keys that strategies put into configurations: what the hooks
    return and what is assigned.
    """
    for path in (ROOT / "strategies").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in (
                "train_options",
                "evaluate_options",
            ):
                dictionaries = [part for part in ast.walk(node) if isinstance(part, ast.Dict)]
                yield from (
                    k.value
                    for part in dictionaries
                    for k in part.keys
                    if isinstance(k, ast.Constant)
                )
            if (
                isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Name)
                and node.value.id == "config"
            ):
                yield from [node.slice.value] if isinstance(node.slice, ast.Constant) else []


def keys_read():
    """Return the constant keys that clients read from configurations."""
    for path in (ROOT / "clients").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript):
                of, key = node.value, node.slice
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                of, key = node.func.value, node.args[0]
            else:
                continue
            if isinstance(of, ast.Name) and of.id == "config" and isinstance(key, ast.Constant):
                yield key.value


def test_what_the_strategies_send_and_the_clients_read_is_known():
    sent, read = set(keys_sent()), set(keys_read())
    assert {"proximal-mu", "evg-step", "superfed-nu", "server-round", "dual-mean"} <= sent
    assert {"feddyn-alpha", "first-round", "learning-rate"} <= read
    assert unknown(dict.fromkeys(sent | read), TrainOptions().to_config()) == []
