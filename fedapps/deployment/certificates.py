"""Certificates and keys for a deployment: a certificate authority, a server certificate
signed by it, and a key pair for every site.

Only their owner can read private keys (0600) and enter their folders (0700). Only
:func:`check_connection` uses the network.
"""

import ipaddress
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedapps.errors import UserError

CA, CA_KEY, SERVER, SERVER_KEY = "ca.pem", "ca.key", "server.pem", "server.key"
# A new authority must be copied to every site; a new server certificate only concerns
# the server.
CA_DAYS, SERVER_DAYS = 3653, 365
WARN_DAYS = 30
RENEWAL = "renew it with `fedapps deploy certificates`, and restart the SuperLink"
CONNECT_SECONDS = 5.0
EXPIRED = 10  # of OpenSSL: X509_V_ERR_CERT_HAS_EXPIRED


def now() -> datetime:
    """Return the time used to make and check certificates."""
    return datetime.now(UTC)


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write a server certificate for ``hosts`` (names and addresses) into ``folder``,
    signed by the authority in this folder or by a new one.

    Sites need only ``ca.pem``. ``ca.key`` is only used to renew the certificate, with
    the same call, so it need not stay on the server. Raises ``UserError`` if the
    authority is incomplete or has expired.
    """
    if not hosts:
        raise UserError(
            "no host given: give the names and addresses at which sites reach the server"
        )
    private_folder(folder)
    if (folder / CA).exists() or (folder / CA_KEY).exists():
        authority, authority_key = _authority_of(folder)
    else:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedapps deployment")])
        authority = _authority(authority_key, name)
        write_private(folder / CA_KEY, _pem(authority_key))
        (folder / CA).write_bytes(authority.public_bytes(Encoding.PEM))
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _server(key, authority, authority_key, hosts)
    write_private(folder / SERVER_KEY, _pem(key))
    (folder / SERVER).write_bytes(certificate.public_bytes(Encoding.PEM))


def ends(folder: Path) -> dict[Path, datetime]:
    """Return the end of every certificate in a folder of :func:`make_certificates`.
    Missing certificates are left out.
    """
    return {path: end_of(path) for name in (CA, SERVER) if (path := folder / name).exists()}


def ended(folder: Path) -> list[Path]:
    """Return the certificates in a folder of :func:`make_certificates` that have
    ended.
    """
    return [path for path, end in ends(folder).items() if end <= now()]


def end_of(path: Path) -> datetime:
    """Return when a certificate ends. Raises ``UserError`` if the file holds none."""
    return _certificate(path).not_valid_after_utc


def warnings(
    certificates: Mapping[Path, datetime], authority: Path, renewal: str = RENEWAL
) -> list[str]:
    """Return one line for each certificate that has ended or will end within WARN_DAYS.

    certificates: their ends, as from :func:`ends`; authority: the one that signs the
    others; renewal: instruction for renewing a server's certificate.
    """
    lines = []
    for path, end in certificates.items():
        left = end - now()
        if left > timedelta(days=WARN_DAYS):
            continue
        state = (
            f"ends on {end:%Y-%m-%d}, in {left.days} days"
            if left > timedelta(0)
            else f"has ended on {end:%Y-%m-%d}"
        )
        remedy = "make a new authority in another folder, and give every site its ca.pem"
        if path != authority:
            remedy = renewal
        lines.append(f"{path} {state}: {remedy}")
    return lines


def make_site_key(path: Path) -> Path:
    """Write a site's private key to ``path`` (OpenSSH, P-384, as SuperNodes require);
    return the public key's path, ``path``.pub.
    """
    if path.exists():
        raise UserError(
            f"{path} already exists: choose another name, or delete it to replace the site's key"
        )
    private_folder(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    )
    return public


def private_folder(folder: Path) -> Path:
    """Create a folder (and its parents) that only its owner can access; an existing
    folder is left unchanged.
    """
    if not folder.exists():
        folder.mkdir(parents=True)
        folder.chmod(0o700)
    return folder


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the moment it is created."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def check_connection(host: str, port: int, authority: Path) -> datetime:
    """Return when the certificate of the SuperLink at this address ends.

    Raises ``UserError`` with the reason if a site could not connect to it.

    ``authority``: the CA certificate that must have signed the server's.
    """
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS) as plain:
            # A server without TLS may wait for a request instead of answering the
            # handshake.
            context = ssl.create_default_context(cafile=str(authority))
            with context.wrap_socket(plain, server_hostname=host) as safe:
                end = str((safe.getpeercert() or {})["notAfter"])
                return datetime.fromtimestamp(ssl.cert_time_to_seconds(end), UTC)
    except ssl.SSLCertVerificationError as error:
        remedy = f"check that {authority} is the {CA} of that server"
        raise UserError(
            f"{where}: the server's certificate was not accepted ({error.verify_message}): "
            f"{RENEWAL if error.verify_code == EXPIRED else remedy}"
        ) from None
    except (ssl.SSLError, TimeoutError, ConnectionResetError):
        raise UserError(f"{where}: no answer to TLS: check the port") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"{where}: no connection ({reason}): check that the SuperLink is running and that this "
            "machine can reach it"
        ) from None


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a certificate ({error})") from None


def _authority_of(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority in a folder, certificate and key. Raises ``UserError``
    unless both exist, belong together, and are valid.
    """
    for present, missing in ((CA, CA_KEY), (CA_KEY, CA)):
        if not (folder / missing).exists():
            raise UserError(
                f"{folder / present} exists without {missing}: copy {missing} back and repeat the "
                f"command, or choose another --dir for a new authority, whose {CA} every site "
                "then needs"
            )
    authority = _certificate(folder / CA)
    try:
        key = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{folder / CA_KEY} is not a private key without a password ({error})"
        ) from None
    if (
        not isinstance(key, ec.EllipticCurvePrivateKey)
        or key.public_key() != authority.public_key()
    ):
        raise UserError(
            f"{folder / CA_KEY} is not the key of {folder / CA}: copy the right one back"
        )
    if authority.not_valid_after_utc <= now():
        raise UserError(
            "; ".join(warnings({folder / CA: authority.not_valid_after_utc}, folder / CA))
        )
    return authority, key


def _authority(key: ec.EllipticCurvePrivateKey, name: x509.Name) -> x509.Certificate:
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key, now() + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    end = min(now() + timedelta(days=SERVER_DAYS), authority.not_valid_after_utc)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        _builder(name, authority.subject, key, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - timedelta(hours=1))  # clocks of sites may be slow
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
