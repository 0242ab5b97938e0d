"""Colours of pages and plots, light and dark."""

from dataclasses import dataclass

#: Points of a line at most: one of every column of pixels that a plot has on a screen.
MOST = 280


@dataclass(frozen=True)
class Theme:
    """How plots look: colours, of which `series` are told apart with every common
    colour blindness, in this order.

    points: most that a line is drawn by; fewer on a page that would be too large.
    """

    surface: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]
    points: int = MOST


# Hues after Okabe and Ito's palette, darkened or lightened until each stands out from
# its page.
LIGHT = Theme(
    surface="#ffffff",
    ink="#1b2026",
    muted="#5b6570",
    grid="#e6e9ec",
    series=("#0069ad", "#d1550f", "#00866a", "#b8538f", "#b27d00", "#3d9bd6", "#4a4f57"),
)
DARK = Theme(
    surface="#1b1f25",
    ink="#e8eaed",
    muted="#a3abb5",
    grid="#30363e",
    series=("#4aa8ec", "#f5894a", "#2fc39c", "#e493c4", "#ecb93f", "#9fd4f5", "#c4c9d0"),
)
