"""A target judged over the seeds of one cluster size."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.capacity.slo import Slo
from fairbench.metrics.metric import NOT_CONTENDED
from fairbench.results.intervals import t_interval
from fairbench.results.values import Value, value_of

OF_COMPLETED = re.compile(r"(p[1-9][0-9]?|mean|median)_(ttft|tpot|e2el)_ms")
UNDONE = ("unfinished", "refused", "failed")


class Judged(NamedTuple):
    """The verdict on a target: the mean over seeds and, given several seeds, its 95% interval.

    ``met`` refers to the mean, ``certain`` to the whole interval. ``bound`` is ``>`` or ``<`` if
    the mean is only a bound. ``reason`` says why there is no mean. ``seeds_met`` counts the seeds
    that meet the target individually.
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
    """Return whether one cluster meets a target, from its summaries under several seeds.

    Below saturation, targets on shares count as met. A latency that is only a lower bound does not
    meet its limit, nor does a missing value.
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
    """Return whether a percentile of completed requests would fall among unfinished requests."""
    match = OF_COMPLETED.fullmatch(slo.metric)
    if match is None:
        return False
    undone = sum(summary.get(key) or 0 for key in UNDONE)
    rank = 100 if match[1] == "mean" else 50 if match[1] == "median" else int(match[1][1:])
    return bool(undone > (1 - rank / 100) * (undone + summary["completed"]))


def _knows(slo: Slo, value: Value) -> bool:
    """Return whether a value's bound, if any, decides the target."""
    return value.bound != (">" if slo.below else "<")


def _kept(slo: Slo, value: Value, number: Any) -> bool:
    return value.is_number and _knows(slo, value) and slo.met_by(number)
