"""Formats of numbers; an undefined number (None) is shown as a dash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import ceil, floor
from typing import Any

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Form

UNDEFINED = "-"


def number(value: float | None) -> str:
    """Format an amount with thousands separators; floats get at least three digits."""
    if value is None:
        return UNDEFINED
    return f"{value:,.{_decimals(value)}f}"


def with_unit(value: float | None, unit: str) -> str:
    """Format an amount with its unit; an undefined amount is a dash without a unit."""
    return UNDEFINED if value is None else f"{number(value)} {unit}"


def whole(value: float | None) -> str:
    """Format an amount as a whole number."""
    return UNDEFINED if value is None else f"{value:,.0f}"


def more_than(value: float, digits: int | None = None) -> str:
    """Format a lower bound as ``> x``, rounded down so that the text stays true.

    ``digits`` is the number of decimals, by default the number that ``number`` writes.
    """
    digits = _decimals(value) if digits is None else digits
    return f"> {floor(value * 10**digits) / 10**digits:,.{digits}f}"


def less_than(value: float, digits: int | None = None) -> str:
    """Format an upper bound as ``< x``, rounded up so that the text stays true."""
    digits = _decimals(value) if digits is None else digits
    return f"< {ceil(value * 10**digits) / 10**digits:,.{digits}f}"


def index(value: float | None) -> str:
    """Format an index, such as Jain's index, that lies between 0 and 1."""
    return UNDEFINED if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """Format a share as a percentage; the share 1 becomes 100%."""
    return UNDEFINED if value is None else f"{value:.1%}"


def whole_percent(value: float | None) -> str:
    """Format a fraction as a percentage without decimals."""
    return UNDEFINED if value is None else f"{value:.0%}"


def seconds(value: float | None) -> str:
    """Format a time in seconds with at least three digits, such as 2.00 for 2."""
    return number(None if value is None else float(value))


WRITERS: Mapping[Form, Callable[[float | None], str]] = {
    Form.AMOUNT: number,
    Form.SECONDS: seconds,
    Form.WHOLE: whole,
    Form.INDEX: index,
    Form.PERCENT: percent,
    Form.WHOLE_PERCENT: whole_percent,
}


def bounded(value: float | None, bound: str, form: Form, digits: int | None = None) -> str:
    """Format a value; a bound becomes ``> x`` or ``< x`` with ``digits`` decimals."""
    if value is None or not bound:
        return WRITERS[form](value)
    return (more_than if bound == ">" else less_than)(value, digits)


def bound_of(interval: Mapping[str, Any]) -> str:
    """Return ``>`` or ``<`` if a combined metric's mean is only a bound, or "" if it is exact."""
    return ">" if interval.get("lower_bound") else "<" if interval.get("upper_bound") else ""


def written(row: Mapping[str, Any], key: str, form: Form | None = None) -> str:
    """Format the metric ``key`` of a summary or client, by default in the catalogue's format."""
    return WRITERS[form or CATALOGUE[key].form](row.get(key))


def latency(row: Mapping[str, Any], key: str, censored: Collection[str], prefix: str = "") -> str:
    """Format a latency in seconds, as a lower bound ``> x`` if its key is in ``censored``."""
    value = row[key]
    if value is not None and prefix + key in censored:
        return more_than(float(value))
    return seconds(value)


def _decimals(value: float) -> int:
    if isinstance(value, int) or abs(value) >= 100:
        return 0
    return 1 if abs(value) >= 10 else 2
