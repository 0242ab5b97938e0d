"""Keys, signatures and seals of secure sums: all of them from ``cryptography``.

X25519 agrees on secrets, HKDF with SHA-256 derives keys from them, AES-256 in counter
mode expands masks (faster than ChaCha20 where the processor has AES instructions),
ChaCha20-Poly1305 seals shares, Ed25519 signs; a site may sign with the key that its
SuperNode is registered with, an elliptic curve of NIST. Everything random comes from
the operating system.

Every signature and every derived key begins with a purpose of its own, and every part
carries its length, so that nothing can be taken for something else.
"""

import hashlib
import os
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedapps.algorithms.secure.wire import Refusal

SigningKey = Ed25519PrivateKey | ec.EllipticCurvePrivateKey
DOMAIN = b"fedapps secure sums 1"
#: Bytes of a secret that is shared, of a derived key, of what a seal adds.
SECRET, KEY, TAG = 16, 32, 16


def fresh() -> bytes:
    """Return a new secret of 128 bits."""
    return os.urandom(SECRET)


def joined(purpose: str, parts: Iterable[bytes | str | int]) -> bytes:
    """Return a purpose and parts as bytes that no other purpose and parts have."""
    out = [DOMAIN, len(purpose).to_bytes(2), purpose.encode()]
    for part in parts:
        if isinstance(part, int):
            part = part.to_bytes(8, signed=True)
        elif isinstance(part, str):
            part = part.encode()
        out += [len(part).to_bytes(8), part]
    return b"".join(out)


def digest(purpose: str, *parts: bytes | str | int) -> bytes:
    """Return the SHA-256 of parts for a purpose."""
    return hashlib.sha256(joined(purpose, parts)).digest()


def derived(secret: bytes, purpose: str, *parts: bytes | str | int) -> bytes:
    """Return a key of 32 bytes derived from a secret for a purpose."""
    return HKDF(hashes.SHA256(), KEY, None, joined(purpose, parts)).derive(secret)


# --- agreement ------------------------------------------------------------------------


def agreement_key(secret: bytes) -> X25519PrivateKey:
    """Return the X25519 key that a secret of 128 bits stands for."""
    return X25519PrivateKey.from_private_bytes(derived(secret, "agreement key"))


def public_bytes(key: X25519PrivateKey) -> bytes:
    """Return the public half (32 bytes)."""
    return key.public_key().public_bytes_raw()


def agreed(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the secret of two keys. Raises ``Refusal`` for bytes that are no key."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise Refusal(f"a key for an agreement is malformed: {error}") from None


# --- signatures -----------------------------------------------------------------------


def new_signing_key() -> Ed25519PrivateKey:
    """Return a new key for signatures."""
    return Ed25519PrivateKey.generate()


def load_signing_key(data: bytes) -> SigningKey:
    """Return a private key for signatures in OpenSSH's or PEM format, without a
    password. Raises ``ValueError``.
    """
    text = b"OPENSSH" in data
    load = serialization.load_ssh_private_key if text else serialization.load_pem_private_key
    key = load(data, password=None)
    if not isinstance(key, Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
        raise ValueError(f"a {type(key).__name__} does not sign here: use Ed25519 or a NIST curve")
    return key


def identity(key: SigningKey) -> bytes:
    """Return the public half as OpenSSH writes it: type and key, without a comment."""
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form)


def signature(key: SigningKey, purpose: str, *parts: bytes | str | int) -> bytes:
    """Return the signature of parts for a purpose."""
    text = joined(purpose, parts)
    return key.sign(text) if isinstance(key, Ed25519PrivateKey) else key.sign(text, _ECDSA)


def signed(identity: bytes, signature: bytes, purpose: str, *parts: bytes | str | int) -> bool:
    """Return whether the owner of an identity signed these parts for this purpose."""
    text = joined(purpose, parts)
    try:
        key = serialization.load_ssh_public_key(identity)
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, text)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, text, _ECDSA)
        else:
            return False
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


_ECDSA = ec.ECDSA(hashes.SHA384())


# --- seals ----------------------------------------------------------------------------


#: A key seals one text, so that its nonce need not be sent.
_NONCE = bytes(12)


def seal(key: bytes, text: bytes) -> bytes:
    """Return ``text`` encrypted and authenticated, 16 bytes more. ``key``: one for
    each text.
    """
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)


def opened(key: bytes, sealed: bytes) -> bytes:
    """Return the text of :func:`seal`. Raises ``Refusal`` if anything was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except (InvalidTag, ValueError):
        raise Refusal("it was altered, or belongs to another session or client") from None
