"""Keys, signatures and seals of secure sums: all of them from ``cryptography``.

X25519 agrees on secrets, HKDF with SHA-256 derives keys from them, AES-256 in counter
mode expands masks (faster than ChaCha20 where the processor has AES instructions),
ChaCha20-Poly1305 seals shares, Ed25519 signs; a site may sign with the key that its
SuperNode is registered with, an elliptic curve of NIST. Everything random comes from
the operating system.

Every signature and every derived key begins with a purpose of its own, and every part
carries its length, so that nothing can be taken for something else.

Shamir's sharing of a secret of 128 bits: t shares give it, t - 1 give nothing.

The arithmetic, over GF(2^128), and its random polynomials are pycryptodome's
(``Crypto.Protocol.SecretSharing``), which Flower brings. It is plain Python: 0.5 s for
51 of 100 shares, so secrets are put together only for clients that are gone. Source:
Shamir, "How to Share a Secret", Communications of the ACM, 1979, doi
10.1145/359168.359176.

Masks: streams of uniform words, expanded from keys and added to a vector.

Two neighbours i < j agree on a key; i adds its stream and j subtracts it, so that both
cancel in the sum. Source: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage,
Segal, Seth, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS
2017, doi 10.1145/3133956.3133982, section 4.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedapps.algorithms.secure.fixed_point import Words
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


def split(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Return the shares of holders 1 to ``holders``, 16 bytes each."""
    if len(secret) != SECRET or not 2 <= threshold <= holders:
        raise ValueError(f"{threshold} of {holders} shares of {len(secret)} bytes")
    return [share for _, share in Shamir.split(threshold, holders, secret, False)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of shares by holder, from the first ``threshold`` of them.
    Raises ``ValueError`` for fewer. A wrong share gives a wrong secret.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares, {threshold} needed")
    places = sorted(shares)[:threshold]
    return bytes(Shamir.combine([(place, shares[place]) for place in places], False))


#: Words at a time: they stay in a processor's cache.
CHUNK = 2**15
_ZEROS = bytes(8 * CHUNK)


def add_stream(words: Words, key: bytes, sign: int) -> None:
    """Add the stream of ``key`` (32 bytes) to ``words`` (n,) in place, or subtract it
    if ``sign`` is -1. A key has one stream: it must be used for one vector only.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    room = bytearray(8 * CHUNK + 15)
    for begin in range(0, len(words), CHUNK):
        part = words[begin : begin + CHUNK]
        stream.update_into(_ZEROS[: 8 * len(part)], room)
        mask = np.frombuffer(room, "<u8", len(part))
        if sign > 0:
            part += mask
        else:
            part -= mask


def self_key(secret: bytes, context: bytes) -> bytes:
    """Return the key of a client's own mask, in a context."""
    return derived(secret, "self mask", context)


def pair_key(own: X25519PrivateKey, other: bytes, context: bytes, *names: str) -> bytes:
    """Return the key of the mask that two clients share, in a context. With their
    names in it, a client that copies another's public key copies no mask.
    """
    return derived(agreed(own, other), "pair mask", context, *sorted(names))
