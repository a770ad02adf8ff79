"""Differences as text: with a sign, in the metric's unit, shares in percentage points."""

from __future__ import annotations

from fairbench.metrics.metric import Form
from fairbench.report.numbers import UNDEFINED
from fairbench.results.paired import Difference

SHARES = (Form.PERCENT, Form.WHOLE_PERCENT)


def signed(found: Difference, form: Form) -> str:
    """Return the mean difference; ``>`` or ``<`` if it is only a bound."""
    if found.mean is None:
        return UNDEFINED
    if found.decisive == 0:
        return "0"
    text = _number(found.mean, found, form) + (" pts" if form in SHARES else "")
    if not found.bounded:
        return text
    if found.low is None and found.high is None:
        return UNDEFINED
    return f"> {text}" if found.high is None else f"< {text}"


def signed_interval(found: Difference, form: Form) -> str:
    """Return ``[low, high]``, or the known part."""
    if found.decisive == 0:
        return ""
    low, high = (
        None if end is None else _number(end, found, form) for end in (found.low, found.high)
    )
    if low is not None and high is not None:
        return f"[{low}, {high}]"
    if low is None and high is None:
        return UNDEFINED
    return f"> {low}" if high is None else f"< {high}"


def _number(value: float, found: Difference, form: Form) -> str:
    """Return a number with the precision suited to the largest of the three numbers."""
    if form in SHARES:
        return f"{100 * value:+.1f}"
    if form is Form.INDEX:
        return f"{value:+.3f}"
    ends = (found.mean, found.low, found.high)
    largest = max(abs(end) for end in ends if end is not None)
    decimals = 0 if largest >= 100 or form is Form.WHOLE else 1 if largest >= 10 else 2
    return f"{value:+,.{decimals}f}"
