"""A target judged over the seeds of one cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.capacity.slo import Slo
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.results.intervals import t_interval
from fairbench.results.values import Value, value_of

OF_COMPLETED = re.compile(r"(p[1-9][0-9]?|mean|median)_(ttft|tpot|e2el)_ms")
UNDONE = ("unfinished", "refused", "failed")


class Judged(NamedTuple):
    """What became of a target: mean over seeds, and its 95% interval where there are several.

    ``met`` says so of the mean, ``certain`` of all of the interval. ``bound`` is ``>`` or ``<``
    where the mean is only a bound, and ``reason`` says why there is none; ``seeds_met`` counts the
    seeds that keep the target by themselves.
    """

    slo: Slo
    met: bool
    certain: bool
    seeds_met: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str = ""
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values by name."""
        own = {key: value for key, value in self._asdict().items() if key != "slo"}
        said = {"slo": self.slo.text, "metric": self.slo.metric, "limit": self.slo.limit}
        margin = None if self.mean is None or self.bound else self.slo.margin(self.mean)
        return {**said, **own, "margin": margin}


def judge(slo: Slo, summaries: Sequence[Mapping[str, Any]]) -> Judged:
    """A target, given the summaries of one cluster under several seeds.

    Where no client was short of service shares are as they should be. A latency that is only a
    lower bound has not kept its limit, nor has what has no value.
    """
    values = [_value(slo, summary) for summary in summaries]
    fine = [value.reason == NOT_CONTENDED for value in values]
    kept = [good or _kept(slo, value, value.raw) for good, value in zip(fine, values, strict=True)]
    if all(fine):
        return Judged(slo, True, True, len(values), reason=NOT_CONTENDED)
    missing = [one for one, good in zip(values, fine, strict=True) if not good]
    if unknown := next((one for one in missing if not one.is_number), None):
        return Judged(slo, False, False, sum(kept), reason=unknown.reason or "it has no value")
    mean, low, high = t_interval([one.raw for one in missing], least=0.0, most=slo.entry.most)
    worst = next((one for one in missing if not _knows(slo, one)), missing[0])
    met = _kept(slo, worst, mean)
    far_end = high if slo.below else low
    certain = met and (far_end is not None and slo.met_by(far_end))
    return Judged(slo, met, certain, sum(kept), mean, low, high, worst.bound)


def _value(slo: Slo, summary: Mapping[str, Any]) -> Value:
    value = value_of(summary, slo.metric)
    if value.is_number and not value.bound and _is_among_undone(slo, summary):
        return Value(value.raw, ">")
    return value


def _is_among_undone(slo: Slo, summary: Mapping[str, Any]) -> bool:
    """Whether a latency of completed requests would be among those that never were."""
    match = OF_COMPLETED.fullmatch(slo.metric)
    if match is None:
        return False
    undone = sum(summary.get(key) or 0 for key in UNDONE)
    rank = 100 if match[1] == "mean" else 50 if match[1] == "median" else int(match[1][1:])
    return bool(undone > (1 - rank / 100) * (undone + summary["completed"]))


def _knows(slo: Slo, value: Value) -> bool:
    """Whether it is on the side of its bound that matters."""
    return value.bound != (">" if slo.below else "<")


def _kept(slo: Slo, value: Value, number: Any) -> bool:
    return value.is_number and _knows(slo, value) and slo.met_by(number)
