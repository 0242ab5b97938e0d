"""Random generators keyed by (run seed, purpose, client, round): the source of every
random draw of a run.

No global generator is used, so no result depends on the order in which clients run or
replies arrive.
"""

from hashlib import blake2b

import numpy as np


def _word(name: str | int) -> int:
    """Return a non-negative integer for a name; its type is part of the hash, so client
    7 differs from client "7".
    """
    if isinstance(name, int) and name >= 0:
        return name
    return int.from_bytes(
        blake2b(f"{type(name).__name__}:{name}".encode(), digest_size=8).digest(), "big"
    )


def _sequence(
    seed: int, purpose: str, client: str | int, server_round: int
) -> np.random.SeedSequence:
    return np.random.SeedSequence([_word(seed), _word(purpose), _word(client), _word(server_round)])


def generator(
    seed: int, purpose: str, client: str | int = 0, server_round: int = 0
) -> np.random.Generator:
    """Return the generator for a run seed, purpose ("batches", "sampling", ...), client
    and round.
    """
    return np.random.default_rng(_sequence(seed, purpose, client, server_round))


def derived_seed(seed: int, purpose: str, client: str | int = 0, server_round: int = 0) -> int:
    """Return a 63-bit integer seed, derived like :func:`generator`, for libraries that
    take one.
    """
    return int(
        _sequence(seed, purpose, client, server_round).generate_state(1, np.uint64)[0]
        >> np.uint64(1)
    )
