"""Human-readable formats of numbers and of untrusted text, shared by the terminal
output, the plots and the reports.

Byte units are decimal (1 MB = 10^6 bytes), as is usual for network traffic; fractions
such as accuracies are shown in per cent, durations in their two largest units.
"""

import math
import re
import unicodedata
from collections.abc import Sequence

from fedapps.algorithms.common.measures import LEADING

#: Keys of the means over clients of the leading scores.
LEADING_MEANS = tuple(f"{name}-mean" for name in LEADING)
#: Prefixes of the names of metrics that are fractions and shown in per cent.
_PERCENT = ("accuracy", "auroc", "top", "parity", "equalised", "tpr", "fpr", "macro")
#: The part of a name for the mean over the worst or the best clients.
_TAIL = re.compile(r"(worst|best)([0-9.]+)")
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def byte_scale(largest: float) -> tuple[float, str]:
    """Return the divisor and the unit in which `largest` bytes has one to three digits
    before the decimal point.
    """
    index = 0
    while index < len(_BYTE_UNITS) - 1 and largest >= 999.5 * 1000**index:
        index += 1
    return float(1000**index), _BYTE_UNITS[index]


def bytes_text(count: float) -> str:
    """Format a number of bytes with three significant digits and decimal units:
    `1234567` becomes `1.23 MB`.
    """
    if not math.isfinite(count):
        return "?"
    divisor, unit = byte_scale(abs(count))
    return f"{count:.0f} B" if unit == "B" else f"{three_digits(count / divisor)} {unit}"


def three_digits(value: float) -> str:
    """Format a value from 0.01 to 999 with three significant digits, without an
    exponent.
    """
    size = abs(value)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:.{decimals}f}"


def seconds_text(seconds: float) -> str:
    """Format a duration: `0.041` becomes `41 ms`, `75` becomes `1 min 15 s`, `4000`
    becomes `1 h 07 min`.
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.5:
        return (
            f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.{1 if seconds < 9.95 else 0}f} s"
        )
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def percent_text(fraction: float, unit: bool = True) -> str:
    """Format a fraction in per cent with one decimal: `0.9345` becomes `93.5 %`."""
    if not math.isfinite(fraction):
        return "nan"
    return f"{100 * fraction:.1f}{' %' if unit else ''}"


def counts_in_points(measure: str) -> bool:
    """Return whether differences of a score are counted in points, each 0.01."""
    return is_percent(measure) or measure.startswith("concordance")


def is_percent(key: str) -> bool:
    """Return whether the metric `key` (`accuracy-worst10`, `top5`,
    `global-accuracy-mean`) is a fraction.
    """
    parts = key.split("-")
    return not {"gini", "p"} & set(parts) and any(part.startswith(_PERCENT) for part in parts)


def metric_text(key: str, value: object, unit: bool = True) -> str:
    """Format the value of a metric or a setting according to its name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return one_line(str(value))
    if "bytes" in key.split("-"):
        return bytes_text(value)
    if key == "seconds" or key.endswith("-seconds"):
        return seconds_text(value)
    if is_percent(key):
        return percent_text(value, unit)
    if isinstance(value, int):
        return (
            f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
            if abs(value) >= 10_000
            else str(value)
        )
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "infinite"
    if value == 0 or 0.01 <= abs(value) < 100:
        return f"{value:.3f}"
    return f"{value:.4f}" if 0.001 <= abs(value) < 0.01 else f"{value:.4g}"


def metric_name(key: str) -> str:
    """Return a label for a metric's key: `accuracy-worst10` becomes `accuracy, worst 10
    %`.
    """
    words = {
        "ece": "ECE",
        "mce": "MCE",
        "auroc": "AUROC",
        "top5": "top-5",
        "rmse": "RMSE",
        "mae": "MAE",
        "r2": "R²",
        "f1": "F1",
    }
    parts = [words.get(part, _TAIL.sub(r"\1 \2 %", part)) for part in key.split("-")]
    if len(parts) > 1 and (
        parts[-1] in ("mean", "std", "worst", "pooled") or _TAIL.fullmatch(key.split("-")[-1])
    ):
        return f"{' '.join(parts[:-1])}, {parts[-1]}"
    return " ".join(parts)


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def few(names: Sequence[str], most: int = 10) -> str:
    """Return names with commas between them, at most ``most`` of them."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def shortened(text: str, limit: int) -> str:
    """Return at most `limit` characters, of the beginning and the end of a text: names
    often differ at their ends.
    """
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def one_line(text: str, limit: int = 300) -> str:
    """Sanitise untrusted text for a terminal: one line, no control or bidirectional
    characters, at most `limit` characters.

    Clients write their own error messages, and escape sequences in them would act on
    the reader's terminal.
    """
    clean = "".join(" " if unicodedata.category(char)[0] in "CZ" else char for char in text)
    clean = " ".join(clean.split())
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
