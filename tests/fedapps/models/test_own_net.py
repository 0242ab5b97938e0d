"""The user's own net as ``module:name``: looked up, called, checked and seeded; its
weights and its files in the app.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn

from fedapps.clients import partial_sharing
from fedapps.errors import UserError
from fedapps.extensions.own_code import own_files
from fedapps.models.image_nets import build_model
from fedapps.runs.assembly import build_task
from fedapps.runs.execution import execute_inline
from fedapps.runs.prepare import assemble, with_defaults
from tests.helpers import assert_arrays, refused, seeded, write_file

NETS = """
import numpy as np
import torch
from torch import nn
import my_layers

class Small(nn.Module):
    head = ("last.",)

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body, self.last = my_layers.dense(input_shape, 8), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.last(self.body(x))

def by_seed(num_classes, *, seed, width=4):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, num_classes))
    net.seed = seed
    return net

def by_kwargs(**kwargs):
    assert set(kwargs) == {"num_classes"}
    return nn.Sequential(nn.Flatten(), nn.Linear(64, kwargs["num_classes"]))

class Headed(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.body(x))

class Base(Small):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes)
        self.other = nn.Linear(8, num_classes)
        self.change()
    def change(self): ...

class Unused(Base):
    def change(self):
        self.body.append(nn.BatchNorm1d(8))
        self.register_buffer("mask", torch.tensor([0, -torch.inf, torch.finfo(torch.float32).min]))
        self.register_buffer("hash", torch.tensor([2**62 + 1]))

class Tuple(Base):
    def forward(self, x):
        z = self.body(x)
        return (self.last(z), self.other(z)) if self.training else self.last(z)

class Frozen(Base):
    def change(self): self.requires_grad_(False)

class Keeps(Base):
    kept = 0
    def forward(self, x):
        z = self.body(x)
        if self.training:
            self.kept = z.mean(0) + self.kept
        return self.last(z + self.kept)

class Bfloat16(Base):
    def change(self): self.bfloat16()
    def forward(self, x): return super().forward(x.bfloat16()).float()

class Scaling(Base):
    def forward(self, x): return super().forward(x.sub_(0.5))

class Half(Base):
    def change(self): self.half()
    def forward(self, x): return super().forward(x.half()).float()

class Complex(Base):
    def change(self): self.filter = nn.Parameter(torch.ones(8, dtype=torch.cfloat))
    def forward(self, x): return self.last((self.body(x) * self.filter).real)

class Numpy(Base):
    def change(self): self.last.bias.data = torch.tensor(np.random.randn(10)).float()

class NotANumber(Base):
    def change(self): self.register_buffer("score", torch.tensor(torch.nan))

class Growing(Base):
    def change(self): self.register_buffer("seen", torch.zeros(0))
    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, x.new_ones(1)])
        return super().forward(x)

class Extra(Base):
    def get_extra_state(self): return {}
    def set_extra_state(self, state): ...

class WeightNorm(Base):
    def change(self):
        nn.utils.weight_norm(self.last)  # which cannot be copied
        nn.utils.parametrizations.spectral_norm(self.body[1])

ONE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
def one(): return ONE
def lazy(num_classes):
    return nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(num_classes))
def deep(depth, num_classes): ...
def text(): return "net"
def wrong(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes + 1))
def wide(): return nn.Linear(3, 10)
def broken(): raise RuntimeError("no such layer\\nand more")
number = 3
"""
LAYERS = """
from torch import nn

def dense(shape, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.ReLU())
"""


@pytest.fixture
def folder(modules):
    """A current folder with two modules of the user's, of which one imports the
    other.
    """
    broken = {"spoilt": "import nowhere_to_be_found\n", "wrong_syntax": "def (:\n"}
    return modules(my_nets=NETS, my_layers=LAYERS, unused="", **broken)


def net(name, shape=(1, 8, 8), seed=0):
    return build_model(name, shape, 10, seed)


def test_it_gets_what_it_asks_for_and_no_more(folder):
    assert net("my_nets:by_seed", seed=7).seed == 7
    assert isinstance(net("my_nets:by_kwargs"), nn.Module)


def test_a_net_of_torchvision_by_its_name_there():
    assert net("torchvision:squeezenet1_1", (3, 64, 64))(torch.zeros(2, 3, 64, 64)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_nets:", "name a module and an object in it, as in 'my_code:NAME'"),
        ("my_nets.py:Small", "name the module, not its file: write 'my_nets:Small'"),
        ("./zoo/nets.py:Small", "name the module, not its file: write 'zoo.nets:Small'"),
        ("my-nets:Small", "name a module and an object in it"),
        (
            "other_nets:Small",
            "no module 'other_nets': it is neither in the current folder, .*, nor installed",
        ),
        ("my_nets.deep:Small", "no module 'my_nets.deep'"),
        (
            "spoilt:Small",
            "no module 'nowhere_to_be_found': spoilt imports it: install it",
        ),
        ("wrong_syntax:Small", "cannot import wrong_syntax: SyntaxError: invalid syntax"),
        ("my_nets:Smal", "did you mean 'Small'\\? my_nets .* has no 'Smal'"),
        ("my_nets:number", "is of type int: name a function or class"),
        (
            "my_nets:deep",
            "its parameter 'depth' needs a default: only input_shape, num_classes, seed are given",
        ),
        ("my_nets:text", "returns a str: it must return a torch.nn.Module"),
        (
            "my_nets:wrong",
            "for two samples its output is shape \\(2, 11\\): it must be 10 logits for each sample",
        ),
        (
            "my_nets:wide",
            "does not take samples of shape \\(1, 8, 8\\): RuntimeError: .*mat1 and mat2",
        ),
        ("my_nets:broken", "cannot be built: RuntimeError: no such layer .my_nets.py, line \\d+.$"),
        ("my_nets:Tuple", "for two samples its output in training is a tuple: it must be 10 logit"),
        ("my_nets:Frozen", "has no parameter that trains"),
        ("my_nets:Keeps", "cannot be trained: RuntimeError: Trying to backward through the graph"),
        (
            "my_nets:Scaling",
            "changes its samples in place, as x.sub_.0.5. would: write x = x - 0.5",
        ),
        ("my_nets:Bfloat16", "array 'body.1.weight' is of type bfloat16: use float32"),
        ("my_nets:Half", "parameter 'body.1.weight' must be float32 to be trained"),
        ("my_nets:Complex", "array 'filter' is of type complex64: use float32"),
        ("my_nets:Numpy", "array 'last.bias' differs in two nets of one seed: draw it with torch"),
        ("my_nets:NotANumber", "array 'score' holds NaN before any training"),
        ("my_nets:Growing", "training changes the shape of array 'seen'"),
        ("my_nets:Extra", "array '_extra_state' is a dict: only tensors are sent"),
        ("my_nets:one", "returns the same net twice: make a new one each time"),
        ("torchvision:squeezenet1_1", r"does not take samples of shape \(1, 8, 8\)"),
        ("torchvision:squeezenet9", "cannot be built: ValueError: Unknown model"),
    ],
)
def test_mistakes_are_one_line(folder, name, said):
    refused(lambda: net(name), f"^model.name = {re.escape(repr(name))}: {said}", UserError)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["Small", "lazy", "WeightNorm"])
def test_it_is_found_in_the_current_folder_and_follows_from_the_seed(folder, name):
    first, other = seeded(lambda seed: net(f"my_nets:{name}", seed=seed).state_dict())
    assert not all(torch.equal(first[array], other[array]) for array in first)


@pytest.mark.parametrize(
    "method",
    [
        *("fedavg", "fedadam", "scaffold", "q-fedavg", "feddyn", "local", "pfedme", "per-fedavg"),
        *("apfl", "ifca", "fedrep", "superfed-mm", "fedala", "fedrod", "ditto", "fedbuff"),
    ],
)
def test_every_method_takes_an_unused_layer_a_mask_and_a_last_batch_of_one(folder, method):
    """217 samples of client 1 are nine batches of 24, and one."""
    job = {"num_clients": 4, "clients_per_round": 0, "num_rounds": 2, "method": method}
    job |= {"train__batch_size": 24, "train__local_epochs": 1, "out": str(folder / "out")}
    parts = assemble(settings(model__name="my_nets:Unused", **job))
    assert any(len(parts.task.client_data(k, 4).train) % 24 == 1 for k in range(4))
    start = parts.task.initial_arrays()
    assert execute_inline(parts.settings, parts=parts)["failures"] == 0
    end = load_file(folder / "out" / "model.safetensors")
    for name, rounding in (("mask", 0), ("hash", 0), ("other.weight", 1e-6), ("other.bias", 1e-6)):
        if name in end:  # a function has no arrays of these names
            np.testing.assert_allclose(end[name], start[name], rtol=rounding)


def test_batch_norm_with_batches_of_one_is_refused(folder):
    assemble(settings(train__batch_size=1))
    refused(
        lambda: assemble(settings(model__name="my_nets:Unused", train__batch_size=1)),
        r"train.batch-size = 1: .* cannot train on a single sample",
        UserError,
    )


def test_a_package_travels_as_one(folder):
    write_file(folder / "zoo" / "__init__.py", "")
    (folder / "zoo" / "nets.py").write_text(NETS)
    net("zoo.nets:Small")
    sent = own_files({"model.name": "zoo.nets:Small"})
    assert {"zoo/__init__.py", "zoo/nets.py", "my_layers.py"} <= sent.keys()


def settings(**given):
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in given.items()}
    job = {"method": "fedavg", "task": "digits", "model.name": "my_nets:Small"}
    return with_defaults(job | given)


@pytest.mark.parametrize(
    ("name", "given", "head"),
    [
        ("Small", "", ("last.",)),
        ("by_seed", "2", ("2.",)),
        ("Headed", "", ("head.",)),  # a layer of this name is the head
        ("Headed", "body.1", ("body.1.",)),
    ],
)
def test_a_method_takes_it_with_its_head(folder, name, given, head):
    chosen = settings(method="fedper", model__name=f"my_nets:{name}", model__head=given)
    filled, task, _ = assemble(chosen)
    assert filled.flat()["model.name"] == f"my_nets:{name}"
    assert partial_sharing.head_of(task.work_model()) == head
    assert task.work_model()(torch.ones(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"method": "fedper", "model__name": "my_nets:by_seed"},
            "model.head = '': 'my_nets:by_seed' declares no head: set it to one of 1, 2",
        ),
        (
            {"model__pretrained": True},
            "model.pretrained = true: there are no weights for 'my_nets:Small'",
        ),
        ({"model__weights": "none.safetensors"}, "there is no such file"),
        ({"model__weights": "my_nets.py"}, "is not a safetensors file"),
    ],
)
def test_what_it_has_not_is_refused(folder, given, said):
    refused(lambda: assemble(settings(**given)), said, UserError)


def test_a_run_starts_from_the_weights_of_a_file(folder):
    given = net("my_nets:Small", seed=5).state_dict()
    save_file(given, "start.safetensors")
    chosen = settings(model__weights="start.safetensors")
    assert Path(chosen.model.weights) == folder / "start.safetensors"
    arrays = build_task(chosen).initial_arrays()
    assert list(arrays) == list(given)
    assert_arrays(arrays, given)
    drawn = build_task(chosen).model_fn(3).state_dict()["last.weight"]
    assert not torch.equal(drawn, given["last.weight"])  # a client's own model is its own


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"last.bias": None}, "has no array 'last.bias', which the model needs"),
        ({"extra": torch.zeros(2)}, "has an array 'extra', which the model does not have"),
        (
            {"last.bias": torch.zeros(3)},
            r"array 'last.bias' has shape \(3,\), but the model's array has \(10,\)",
        ),
        (
            {"last.bias": torch.full((10,), torch.nan)},
            "array 'last.bias' holds values that are not finite",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(folder, change, said):
    arrays = {**net("my_nets:Small").state_dict(), **change}
    arrays = {name: array for name, array in arrays.items() if array is not None}
    save_file(arrays, "start.safetensors")
    refused(
        lambda: assemble(settings(model__weights="start.safetensors")),
        f"^model.weights = .*: {said}",
        UserError,
    )


# --- nets of the library transformers -------------------------------------------------


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
def config_of(tmp_path, monkeypatch):
    """``config_of(name, config)`` writes the config of a net to the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(name, config):
        write_file(tmp_path / name / "config.json", json.dumps(config))
        return f"transformers:./{name}"

    return write


def test_it_takes_the_samples_of_the_data_and_follows_from_the_seed(library, config_of):
    name = config_of("vit", VIT)
    first, other = seeded(lambda seed: build_model(name, (3, 8, 8), 5, seed).state_dict())
    assert not torch.equal(first["net.classifier.weight"], other["net.classifier.weight"])
    for shape in ((3, 8, 8), (1, 8, 12)):
        made = build_model(name, shape, 5, 0)
        assert (made(torch.zeros(2, *shape)).shape, made.head) == ((2, 5), ("net.classifier.",))


def test_a_type_alone_is_its_default_net(library):
    net = build_model("transformers:resnet", (1, 32, 32), 4, 0)
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 4)


def test_a_run_of_a_personalised_method(library, config_of, tmp_path):
    job = {"method": "fedper", "num-clients": 3, "clients-per-round": 0, "num-rounds": 2}
    job |= {
        "model.name": config_of("vit", VIT),
        "out": str(tmp_path / "o"),
        "train.local-epochs": 1,
    }
    parts = assemble(with_defaults(job))
    assert parts.settings.model.name == f"transformers:{tmp_path}/vit"  # workers are elsewhere
    assert partial_sharing.head_of(parts.task.work_model()) == ("net.classifier.",)
    assert execute_inline(parts.settings, parts=parts)["failures"] == 0


def test_pretrained_weights_are_those_of_the_folder_all_but_the_head(library, config_of, tmp_path):
    name = config_of("vit", VIT | {"image_size": 8, "num_channels": 1})
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


def test_weights_are_never_unpickled(library, config_of, tmp_path):
    name = config_of("vit", VIT | {"image_size": 8, "num_channels": 1})
    torch.save({}, tmp_path / "vit" / "pytorch_model.bin")
    refused(
        lambda: build_model(name, (1, 8, 8), 2, 0, pretrained=True),
        r"model.pretrained = true: .*model\.safetensors",
        UserError,
    )


def test_code_in_a_folder_is_never_run(library, config_of, tmp_path):
    code = {"AutoConfig": "mine.MyConfig", "AutoModelForImageClassification": "mine.MyNet"}
    name = config_of("own", {"model_type": "own-net", "auto_map": code})
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
        ("transformers:./nowhere", "there is no config_of './nowhere'"),
        (
            "transformers:somebody/net-of-theirs",
            "is not in the library's cache: fetch it with `hf download somebody/net-of-theirs`",
        ),
        ("transformers:gpt2", "cannot be built: ValueError: .*"),
    ],
)
def test_mistakes_about_the_library_are_one_line(library, config_of, name, said):
    refused(
        lambda: build_model(name, (1, 8, 8), 2, 0),
        f"^model.name = {re.escape(repr(name))}: {said}",
        UserError,
    )


def test_a_causal_language_model_predicts_characters(library, config_of, tmp_path):
    job = {**TEXT, "model.name": config_of("gpt", GPT2), "out": str(tmp_path / "o")}
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


def test_a_net_that_sees_what_it_is_to_predict_is_refused(library, config_of):
    sizes = {key: VIT[key] for key in ("hidden_size", "intermediate_size")}
    layers = {key: VIT[key] for key in ("num_hidden_layers", "num_attention_heads")}
    bert, gpt = config_of("bert", {"model_type": "bert", **sizes, **layers}), config_of("gpt", GPT2)
    for given, message in (
        ({"model.name": bert}, "sees the characters that it must predict"),
        ({"model.name": gpt, "text.length": 40}, "does not take texts of 40 characters"),
        (
            {"model.name": gpt, "model.pretrained": True},
            r"model\.pretrained = true: the 98 characters of task 'text'",
        ),
    ):
        refused(build_task(with_defaults({**TEXT, **given})).initial_arrays, message, UserError)
