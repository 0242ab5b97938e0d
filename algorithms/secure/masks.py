"""Masks: streams of uniform words, expanded from keys and added to a vector.

Two neighbours i < j agree on a key; i adds its stream and j subtracts it, so that both
cancel in the sum. Source: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage,
Segal, Seth, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS
2017, doi 10.1145/3133956.3133982, section 4.
"""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedapps.algorithms.secure.fixed_point import Words
from fedapps.algorithms.secure.keys import agreed, derived

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
