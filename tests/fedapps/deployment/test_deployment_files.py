"""The page, the units and the compose file of a deployment name options that Flower
has, files that exist, and every method.
"""

import configparser
import re
import shlex
from pathlib import Path

import pytest
import yaml
from flwr.common.config import parse_config_args
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

from fedapps.deployment.local import Deployment
from fedapps.methods import METHODS
from tests.helpers import ROOT

PARSERS = {
    "flower-superlink": _parse_args_run_superlink,
    "flower-supernode": _parse_args_run_supernode,
}


def checked(words):
    """Return the options of a command of Flower's; argparse exits where one does not
    exist.
    """
    options = PARSERS[Path(words[0]).name]().parse_args(words[1:])
    if getattr(options, "node_config", None):
        config = parse_config_args([options.node_config])
        assert config.keys() == {"client-id", "data", "store-dir"}
        assert all(isinstance(value, str) and value for value in config.values())
    assert not options.insecure
    return options


def unit(path):
    """Return the keys of a systemd unit by section, continued lines joined."""
    parser = configparser.RawConfigParser(delimiters="=", strict=False)
    parser.optionxform = str
    parser.read_string(path.read_text().replace("\\\n", " "))
    return parser


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy").glob("*.service")), ids=lambda path: path.stem
)
def test_units_start_flower_with_options_that_it_has(path):
    sections = unit(path)
    assert sections.sections() == ["Unit", "Service", "Install"]
    service = sections["Service"]
    assert {"User", "UMask", "Restart", "StateDirectoryMode"} <= service.keys()
    options = checked(shlex.split(service["ExecStart"]))
    if "superlink" in path.stem:
        assert options.enable_supernode_auth
        assert options.ssl_certfile
    else:
        assert options.auth_supernode_private_key
        assert options.root_certificates


def test_compose_file_is_whole():
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    services = compose["services"]
    assert compose.keys() == {"services", "secrets", "volumes"}
    used_volumes, used_secrets = set(), set()
    for name, service in services.items():
        options = checked(service["command"])
        assert set(service.get("depends_on", [])) <= services.keys()
        paths = [
            value
            for value in vars(options).values()
            if isinstance(value, str) and value.startswith("/run/secrets/")
        ]
        assert {Path(path).name for path in paths} == set(service["secrets"])
        used_secrets |= set(service["secrets"])
        used_volumes |= {
            volume.split(":")[0] for volume in service["volumes"] if not volume.startswith(".")
        }
        if name != "superlink":
            host, port = options.superlink.split(":")
            assert f"--port={port}" in services[host]["command"]
            assert f'client-id="{name}"' in options.node_config
    assert (used_secrets, used_volumes) == (compose["secrets"].keys(), compose["volumes"].keys())
    assert (
        ROOT
        / "deploy"
        / services["superlink"]["build"]["context"]
        / services["superlink"]["build"]["dockerfile"]
    ).exists()


def test_the_page_says_what_leaves_a_site_for_every_method():
    table = (ROOT / "docs" / "deployment.md").read_text().split("## What leaves a site")[1]
    named = [
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([\w-]+)`", line.split("|")[1])
    ]
    assert len(named) == len(set(named))
    assert [name for name in METHODS if name not in named] == [], (
        "a row in docs/deployment.md is missing"
    )


def test_a_site_that_refused_a_certificate_is_cut_off_until_it_is_online_again(
    tmp_path, monkeypatch
):
    """Flower's SuperNode may then run for ever without trying to connect."""
    made = Deployment.create(tmp_path / "d", {"a": {"partition-id": 0, "num-partitions": 1}})
    site, online = made.sites["a"], "SuperNode ID: 7\n"
    monkeypatch.setattr(site, "alive", lambda: True)
    monkeypatch.setattr(made, "healthy", lambda: False)
    for log, state in (
        (online, "running"),
        (online + "ERROR: SSL/TLS handshake error detected.\n", "cut off"),
        (online + "round\n" * 20_000 + "SSL/TLS handshake error detected.\n", "cut off"),
        (online + "ERROR: SSL/TLS handshake error detected.\n" + online, "running"),
    ):
        site.log.write_text(log)
        assert [row["process"] for row in made.status()] == [state]
        assert site.serves() == (state == "running")
