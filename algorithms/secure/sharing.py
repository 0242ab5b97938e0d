"""Shamir's sharing of a secret of 128 bits: t shares give it, t - 1 give nothing.

The arithmetic, over GF(2^128), and its random polynomials are pycryptodome's
(``Crypto.Protocol.SecretSharing``), which Flower brings. It is plain Python: 0.5 s for
51 of 100 shares, so secrets are put together only for clients that are gone. Source:
Shamir, "How to Share a Secret", Communications of the ACM, 1979, doi
10.1145/359168.359176.
"""

from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir

from fedapps.algorithms.secure.keys import SECRET


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
