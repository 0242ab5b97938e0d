"""Colours of pages and plots, light and dark."""

from dataclasses import dataclass
from typing import NamedTuple

#: Maximum number of points per line: about one per column of pixels of a plot.
MOST = 280


class Colour(NamedTuple):
    """A colour in the light and in the dark scheme, each as "#rrggbb"."""

    light: str
    dark: str

    def of(self, dark: bool) -> str:
        """Return the colour in one of the schemes."""
        return self.dark if dark else self.light


@dataclass(frozen=True)
class Theme:
    """The colours of plots. The colours in `series` remain distinct with every common
    colour blindness.
    """

    surface: Colour
    ink: Colour
    muted: Colour
    grid: Colour
    series: tuple[Colour, ...]


# Hues after Okabe and Ito's palette, darkened or lightened until each stands out from
# its page.
THEME = Theme(
    surface=Colour("#ffffff", "#1b1f25"),
    ink=Colour("#1b2026", "#e8eaed"),
    muted=Colour("#5b6570", "#a3abb5"),
    grid=Colour("#e6e9ec", "#30363e"),
    series=(
        Colour("#0069ad", "#4aa8ec"),
        Colour("#d1550f", "#f5894a"),
        Colour("#00866a", "#2fc39c"),
        Colour("#b8538f", "#e493c4"),
        Colour("#b27d00", "#ecb93f"),
        Colour("#3d9bd6", "#9fd4f5"),
        Colour("#4a4f57", "#c4c9d0"),
    ),
)
