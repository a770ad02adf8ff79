"""The comparable numbers of a summary, and the worse direction of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.metrics.catalogue import CLIENTS, metric_of, name_of
from fairbench.metrics.metric import Better


class Value(NamedTuple):
    """A metric in a summary.

    ``bound`` is ``>`` or ``<`` if ``raw`` is only a bound of the true value, else empty. ``reason``
    is the reason why ``raw`` is None.
    """

    raw: Any
    bound: str = ""
    reason: str = ""

    @property
    def is_number(self) -> bool:
        """Return whether the value can be compared by size."""
        return isinstance(self.raw, int | float) and not isinstance(self.raw, bool)

    @property
    def exact(self) -> Fraction:
        """Return the number as the decimal in the file. Raises DataError for another value."""
        try:
            return Fraction(str(self.raw))
        except ValueError:
            raise DataError(f"{self.raw!r} in a summary: must be a number") from None

    @property
    def text(self) -> str:
        """The value with all its digits."""
        if self.raw is None:
            return "undefined"
        return f"{self.bound} {self.raw}" if self.bound else str(self.raw)


ABSENT = Value(None, reason="not in the summary")


def values_of(summary: Mapping[str, Any]) -> dict[str, Value]:
    """Return every plain value of a summary by key; clients' as ``clients.NAME.KEY``."""
    bounds = dict.fromkeys(summary["censored"], ">")
    bounds |= dict.fromkeys(summary.get("upper_bounds", ()), "<")
    flat = {key: value for key, value in summary.items() if not isinstance(value, list | dict)}
    for client in summary["clients"]:
        flat |= {f"{CLIENTS}{client['client']}.{key}": value for key, value in client.items()}
    reasons = summary.get("notes", {})
    return {
        key: Value(value, bounds.get(key, ""), reasons.get(key, "") if value is None else "")
        for key, value in flat.items()
    }


def value_of(summary: Mapping[str, Any], key: str) -> Value:
    """Return a value of a summary by its key in ``values_of``, ``ABSENT`` if there is none.

    Values that a comparison adds may be absent, as may values of a client not in the run.
    """
    row: Mapping[str, Any] | None = summary
    if key.startswith(CLIENTS):
        client = key.removeprefix(CLIENTS).rpartition(".")[0]
        row = next((one for one in summary["clients"] if one["client"] == client), None)
    raw = None if row is None else row.get(name_of(key), ABSENT)
    if raw is ABSENT or row is None:
        return ABSENT
    upper = key in summary.get("upper_bounds", ())
    bound = ">" if key in summary["censored"] else "<" if upper else ""
    return Value(raw, bound, summary.get("notes", {}).get(key, "") if raw is None else "")


def more_is_better(metric: str, known: Collection[str]) -> bool:
    """Return whether a higher metric is better.

    Raises UsageError if the metric is unknown or has no better direction.

    ``known`` are the keys of the summaries that are compared.
    """
    if metric not in known:
        ours = metric.startswith(CLIENTS)
        alike = (one for one in known if one.startswith(CLIENTS) == ours)
        raise unknown_name("metric", metric, filter(_has_a_worse_side, alike))
    if not _has_a_worse_side(metric):
        raise UsageError(f"metric {metric!r}: has no worse direction; choose a metric that has one")
    return _better(metric) is Better.MORE


def _has_a_worse_side(metric: str) -> bool:
    return _better(metric) is not Better.NEITHER


def _better(metric: str) -> Better:
    known = metric_of(metric)
    return known.better if known else Better.NEITHER
