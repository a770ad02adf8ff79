"""Numbers as text; None, which is undefined, is a dash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import ceil, floor
from typing import Any

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Form

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


def more_than(value: float, digits: int | None = None) -> str:
    """``> x`` for a lower bound; rounded down, so that it stays true.

    To so many ``digits`` after the point, by default as many as ``number`` would write.
    """
    digits = _decimals(value) if digits is None else digits
    return f"> {floor(value * 10**digits) / 10**digits:,.{digits}f}"


def less_than(value: float, digits: int | None = None) -> str:
    """``< x`` for an upper bound; rounded up, so that it stays true."""
    digits = _decimals(value) if digits is None else digits
    return f"< {ceil(value * 10**digits) / 10**digits:,.{digits}f}"


def index(value: float | None) -> str:
    """An index between 0 and 1."""
    return UNDEFINED if value is None else f"{value:.3f}"


def percent(value: float | None) -> str:
    """A share, of which 1 is 100%."""
    return UNDEFINED if value is None else f"{value:.1%}"


def whole_percent(value: float | None) -> str:
    """A share without decimals."""
    return UNDEFINED if value is None else f"{value:.0%}"


def seconds(value: float | None) -> str:
    """A time; also a whole number of seconds has three digits."""
    return number(None if value is None else float(value))


WRITERS: Mapping[Form, Callable[[float | None], str]] = {
    Form.AMOUNT: number,
    Form.SECONDS: seconds,
    Form.WHOLE: whole,
    Form.INDEX: index,
    Form.PERCENT: percent,
    Form.WHOLE_PERCENT: whole_percent,
}


def written(row: Mapping[str, Any], key: str, form: Form | None = None) -> str:
    """A metric of a summary, or of a row of its clients, as the catalogue has it written."""
    return WRITERS[form or CATALOGUE[key].form](row.get(key))


def latency(row: Mapping[str, Any], key: str, censored: Collection[str], prefix: str = "") -> str:
    """Seconds, ``> x`` where the key, as it is in the summary, is among the ``censored``."""
    value = row[key]
    if value is not None and prefix + key in censored:
        return more_than(float(value))
    return seconds(value)


def _decimals(value: float) -> int:
    if isinstance(value, int) or abs(value) >= 100:
        return 0
    return 1 if abs(value) >= 10 else 2
