"""Changes between two summaries of the same simulated experiment."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from fairbench.results.values import ABSENT, Value, values_of

# Processors add up floating point numbers in different orders; no decision changes so little.
ROUNDING = Fraction(1, 10**12)


class Change(NamedTuple):
    """A changed value. A bound counts as a part of the value."""

    metric: str
    before: Value
    after: Value

    @property
    def difference(self) -> str:
        """The signed change, in percent of the baseline unless that is 0."""
        if not (self.before.is_number and self.after.is_number):
            return ""
        return relative_difference(self.before.exact, self.after.exact)


def relative_difference(before: Fraction, after: Fraction) -> str:
    """Return ``+3.2%`` of the baseline, or the plain difference for a baseline of 0."""
    if before == 0:
        return f"{float(after):+.4g}"
    return f"{float(100 * (after - before) / abs(before)):+.4g}%"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return every changed value of two summaries, ignoring rounding across processors."""
    old, new = values_of(before), values_of(after)
    pairs = [Change(key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in {**old, **new}]
    return tuple(pair for pair in pairs if _differ(pair.before, pair.after))


def _differ(before: Value, after: Value) -> bool:
    if before.bound != after.bound:
        return True
    if not (before.is_number and after.is_number):
        return bool(before.raw != after.raw)
    return abs(after.exact - before.exact) > ROUNDING * abs(before.exact)
