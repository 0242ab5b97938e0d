"""Certificates that a TLS client accepts for the right hosts only, keys for Flower, and what is said where a connection fails."""

import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.cli.supernode.register import try_load_public_key

from fedapps.deployment.certificates import check_connection, make_certificates, make_site_key
from fedapps.engines.processes import free_port
from fedapps.errors import UserError


@pytest.fixture
def served(request):
    """Start a server on a loopback port that handles one connection; returns a function (handler) -> port."""
    listeners = []

    def start(handle):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve():
            try:
                connection, _ = listener.accept()
                with connection:
                    handle(connection)
            except OSError:  # the client hung up, as it should
                pass

        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    yield start
    for listener in listeners:
        listener.close()


def speaks_tls(folder):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    return lambda connection: context.wrap_socket(connection, server_side=True).close()


def speaks_http(connection):
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_only_the_right_authority_and_host_are_accepted(tmp_path, served):
    make_certificates(tmp_path / "one", ["127.0.0.1", "fl.example.org"])
    make_certificates(tmp_path / "other", ["127.0.0.1"])
    check_connection("127.0.0.1", served(speaks_tls(tmp_path / "one")), tmp_path / "one" / "ca.pem")
    with pytest.raises(UserError, match=r"not accepted .*wrong CA\? .*other/ca\.pem must be"):
        check_connection("127.0.0.1", served(speaks_tls(tmp_path / "one")), tmp_path / "other" / "ca.pem")
    with pytest.raises(UserError, match=r"not accepted .*localhost"):
        check_connection("localhost", served(speaks_tls(tmp_path / "one")), tmp_path / "one" / "ca.pem")
    names = x509.load_pem_x509_certificate((tmp_path / "one" / "server.pem").read_bytes()).extensions
    names = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]


def test_what_is_wrong_with_a_connection_is_said(tmp_path, served):
    make_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(UserError, match="no TLS is spoken there"):
        check_connection("127.0.0.1", served(speaks_http), tmp_path / "ca.pem")
    with pytest.raises(UserError, match=r"TLS is spoken there, not plain HTTP|no HTTP is spoken there"):
        check_connection("127.0.0.1", served(speaks_tls(tmp_path)), None)
    check_connection("127.0.0.1", served(speaks_http), None)
    with pytest.raises(UserError, match=r"no connection .*is the SuperLink running"):
        check_connection("127.0.0.1", free_port(), None)


def test_renewing_keeps_the_authority(tmp_path, served):
    make_certificates(tmp_path, ["127.0.0.1"])
    authority, server = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    make_certificates(tmp_path, ["127.0.0.1"])
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (tmp_path / "server.pem").read_bytes() != server
    check_connection("127.0.0.1", served(speaks_tls(tmp_path)), tmp_path / "ca.pem")
    with pytest.raises(UserError, match="no host named"):
        make_certificates(tmp_path, [])


def test_a_sites_key_is_one_that_flower_takes_and_secret(tmp_path):
    public = make_site_key(tmp_path / "new" / "hospital.a")
    assert public == tmp_path / "new" / "hospital.a.pub"
    assert try_load_public_key(public)
    key = load_ssh_private_key((tmp_path / "new" / "hospital.a").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert stat.S_IMODE((tmp_path / "new" / "hospital.a").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    with pytest.raises(UserError, match="exists already"):
        make_site_key(tmp_path / "new" / "hospital.a")
