"""The search of ``fairbench plan`` for the number of replicas or users, and its JSON answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.hardware.catalogue import resolve_profile
from fairbench.metrics.censored_latency import PERCENTS
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.report.limit_lines import NEEDED, has_limit
from fairbench.results.significance import t_interval
from fairbench.results.store import Summary
from fairbench.results.summary import NOBODY_NAMED, Value, is_nobody_named, value_of
from fairbench_logs.planning.question import USERS, Clusters, PlanChoice, Slo

Search = Generator[list[int], Mapping[int, bool], "SmallestSize"]
"""A generator that yields lists of sizes to try, and receives whether each size is sufficient.

A size is a number of replicas or of users. The generator never yields an empty list, and finally
returns a ``SmallestSize``.
"""


class SmallestSize(NamedTuple):
    """The smallest cluster size that meets the targets, or None if no size meets the targets.

    ``tried`` maps each simulated size to whether the size met the targets. ``monotone`` is True if
    no simulated size failed above a sufficient size. Untested sizes above ``smallest`` are then
    assumed to be sufficient. If ``monotone`` is False, every size below ``smallest`` was simulated.
    """

    smallest: int | None
    monotone: bool
    tried: dict[int, bool]


def bisected(low: int, high: int) -> Search:
    """Find the smallest sufficient cluster size from ``low`` to ``high`` by bisection.

    Cluster sizes just below and above the result are tested as well. If some size passes and a
    larger size fails, every size below the smallest sufficient size is tested. If the cluster size
    ``high`` is insufficient, some smaller sizes are tested, too.
    """
    tried = dict((yield [high]))
    below, above = low - 1, high
    if tried[high]:
        while above - below > 1:
            middle = (below + above) // 2
            tried |= yield [middle]
            below, above = (below, middle) if tried[middle] else (middle, above)
    else:
        smaller = [high]
        while smaller[-1] > low:
            smaller.append((low + smaller[-1]) // 2)
        if smaller[1:]:
            tried |= yield smaller[1:]
    neighbours = [one for one in (below - 1, above - 1, above + 1) if low <= one <= high]
    if new := [one for one in neighbours if one not in tried]:
        tried |= yield new
    if not is_monotone(tried):
        smallest = min(one for one, enough in tried.items() if enough)
        if new := [one for one in range(low, smallest) if one not in tried]:
            tried |= yield new
    return _smallest_size(tried)


def largest(first: int, last: int, is_possible: Callable[[int], bool]) -> Search:
    """Find the largest number of users, from ``first`` to ``last``, that meets the targets.

    The number of users is doubled until a target is missed, and then bisected. Numbers of users for
    which ``is_possible`` is False are skipped. The result's field ``smallest`` holds the largest
    number of users that meets the targets. The next two larger numbers of users are tested, too.
    """
    tried = dict((yield [first]))
    size = first
    while tried[size] and size < last:
        size = min(2 * size, last)
        tried |= yield [size]
    below = max((one for one, enough in tried.items() if enough), default=0)
    above = min((one for one, enough in tried.items() if not enough), default=last + 1)
    while above - below > 1:
        middle = (below + above) // 2
        if is_possible(middle):
            tried |= yield [middle]
        below, above = (below, middle) if tried.get(middle) is False else (middle, above)
    if above + 1 <= last and above + 1 not in tried:
        tried |= yield [above + 1]
    enough = [tried[one] for one in sorted(tried, reverse=True)]
    found = max((one for one in tried if tried[one]), default=None)
    return SmallestSize(found, enough == sorted(enough), dict(sorted(tried.items())))


def every_size(low: int, high: int) -> Search:
    """Find the smallest sufficient size from ``low`` to ``high`` by testing every size."""
    return _smallest_size(dict((yield list(range(low, high + 1)))))


def _smallest_size(tried: dict[int, bool]) -> SmallestSize:
    enough = [one for one, is_enough in tried.items() if is_enough]
    return SmallestSize(min(enough, default=None), is_monotone(tried), dict(sorted(tried.items())))


def is_monotone(tried: Mapping[int, bool]) -> bool:
    """Return whether every tested size above the smallest sufficient size is sufficient."""
    enough = [tried[one] for one in sorted(tried)]
    return enough == sorted(enough)


OF_COMPLETED = re.compile(r"(p[1-9][0-9]?|mean|median)_(ttft|tpot|e2el)_ms")
UNDONE = ("unfinished", "refused", "failed")


class JudgedTarget(NamedTuple):
    """The verdict on whether a cluster meets one target.

    - ``met`` is True if the metric's mean over the seeds meets the target.
    - ``certain`` is True if the whole 95% interval of the mean meets the target.
    - ``seeds_met`` is the number of seeds for which the metric meets the target.
    - ``low`` and ``high`` are the ends of the 95% interval, or None for a single seed.
    - ``bound`` is ``>`` or ``<`` if the mean is only a lower or upper bound.
    - ``reason`` says why the mean of the metric is undefined.
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
        """Return the verdict's fields as values for a JSON file."""
        own = {key: value for key, value in self._asdict().items() if key != "slo"}
        target = {"slo": self.slo.text, "metric": self.slo.metric, "limit": self.slo.limit}
        margin = None if self.mean is None or self.bound else self.slo.margin(self.mean)
        return {**target, **own, "margin": margin}


def judge(slo: Slo, summaries: Sequence[Mapping[str, Any]]) -> JudgedTarget:
    """Return whether a cluster meets a target, given the summaries of the cluster's runs.

    If the load is below saturation, targets on shares of the service count as met. A missing value,
    or a latency that is only a lower bound, does not meet a target.
    """
    values = [_value(slo, summary) for summary in summaries]
    fine = [value.reason == NOT_CONTENDED for value in values]
    kept = [good or _kept(slo, value, value.raw) for good, value in zip(fine, values, strict=True)]
    if all(fine):
        return JudgedTarget(slo, True, True, len(values), reason=NOT_CONTENDED)
    missing = [one for one, good in zip(values, fine, strict=True) if not good]
    if unknown := next((one for one in missing if not one.is_number), None):
        return JudgedTarget(
            slo, False, False, sum(kept), reason=unknown.reason or "the metric has no value"
        )
    mean, low, high = t_interval([one.raw for one in missing], least=0.0, most=slo.entry.most)
    worst = next((one for one in missing if not _knows(slo, one)), missing[0])
    met = _kept(slo, worst, mean)
    far_end = high if slo.below else low
    certain = met and (far_end is not None and slo.met_by(far_end))
    return JudgedTarget(slo, met, certain, sum(kept), mean, low, high, worst.bound)


def _value(slo: Slo, summary: Mapping[str, Any]) -> Value:
    """Return a target's metric, as a lower bound if unfinished requests could raise the value.

    A percentile of completed requests is only a bound if too many requests did not complete.
    """
    value, match = value_of(summary, slo.metric), OF_COMPLETED.fullmatch(slo.metric)
    if match is None or not value.is_number or value.bound:
        return value
    undone = sum(summary.get(key) or 0 for key in UNDONE)
    rank = 100 if match[1] == "mean" else 50 if match[1] == "median" else int(match[1][1:])
    is_among_undone = 100 * undone > (100 - rank) * (undone + summary["completed"])
    return Value(value.raw, ">") if is_among_undone else value


def _knows(slo: Slo, value: Value) -> bool:
    """Return whether ``value``, possibly only a bound, decides whether the target is met."""
    return value.bound != (">" if slo.below else "<")


def _kept(slo: Slo, value: Value, number: Any) -> bool:
    """Return whether ``number`` meets the target; return False if a bound leaves this open."""
    return value.is_number and _knows(slo, value) and slo.met_by(number)


SHARED = ("simulated", "timing_profile", "engine", "timing_error_pct", "trace", "synthetic")

Judge = Callable[[PlanChoice, int], Sequence[JudgedTarget]]
Summaries = Callable[[PlanChoice, int], Sequence[Summary]]


def answer_json(
    clusters: Clusters, found: Mapping[PlanChoice, SmallestSize], judge: Judge, summaries: Summaries
) -> dict[str, Any]:
    """Return the content of the file ``answer.json`` of a plan.

    Args:
        clusters: The experiments of the plan, one for each choice (scheduler, GPU and load).
        found: The search result of each choice; the plan is for the first choice.
        judge: A function that returns the verdict on each target for a choice and a number of
            replicas.
        summaries: A function that returns a choice's run summaries for a number of replicas.
    """
    question = clusters.question
    rows = [_row(clusters, choice, one, judge, summaries) for choice, one in found.items()]
    choice, first = next(iter(found.items()))
    summary = summaries(choice, next(iter(first.tried)))[0]
    spec = clusters.spec(choice, clusters.first_size)
    return {
        "workload": summary["workload"],
        "scenario": summary["scenario"],
        "clients": spec.clients,
        "model": spec.model,
        "rate": clusters.load.rate,
        "rate_is_usual": clusters.load.usual,
        "seeds": [spec.seed + number for number in range(question.num_runs)],
        **({"size": USERS, "replicas": question.low} if question.most else {}),
        "low": clusters.first_size if question.most else question.low,
        "high": clusters.last_size,
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
    clusters: Clusters, choice: PlanChoice, found: SmallestSize, judge: Judge, summaries: Summaries
) -> dict[str, Any]:
    def verdicts(size: int) -> list[dict[str, Any]]:
        return [one.as_json() for one in judge(choice, size)]

    question, found_size, size = clusters.question, found.smallest, clusters.question.size
    spec = clusters.spec(choice, clusters.first_size)
    profile = resolve_profile(choice.gpu, spec.model).profile_id
    dp = None if found_size is None else question.low if question.most else found_size
    gpus = None if dp is None else dp * int(profile.split("/")[2].removeprefix("tp"))
    price = question.price(profile)
    worst = min(found.tried) if question.most else question.high
    shown = worst if found_size is None else found_size
    next_size = shown + (1 if question.most else -1)
    less = next_size if next_size in found.tried else None
    return {
        **choice._asdict(),
        "timing_profile": profile,
        size: found_size,
        "gpus": gpus,
        "cost": None if gpus is None or price is None else gpus * price,
        "monotone": found.monotone,
        "tried": [
            {size: one, "enough": enough, "targets": verdicts(one)}
            for one, enough in found.tried.items()
        ],
        "targets": verdicts(shown),
        "less": None if less is None else {size: less, "targets": verdicts(less)},
        "limit": mean_limit(summaries(choice, shown)) if shown in found.tried else None,
        "sharing": _sharing(summaries(choice, dp))
        if choice in question.planned and dp and not question.most
        else [],
    }


def mean_limit(summaries: Sequence[Summary]) -> Summary | None:
    """Return means over seeds of the metrics in ``NEEDED``; None if a run lacks a metric."""
    if not summaries or not all(map(has_limit, summaries)):
        return None
    first = {key: summaries[0].get(key) for key in ("dp", "limit_cause")}
    return first | {key: fmean(one[key] for one in summaries) for key in NEEDED}


def _sharing(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the mean sharing incentive of each client that was also simulated alone."""
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
    """Return the indices of rows (choices) cheaper than the planned choice at the same load.

    Without prices, rows with the same GPU and model are compared by their numbers of GPUs. If the
    planned scheduler and GPU meet the targets at no cluster size, every other pair that meets the
    targets counts as cheaper.
    """
    found: list[tuple[float, float, int]] = []
    if rows and USERS in rows[0]:
        return []
    for number, row in enumerate(rows):
        first = next(one for one in rows if one["load"] == row["load"])
        if row["replicas"] is not None and row is not first:
            has_costs = row["cost"] is not None and first["cost"] is not None
            measure = "cost" if has_costs else "gpus"
            is_comparable = has_costs or row["timing_profile"] == first["timing_profile"]
            if first["replicas"] is None or (is_comparable and row[measure] < first[measure]):
                found.append((row["load"], -(row["cost"] or row["gpus"]), number))
    return [number for *_, number in sorted(found)]
