"""Replacement rule (least recently used) of a client's predictor cache; the server
predicts its clients' caches with it.
"""

from collections.abc import Sequence


def remember(held: Sequence[str], used: Sequence[str], size: int) -> list[str]:
    """Return the keys in the cache after ``used`` were used in this order: at most
    ``size``, least recently used first.
    """
    recent = dict.fromkeys(reversed([*held, *used]))  # most recently used first, each key once
    return list(recent)[:size][::-1]
