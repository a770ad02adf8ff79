"""The answer of a plan as plain values, the content of ``answer.json``, and its verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.capacity.question import Choice, Clusters
from fairbench.capacity.search import Found
from fairbench.capacity.slo import Slo
from fairbench.hardware.catalogue import resolve_profile
from fairbench.metrics.client_summary import PERCENTS
from fairbench.metrics.metric import NOT_CONTENDED
from fairbench.results.header import NOBODY_NAMED, is_nobody_named
from fairbench.results.intervals import t_interval
from fairbench.results.store import Summary
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


SHARED = ("simulated", "timing_profile", "engine", "timing_error_pct", "trace", "synthetic")

Judge = Callable[[Choice, int], Sequence[Judged]]
Summaries = Callable[[Choice, int], Sequence[Summary]]


def answer_json(
    clusters: Clusters, found: Mapping[Choice, Found], judge: Judge, summaries: Summaries
) -> dict[str, Any]:
    """Return the answer for every choice in order, with cheaper alternatives.

    ``judge`` and ``summaries`` take a choice and a number of replicas.
    """
    question = clusters.question
    rows = [_row(clusters, choice, one, judge, summaries) for choice, one in found.items()]
    choice, first = next(iter(found.items()))
    summary = summaries(choice, next(iter(first.tried)))[0]
    spec = clusters.spec(choice, question.low)
    return {
        "workload": summary["workload"],
        "scenario": summary["scenario"],
        "clients": spec.clients,
        "model": spec.model,
        "rate": clusters.load.rate,
        "rate_is_usual": clusters.load.usual,
        "seeds": [spec.seed + number for number in range(question.num_runs)],
        "low": question.low,
        "high": question.high,
        "certain": question.certain,
        "every": question.every,
        **{key: summary[key] for key in SHARED if key in summary},
        **({"behaviour": NOBODY_NAMED} if is_nobody_named(summary) else {}),
        "targets": [
            {"slo": one.text, "metric": one.metric, "limit": one.limit, "below": one.below}
            for one in clusters.targets
        ],
        "choices": rows,
        "cheaper": _cheaper(rows),
    }


def _row(
    clusters: Clusters, choice: Choice, found: Found, judge: Judge, summaries: Summaries
) -> dict[str, Any]:
    def judged(dp: int) -> list[dict[str, Any]]:
        return [one.as_json() for one in judge(choice, dp)]

    question, dp = clusters.question, found.smallest
    profile = resolve_profile(choice.gpu, clusters.spec(choice, question.low).model).profile_id
    gpus = None if dp is None else dp * int(profile.split("/")[2].removeprefix("tp"))
    price = question.price(profile)
    shown = question.high if dp is None else dp
    less = shown - 1 if shown - 1 in found.tried else None
    return {
        **choice._asdict(),
        "timing_profile": profile,
        "replicas": dp,
        "gpus": gpus,
        "cost": None if gpus is None or price is None else gpus * price,
        "monotone": found.monotone,
        "tried": [
            {"replicas": one, "enough": enough, "targets": judged(one)}
            for one, enough in found.tried.items()
        ],
        "targets": judged(shown),
        "less": None if less is None else {"replicas": less, "targets": judged(less)},
        "sharing": _sharing(summaries(choice, dp)) if choice in question.planned and dp else [],
    }


def _sharing(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the mean sharing incentive of each client simulated alone, over the known seeds."""
    rows = []
    for clients in zip(*(summary["clients"] for summary in summaries), strict=True):
        row: dict[str, Any] = {"client": clients[0]["client"]}
        for percent in PERCENTS:
            key = f"clients.{row['client']}.sharing_incentive_p{percent}"
            values = [value_of(summary, key) for summary in summaries]
            known = [value for value in values if value.is_number]
            row[f"p{percent}"] = sum(one.raw for one in known) / len(known) if known else None
            row[f"p{percent}_bound"] = next((one.bound for one in known if one.bound), "")
        rows.append(row)
    return [row for row in rows if any(row[f"p{percent}"] is not None for percent in PERCENTS)]


def _cheaper(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of rows that cost less than the first of their load.

    Without prices, only rows of the same GPU are comparable, by the number of GPUs. If the first
    row has no answer, every row with an answer counts as cheaper.
    """
    found = []
    for number, row in enumerate(rows):
        first = next(one for one in rows if one["load"] == row["load"])
        if row["replicas"] is not None and row is not first:
            less, cost = _is_cheaper(row, first), row["cost"] or row["gpus"]
            found += [(row["load"], -cost, number)] if less else []
    return [number for *_, number in sorted(found)]


def _is_cheaper(row: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    if first["replicas"] is None:
        return True
    if row["cost"] is not None and first["cost"] is not None:
        return bool(row["cost"] < first["cost"])
    same = row["timing_profile"] == first["timing_profile"]
    return same and bool(row["gpus"] < first["gpus"])
