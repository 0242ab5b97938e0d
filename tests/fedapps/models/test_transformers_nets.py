"""Nets of the library transformers: from a type or a folder, with the shapes of the
data, nothing fetched, no code of others.
"""

import json
import re
import sys

import pytest
import torch

from fedapps.clients import partial_sharing
from fedapps.errors import UserError
from fedapps.models.image_nets import build_model
from fedapps.runs.assembly import build_task
from fedapps.runs.execution import execute_inline
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import assert_arrays, refused, seeded, write_file

VIT = {
    "model_type": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "patch_size": 4,
    "image_size": 224,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 5000,
}
TEXT = {
    "task": "text",
    "text.length": 20,
    "num-clients": 2,
    "num-rounds": 2,
    "clients-per-round": 0,
    "train.learning-rate": 0.1,
}


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for job in ({}, TEXT):
        refused(
            lambda: assemble(with_defaults({"model.name": "transformers:vit", **job})),
            r"^model.name = 'transformers:vit': .* not installed: pip install "
            r"'fedapps\[text\]'$",
            UserError,
        )


@pytest.fixture
def library():
    return pytest.importorskip(
        "transformers", reason="needs the extra 'text': pip install 'fedapps[text]'"
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder; ``folder(name, config)`` writes the config of a net there."""
    monkeypatch.chdir(tmp_path)

    def write(name, config):
        write_file(tmp_path / name / "config.json", json.dumps(config))
        return f"transformers:./{name}"

    return write


def test_it_takes_the_samples_of_the_data_and_follows_from_the_seed(library, folder):
    name = folder("vit", VIT)
    first, other = seeded(lambda seed: build_model(name, (3, 8, 8), 5, seed).state_dict())
    assert not torch.equal(first["net.classifier.weight"], other["net.classifier.weight"])
    for shape in ((3, 8, 8), (1, 8, 12)):
        made = build_model(name, shape, 5, 0)
        assert made(torch.zeros(2, *shape)).shape == (2, 5)
        assert made.head == ("net.classifier.",)


def test_a_type_alone_is_its_default_net(library):
    net = build_model("transformers:resnet", (1, 32, 32), 4, 0)
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 4)


def test_a_run_of_a_personalised_method(library, folder, tmp_path):
    job = {"method": "fedper", "num-clients": 3, "clients-per-round": 0, "num-rounds": 2}
    job |= {"model.name": folder("vit", VIT), "out": str(tmp_path / "o"), "train.local-epochs": 1}
    parts = assemble(with_defaults(job))
    assert parts.settings.model.name == f"transformers:{tmp_path}/vit"  # workers are elsewhere
    assert partial_sharing.head_of(parts.task.work_model()) == ("net.classifier.",)
    assert execute_inline(parts.settings, parts=parts)["failures"] == 0


def test_pretrained_weights_are_those_of_the_folder_all_but_the_head(library, folder, tmp_path):
    name = folder("vit", VIT | {"image_size": 8, "num_channels": 1})
    config = library.AutoConfig.from_pretrained(tmp_path / "vit")
    kept = library.AutoModelForImageClassification.from_config(config)
    kept.save_pretrained(tmp_path / "vit")
    net, same = (build_model(name, (1, 8, 8), 7, 0, pretrained=True) for _ in range(2))
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 7)  # the file's head has two outputs
    assert_arrays(net.net.base_model.state_dict(), kept.base_model.state_dict())
    assert torch.equal(net.net.classifier.weight, same.net.classifier.weight)
    refused(
        lambda: build_model(name, (3, 8, 8), 7, 0, pretrained=True),
        r"does not take samples of shape \(3, 8, 8\)",
        UserError,
    )
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    (tmp_path / "vit" / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))
    refused(
        lambda: build_model(name, (1, 8, 8), 7, 0, pretrained=True),
        r"model.pretrained = true: .* lacks weights of this net \(vit\.\S+\)",
        UserError,
    )


def test_weights_are_never_unpickled(library, folder, tmp_path):
    name = folder("vit", VIT | {"image_size": 8, "num_channels": 1})
    torch.save({}, tmp_path / "vit" / "pytorch_model.bin")
    refused(
        lambda: build_model(name, (1, 8, 8), 2, 0, pretrained=True),
        r"model.pretrained = true: .*model\.safetensors",
        UserError,
    )


def test_code_in_a_folder_is_never_run(library, folder, tmp_path):
    code = {"AutoConfig": "mine.MyConfig", "AutoModelForImageClassification": "mine.MyNet"}
    name = folder("own", {"model_type": "own-net", "auto_map": code})
    (tmp_path / "own" / "mine.py").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path / 'ran')!r}).touch()\n"
    )
    refused(lambda: build_model(name, (1, 8, 8), 2, 0), "cannot be read", UserError)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("transformers:", "name a type of net, a folder"),
        ("transformers:vitt", "did you mean 'vit'\\?"),
        ("transformers:./nowhere", "there is no folder './nowhere'"),
        (
            "transformers:somebody/net-of-theirs",
            "is not in the library's cache: fetch it with `hf download somebody/net-of-theirs`",
        ),
        ("transformers:gpt2", "cannot be built: ValueError: .*"),
    ],
)
def test_mistakes_are_one_line(library, folder, name, said):
    refused(
        lambda: build_model(name, (1, 8, 8), 2, 0),
        f"^model.name = {re.escape(repr(name))}: {said}",
        UserError,
    )


def test_a_causal_language_model_predicts_characters(library, folder, tmp_path):
    job = {**TEXT, "model.name": folder("gpt", GPT2), "out": str(tmp_path / "o")}
    parts = assemble(with_defaults(job))
    tokens = torch.randint(0, 98, (2, 20))
    net = parts.task.model_fn(0).eval()
    out = net(tokens)
    assert out.shape == (2, 20, 98)
    other = tokens.clone()
    other[:, 10] = (other[:, 10] + 1) % 98
    # what comes later is not seen
    assert torch.allclose(net(other)[:, :10], out[:, :10], atol=1e-6)
    assert execute_inline(parts.settings, parts=parts)["failures"] == 0


def test_a_net_that_sees_what_it_is_to_predict_is_refused(library, folder):
    sizes = {key: VIT[key] for key in ("hidden_size", "intermediate_size")}
    layers = {key: VIT[key] for key in ("num_hidden_layers", "num_attention_heads")}
    bert, gpt = folder("bert", {"model_type": "bert", **sizes, **layers}), folder("gpt", GPT2)
    for given, message in (
        ({"model.name": bert}, "sees the characters that it must predict"),
        ({"model.name": gpt, "text.length": 40}, "does not take texts of 40 characters"),
        (
            {"model.name": gpt, "model.pretrained": True},
            r"model\.pretrained = true: the 98 characters of task 'text'",
        ),
    ):
        refused(build_task(with_defaults({**TEXT, **given})).initial_arrays, message, UserError)
