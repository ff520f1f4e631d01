"""How numbers are written in sentences, captions and tables. A number that does not exist is an en dash."""

from __future__ import annotations

import math

MISSING = "–"


def signed_pp(value: float | None) -> str:
    """+3.1; never -0.0."""
    return MISSING if value is None or math.isnan(value) else f"{value:+z.1f}"


def points(value: float | None) -> str:
    """A score in percent or percentage points: 47.3."""
    return MISSING if value is None or math.isnan(value) else f"{value:z.1f}"


def interval(low: float | None, high: float | None, *, signed: bool = True) -> str:
    """[+0.4, +5.8]; signed, an end just below 0 is -0.0: its sign says whether the interval holds 0."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return MISSING
    if signed:
        return f"[{low + 0.0:+.1f}, {high + 0.0:+.1f}]"  # + 0.0: zero itself is written +0.0 whichever its sign bit
    return f"[{points(low)}, {points(high)}]"


def p_value(value: float | None) -> str:
    """'= 0.012', '< 0.001'; carries its sign of comparison."""
    if value is None or math.isnan(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def percent(fraction: float | None) -> str:
    """0.975 -> 97.5%."""
    return MISSING if fraction is None or math.isnan(fraction) else f"{100 * fraction:.3g}%"


def number(value: float | None, digits: int = 3) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.{digits}g}"


def ratio(value: float | None) -> str:
    return MISSING if value is None or math.isnan(value) else f"{value:.3f}"


def tokens(value: float | None) -> str:
    """1234567 -> 1.23M."""
    if value is None or math.isnan(value):
        return MISSING
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.0f}"


def duration(value: float | None) -> str:
    """0.0123 -> 12.3 ms; from a second on as `seconds`."""
    if value is None or math.isnan(value) or value >= 0.9995:
        return seconds(value)
    return f"{1000 * value:.3g} ms"


def megabytes(value: float | None) -> str:
    """1234.5 -> 1.23 GB."""
    if value is None or math.isnan(value):
        return MISSING
    return f"{value / 1000:.3g} GB" if value >= 1000 else f"{value:.0f} MB"


def seconds(value: float | None) -> str:
    """95.4 -> 1 min 35 s."""
    if value is None or math.isnan(value):
        return MISSING
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s"
    return f"{value:.1f} s"
