"""No package that is installed with this project is under the GPL or AGPL."""

import re
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Extras that a user installs; what tests and linters need is not distributed.
FOR_USERS = ("torch", "solvers", "app", "dp", "text", "vision", "tensorboard", "mlflow", "wandb")
# Packages under the LGPL, which may be linked to, each with the reason for it.
LESSER: dict[str, str] = {}


def licence(package):
    """Return what the metadata of an installed package say, in one line."""
    fields = package.metadata
    classes = [name for name in fields.get_all("Classifier", []) if name.startswith("License ::")]
    text = fields.get("License", "")
    first = [text.strip().splitlines()[0]] if text.strip() else []  # some hold the whole licence
    return "; ".join([*filter(None, [fields.get("License-Expression")]), *classes, *first])


def required(wanted):
    """Return the installed packages that requirements bring, and theirs, by name."""
    packages, seen, waiting = {}, set(), [Requirement(item) for item in wanted]
    while waiting:
        item = waiting.pop()
        if (key := (item.name, frozenset(item.extras))) in seen:
            continue
        seen.add(key)
        try:
            package = metadata.distribution(item.name)
        except metadata.PackageNotFoundError:  # of an extra that is not installed here
            continue
        packages[re.sub(r"[-_.]+", "-", package.name).lower()] = package
        for text in package.requires or ():
            inner = Requirement(text)
            extras = item.extras or {""}
            if not inner.marker or any(inner.marker.evaluate({"extra": one}) for one in extras):
                waiting.append(inner)
    return packages


def copyleft(words):
    """Return "GPL", "LGPL" or "", as a licence is or is not of this kind."""
    if re.search(r"\bL-?GPL|Lesser General", words, re.IGNORECASE):
        return "LGPL"
    return "GPL" if re.search(r"\bA?GPL|General Public", words, re.IGNORECASE) else ""


def test_no_package_that_is_installed_with_this_one_is_under_the_gpl():
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(item for name in FOR_USERS for item in extras[name])]
    packages = required(item for item in wanted if not item.startswith("fedapps["))
    assert {"flwr", "torch", "daqp", "numpy", "ray", "protobuf"} <= packages.keys()
    licences = {name: licence(package) for name, package in packages.items()}
    assert "BSD" in licences["numpy"]  # read, and not empty
    assert {name: words for name, words in licences.items() if copyleft(words) == "GPL"} == {}
    assert {name for name, words in licences.items() if copyleft(words) == "LGPL"} <= LESSER.keys()


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("License :: OSI Approved :: GNU General Public License v2 or later (GPLv2+)", "GPL"),
        ("GPL-3.0-only", "GPL"),
        ("AGPL-3.0", "GPL"),
        ("License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)", "LGPL"),
        ("LGPL-2.1-or-later", "LGPL"),
        ("Apache-2.0 OR BSD-3-Clause", ""),
        ("Mozilla Public License 2.0 (MPL 2.0)", ""),
    ],
)
def test_licences_are_told_apart(words, kind):
    assert copyleft(words) == kind
