"""Certificates that a TLS client accepts for the right hosts only, keys for Flower, and
what is said where a connection fails.
"""

import socketserver
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key

from fedapps.commands.parser import main
from fedapps.deployment import certificates
from fedapps.deployment.certificates import (
    check_connection,
    end_of,
    ends,
    make_certificates,
    make_site_key,
    warnings,
)
from fedapps.deployment.local import Deployment
from fedapps.engines.processes import free_port
from fedapps.errors import UserError
from tests.helpers import refused


@pytest.fixture
def served():
    """Start a server on a loopback port that handles one connection; returns a function
    (handler) -> port.
    """
    servers = []

    def start(handle):
        server = socketserver.TCPServer(("127.0.0.1", 0), lambda request, *_: handle(request))
        server.handle_error = lambda *_: None  # the client hung up, as it should
        servers.append(server)
        threading.Thread(target=server.handle_request, daemon=True).start()
        return server.server_address[1]

    yield start
    for server in servers:
        server.server_close()


def speaks_tls(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return lambda connection: context.wrap_socket(connection, server_side=True).close()


def speaks_http(connection):
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_only_the_right_authority_and_host_are_accepted(tmp_path, served, monkeypatch):
    """What is wrong with a connection is explained, with its remedy."""
    one, other, old = (tmp_path / name for name in ("one", "other", "old"))
    make_certificates(one, ["127.0.0.1", "fl.example.org"])
    make_certificates(other, ["127.0.0.1"])
    with monkeypatch.context() as patch:
        then = datetime.now(UTC) - timedelta(days=400)
        patch.setattr(certificates, "now", lambda: then)
        make_certificates(old, ["127.0.0.1"])
    check_connection("127.0.0.1", served(speaks_tls(one)), one / "ca.pem")
    for host, port, authority, message in (
        ("127.0.0.1", served(speaks_tls(one)), other, r"not accepted .*check that .*other/ca\.pem"),
        ("localhost", served(speaks_tls(one)), one, r"not accepted .*localhost"),
        ("127.0.0.1", served(speaks_tls(old)), old, r"has expired.*renew .*restart the SuperLink"),
        ("127.0.0.1", served(speaks_http), one, "no answer to TLS"),
        ("127.0.0.1", free_port(), one, r"no connection .*check that the SuperLink is running"),
    ):
        refused(lambda: check_connection(host, port, authority / "ca.pem"), message, UserError)
    names = x509.load_pem_x509_certificate((one / "server.pem").read_bytes()).extensions
    names = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]


def test_a_sites_key_is_one_that_flower_takes_and_secret(tmp_path):
    public = make_site_key(tmp_path / "new" / "hospital.a")
    assert public == tmp_path / "new" / "hospital.a.pub"
    assert try_load_public_key(public)
    key = load_ssh_private_key((tmp_path / "new" / "hospital.a").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert [
        stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new/hospital.a", "new")
    ] == [
        0o600,
        0o700,
    ]
    refused(lambda: make_site_key(tmp_path / "new" / "hospital.a"), "already exists", UserError)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still; `clock(days)` moves it."""
    time = [datetime(2026, 5, 17, 12, tzinfo=UTC)]
    monkeypatch.setattr(certificates, "now", lambda: time[0])

    def move(days):
        time[0] += timedelta(days=days)
        return time[0]

    return move


def signed_by(folder, authority):
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    return server


def test_ten_years_of_renewals_keep_every_site(tmp_path, clock):
    """Once a year with the same command; the authority that the sites got at first
    signs all of them, and outlives none of them.
    """
    begin = clock(0)
    make_certificates(tmp_path, ["127.0.0.1"])
    authority = (tmp_path / "ca.pem").read_bytes()
    end = end_of(tmp_path / "ca.pem")
    assert abs(end - begin - timedelta(days=3652.5)) < timedelta(days=1)
    for _ in range(10):
        assert end_of(tmp_path / "server.pem") - clock(0) == timedelta(days=365)
        clock(364)
        make_certificates(tmp_path, ["127.0.0.1"])
        assert (tmp_path / "ca.pem").read_bytes() == authority
        assert (
            signed_by(tmp_path, authority).not_valid_before_utc
            <= clock(0)
            < end_of(tmp_path / "server.pem")
            <= end
        )
    assert end_of(tmp_path / "server.pem") == end
    clock(60)
    refused(
        lambda: make_certificates(tmp_path, ["127.0.0.1"]),
        r"ca\.pem has ended on 2036-\d\d-\d\d: make a new authority in another folder",
        UserError,
    )
    assert (tmp_path / "ca.pem").read_bytes() == authority


@pytest.mark.parametrize(("there", "missing"), [("ca.pem", "ca.key"), ("ca.key", "ca.pem")])
def test_half_an_authority_is_never_replaced(tmp_path, error_of, there, missing):
    make_certificates(tmp_path, ["127.0.0.1"])
    kept = (tmp_path / missing).read_bytes()
    (tmp_path / missing).unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = error_of("deploy", "certificates", "127.0.0.1", "--dir", tmp_path)
    assert f"{tmp_path / there} exists without {missing}: copy {missing} back" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / missing).write_bytes(kept)
    assert main(["deploy", "certificates", "127.0.0.1", "--dir", str(tmp_path)]) == 0
    assert (tmp_path / "ca.pem").read_bytes() in (before.get("ca.pem"), kept)


def test_keys_and_certificates_that_do_not_fit_are_refused(tmp_path):
    make_certificates(tmp_path / "one", ["a"])
    make_certificates(tmp_path / "other", ["a"])
    refused(lambda: make_certificates(tmp_path / "one", []), "no host given", UserError)
    for name, content, why in (
        (
            "ca.key",
            (tmp_path / "other" / "ca.key").read_bytes(),
            r"ca\.key is not the key of .*ca\.pem",
        ),
        ("ca.key", b"none", r"ca\.key is not a private key"),
        ("ca.pem", b"none", r"ca\.pem is not a certificate"),
    ):
        (tmp_path / "one" / name).write_bytes(content)
        refused(lambda: make_certificates(tmp_path / "one", ["a"]), why, UserError)


def test_the_end_is_announced_thirty_days_before(tmp_path, clock):
    make_certificates(tmp_path, ["127.0.0.1"])
    authority = tmp_path / "ca.pem"
    clock(365 - 31)
    assert warnings(ends(tmp_path), authority) == []
    clock(2)
    (line,) = warnings(ends(tmp_path), authority)
    assert (
        line == f"{tmp_path / 'server.pem'} ends on 2027-05-17, in 29 days: {certificates.RENEWAL}"
    )
    clock(30)
    assert [line.split(": ")[0] for line in warnings(ends(tmp_path), authority)] == [
        f"{tmp_path / 'server.pem'} has ended on 2027-05-17"
    ]
    clock(3653 - 365 - 20)
    assert [line.split()[0] for line in warnings(ends(tmp_path), authority)] == [
        str(authority),
        str(tmp_path / "server.pem"),
    ]


def test_status_and_runs_warn_and_up_renews(tmp_path, clock, capsys, monkeypatch):
    deployment = Deployment.create(tmp_path / "d", {"a": {"partition-id": 0, "num-partitions": 1}})
    first = (deployment.certificates / "server.pem").read_bytes()
    clock(340)
    warning = (
        f"fedapps: warning: {deployment.certificates / 'server.pem'} ends on 2027-05-17, in 25 days"
    )
    assert main(["deploy", "status", "--dir", str(deployment.folder)]) == 1  # nothing runs
    assert warning in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(Deployment, "check", lambda self: None)
        patch.setattr("fedapps.runs.launch.run_in_flower", lambda *_: ("interrupted", ""))
        job = [
            "run",
            "task=lasso",
            "method=fedfw",
            "--engine",
            "deployment",
            "--deployment",
            str(deployment.folder),
            "num-clients=1",
        ]
        assert main([*job, "--out", str(tmp_path / "out")]) == 130
        assert warning in capsys.readouterr().err

        def launch(program):
            raise KeyboardInterrupt  # far enough

        patch.setattr("fedapps.deployment.local.Program.launch", launch)
        with pytest.raises(KeyboardInterrupt):
            deployment.start_superlink()
    assert (deployment.certificates / "server.pem").read_bytes() != first
    assert deployment.warnings() == []
    site = (deployment.sites["a"].folder / "ca.pem").read_bytes()
    assert end_of(deployment.certificates / "server.pem") - clock(0) == timedelta(days=365)
    signed_by(deployment.certificates, site)
    (deployment.certificates / "ca.key").unlink()
    clock(365)
    refused(
        lambda: deployment.start_superlink(),
        r"server\.pem has ended: copy ca\.key back to ",
        UserError,
    )


def test_check_tells_the_end_of_a_server_elsewhere(tmp_path, clock, served, capsys, monkeypatch):
    monkeypatch.setattr(certificates, "now", lambda: datetime.now(UTC) - timedelta(days=340))
    make_certificates(tmp_path, ["127.0.0.1"])
    monkeypatch.undo()
    port = served(speaks_tls(tmp_path))
    assert main(["deploy", "check", f"127.0.0.1:{port}", "--ca", str(tmp_path / "ca.pem")]) == 0
    said = capsys.readouterr()
    assert "can be reached, and its certificate is valid" in said.out
    assert f"warning: the certificate of 127.0.0.1:{port} ends on" in said.err
    assert said.err.count("\n") == 1
