"""What a bounded cache holds after a use: the one rule by which a server predicts the caches of its clients."""

from collections.abc import Sequence


def remember(held: Sequence[str], used: Sequence[str], size: int) -> list[str]:
    """Return the keys held after ``used`` were used in this order, least recently used first, at most ``size`` of them."""
    recent = dict.fromkeys(reversed([*held, *used]))  # last uses first, each key once
    return list(recent)[:size][::-1]
