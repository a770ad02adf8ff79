"""Changes between two summaries of the same simulated experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from fairbench.metrics.catalogue import CLIENTS, metric_of
from fairbench.metrics.metric import Better
from fairbench.results.values import ABSENT, Value, values_of

# Processors add up floating point numbers in different orders; no decision changes so little.
DIGITS = (3, 5, 8)
LARGE = 1000  # from which on a change has no decimals
ROUNDING = Fraction(1, 10**12)


class Change(NamedTuple):
    """A changed value. A bound counts as a part of the value."""

    metric: str
    before: Value
    after: Value

    @property
    def texts(self) -> tuple[str, str]:
        """Both values, short enough to read."""
        return short_texts(self.before, self.after)

    @property
    def difference(self) -> str:
        """The signed change, in percent of the baseline unless that is 0."""
        if not (self.before.is_number and self.after.is_number):
            return ""
        return relative_difference(self.before.exact, self.after.exact)

    @property
    def direction(self) -> str:
        """``worse`` or ``better``; empty if neither more nor less is worse."""
        metric = metric_of(self.metric)
        better = metric.better if metric else Better.NEITHER
        if better is Better.NEITHER or not (self.before.is_number and self.after.is_number):
            return ""
        grew = self.after.exact > self.before.exact
        return "better" if grew is (better is Better.MORE) else "worse"


def short_texts(before: Value, after: Value) -> tuple[str, str]:
    """Return both values in three digits, or in as many more as show that they differ."""
    if before == after:
        return _short(before, DIGITS[0]), _short(after, DIGITS[0])
    for digits in DIGITS:
        texts = _short(before, digits), _short(after, digits)
        if texts[0] != texts[1]:
            return texts
    return before.text, after.text


def _short(value: Value, digits: int) -> str:
    if not value.is_number:
        return value.text
    whole = isinstance(value.raw, int) or abs(value.raw) >= 10 ** (digits - 1)
    text = f"{value.raw:,.0f}" if whole else f"{value.raw:.{digits}g}"
    return f"{value.bound} {text}" if value.bound else text


def relative_difference(before: Fraction, after: Fraction) -> str:
    """Return ``+3.2%`` of the baseline, or the plain difference for a baseline of 0."""
    if before == 0:
        return _signed(float(after))
    return f"{_signed(float(100 * (after - before) / abs(before)))}%"


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= LARGE else f"{value:+.3g}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return every changed value of two summaries, ignoring rounding across processors."""
    old, new = values_of(before), values_of(after)
    pairs = [Change(key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in {**old, **new}]
    return tuple(pair for pair in pairs if _differ(pair.before, pair.after))


def of_the_cluster(found: Sequence[Change]) -> Sequence[Change]:
    """Return the changes of cluster-wide metrics; those of single clients if there are no others.

    The changes of single clients follow from the others, and are many.
    """
    return [one for one in found if not one.metric.startswith(CLIENTS)] or found


def _differ(before: Value, after: Value) -> bool:
    if before.bound != after.bound:
        return True
    if not (before.is_number and after.is_number):
        return bool(before.raw != after.raw)
    return abs(after.exact - before.exact) > ROUNDING * abs(before.exact)
