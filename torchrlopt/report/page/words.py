"""Formats numbers as text."""

from __future__ import annotations

_UNITS = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


def time_of(us: float) -> str:
    """Format a time given in microseconds, in a suitable unit."""
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    if us >= 1e3:
        return f"{us / 1e3:.2f} ms"
    if us <= -1e3:
        return f"{us / 1e3:.2f} ms"
    return f"{us:.0f} µs" if abs(us) >= 10 else f"{us:.1f} µs"


def milliseconds(ms: float) -> str:
    """Format a time in milliseconds."""
    return f"{ms:.3f} ms" if abs(ms) < 100 else f"{ms:.1f} ms"


def change(ms: float) -> str:
    """Format a difference of times, in milliseconds."""
    return "±0" if abs(ms) < 0.0005 else f"{ms:+.3f} ms"


def amount(number: float, unit: str) -> str:
    """Format a large number with its unit, such as "1.3 MB"."""
    for letter, size in _UNITS:
        if number >= size:
            return f"{number / size:.3g} {letter}{unit}"
    return f"{number:.0f} {unit}"


def percent(change: float) -> str:
    """Format a relative change."""
    return "±0%" if abs(change) < 0.005 else f"{change:+.0%}"


def error_in_words(error: float | None) -> str:
    """Explain the error, a multiple of the original's own error against float64."""
    if error is None:
        return "not compared with float64"
    if error == 0.0:
        return "the same numbers as float64 gives"
    if error < 0.95:
        return f"more exact than the original: {error:.2f} times its distance to float64"
    if error <= 1.1:
        return f"as exact as the original ({error:.2f} times its distance to float64)"
    return f"rounds more than the original: {error:.2f} times its distance to float64, within what is allowed"


def shortened(text: str, length: int) -> str:
    """Shorten a text to at most `length` letters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
