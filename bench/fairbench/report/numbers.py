"""Numbers as text; None, which is undefined, is a dash."""

from __future__ import annotations

from math import ceil, floor

UNDEFINED = "-"


def number(value: float | None) -> str:
    """An amount: thousands separated, three digits at least unless it is a count."""
    if value is None:
        return UNDEFINED
    return f"{value:,.{_decimals(value)}f}"


def with_unit(value: float | None, unit: str) -> str:
    """An amount and its unit, which an undefined one has not."""
    return UNDEFINED if value is None else f"{number(value)} {unit}"


def whole(value: float | None) -> str:
    """An amount, rounded to a whole number."""
    return UNDEFINED if value is None else f"{value:,.0f}"


def more_than(value: float) -> str:
    """``> x`` for a lower bound; rounded down, so that it stays true."""
    scale = 10 ** _decimals(value)
    return f"> {floor(value * scale) / scale:,.{_decimals(value)}f}"


def less_than(value: float) -> str:
    """``< x`` for an upper bound; rounded up, so that it stays true."""
    scale = 10 ** _decimals(value)
    return f"< {ceil(value * scale) / scale:,.{_decimals(value)}f}"


def index(value: float | None) -> str:
    """An index between 0 and 1."""
    return UNDEFINED if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A share, of which 1 is 100%."""
    return UNDEFINED if value is None else f"{value:.1%}"


def _decimals(value: float) -> int:
    if isinstance(value, int) or abs(value) >= 100:
        return 0
    return 1 if abs(value) >= 10 else 2
