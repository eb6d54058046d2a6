"""Times and bytes in words: one format wherever a person reads them."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def microseconds(value: float) -> str:
    """A time in µs with four digits, the unit included: ``12.35 µs``, ``12,346 µs``."""
    return f"{value:,.0f} µs" if value >= 1000 else f"{value:.4g} µs"


def counted(count: int, thing: str) -> str:
    """Counts things in words: ``1 workload``, ``2 workloads``."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def size_text(count: int) -> str:
    """Bytes in words: ``17.2 GiB``."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{0 if unit == 0 else 1}f} {_UNITS[unit]}"
