"""Clauses such as ``min_share_60s:-5%``, which limit how much worse a metric may become."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from fractions import Fraction
from itertools import chain
from math import comb, inf, isfinite
from typing import NamedTuple

from fairbench.errors import UsageError
from fairbench.metrics.catalogue import key_of, metric_of, short_of
from fairbench.metrics.metric import Better
from fairbench.results.significance import Decision, Difference, difference
from fairbench.results.summary import Value, more_is_better

SHAPE = re.compile(
    r"(?P<metric>.+):(?P<sign>[+-]?)(?P<amount>[0-9]{1,15}(\.[0-9]{1,15})?)(?P<unit>%?)"
)


class Clause(NamedTuple):
    """A limit on a metric: ``metric`` may get worse by at most ``loss``.

    If ``relative`` is true, ``loss`` is a fraction of the metric's value in the baseline run.
    """

    text: str
    metric: str
    more_is_better: bool
    loss: Fraction
    relative: bool

    def limit(self, baseline: Fraction) -> Fraction:
        """Return the worst value of a metric that passes, given the value in the baseline."""
        loss = abs(baseline) * self.loss if self.relative else self.loss
        return baseline - loss if self.more_is_better else baseline + loss


def parse_clause(text: str, known: Collection[str]) -> Clause:
    """Parse ``METRIC:-LOSS`` (if more is better) or ``METRIC:+LOSS``.

    METRIC is a summary key or an alias of a key; LOSS is an amount or a percentage. ``known`` lists
    the metrics that the runs' summaries contain. Raises UsageError for a wrong form or sign, for an
    unknown metric, and for a metric that does not rank schedulers.
    """
    match = SHAPE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--fail-if {text!r}: write METRIC:-LOSS or METRIC:+LOSS, "
            "such as min_share_60s:-5% or victim_p95_s:+10%"
        )
    sign, amount, unit = match["sign"], match["amount"], match["unit"]
    metric = key_of(match["metric"])
    try:
        more = more_is_better(metric, known)
    except UsageError as error:
        raise UsageError(f"--fail-if {text!r}: {error}") from None
    loss, short = Fraction(amount), short_of(metric)
    worse = "-" if more else "+"
    if loss and sign != worse:
        raise UsageError(
            f"--fail-if {text!r}: a {'lower' if more else 'higher'} {short} is worse, so the "
            f"allowed loss must be written {short}:{worse}{amount}{unit}"
        )
    if more and unit and loss >= 100:
        raise UsageError(
            f"--fail-if {text!r}: this condition can never be met, because {short} cannot fall by "
            "more than 100%; give a smaller loss"
        )
    found = metric_of(metric)
    if found and not unit and (loss >= 1 if found.form.is_share else loss > found.most):
        raise UsageError(
            f"--fail-if {text!r}: this condition can never be met, because {short} is a fraction, "
            f"in which 1 means 100%; for a loss of {amount}%, write {short}:{worse}{amount}%"
        )
    return Clause(
        f"{short}:{sign}{amount}{unit}", metric, more, loss / (100 if unit else 1), bool(unit)
    )


def p_larger(first: Sequence[Fraction], second: Sequence[Fraction]) -> float:
    """Return the one-sided p-value of the exact rank-sum test that ``second`` exceeds ``first``.

    The p-value is the probability that the rank sum of ``second`` is at least as large as observed,
    if both samples come from one distribution.
    """
    pooled = sorted([*first, *second])
    observed = sum(_doubled_rank(pooled, value) for value in second)
    # splits[k][s] is the number of ways to choose k of the processed values with rank sum s.
    splits = [Counter({0: 1}), *(Counter[int]() for _ in second)]
    for value in pooled:
        rank = _doubled_rank(pooled, value)
        for size in range(len(second), 0, -1):
            for ranks, ways in splits[size - 1].items():
                splits[size][ranks + rank] += ways
    as_large = sum(ways for ranks, ways in splits[-1].items() if ranks >= observed)
    return as_large / comb(len(pooled), len(second))


def can_reject(first: int, second: int, alpha: float) -> bool:
    """Return whether samples with ``first`` and ``second`` values can differ significantly."""
    return 1 / comb(first + second, second) <= alpha


def _doubled_rank(pooled: Sequence[Fraction], value: Fraction) -> int:
    """Return twice the mean rank of all values in ``pooled`` that are equal to ``value``."""
    return bisect_left(pooled, value) + bisect_right(pooled, value) + 1


class Verdict(StrEnum):
    """The verdict on a metric's limit for one experiment."""

    PASS = "pass"
    FAIL = "FAIL"
    INCONCLUSIVE = "inconclusive"
    ERROR = "ERROR"  # A run failed, so its metrics cannot be judged.


class Judgement(NamedTuple):
    """A verdict, with a reason if the printed numbers do not explain the verdict."""

    verdict: Verdict
    reason: str = ""


def judge_exact(clause: Clause, before: Value, after: Value) -> Judgement:
    """Judge a run against a baseline run by comparing the exact decimal numbers in their files.

    A value may be only a bound, such as a latency above 300 s. The check passes if all possible
    true values pass, and fails if all possible true values fail. Otherwise, the check of the metric
    is inconclusive. If both runs have the same bound, the check passes.
    """
    if before.raw is None or after.raw is None:
        return _judge_undefined([before], [after])
    if (before.raw, before.bound) == (after.raw, after.bound):
        return Judgement(Verdict.PASS)
    best_limit, worst_limit = (
        _badness_limit(clause, badness) for badness in _badness_range(clause, before)
    )
    least, most = _badness_range(clause, after)
    is_bound = bool(before.bound or after.bound)
    # If only a bound of a metric is known, the true value lies beyond the bound. A bound that
    # equals the clause's limit therefore fails the clause.
    if least > worst_limit or (is_bound and least == worst_limit):
        return Judgement(Verdict.FAIL)
    if most <= best_limit:
        return Judgement(Verdict.PASS)
    return Judgement(Verdict.INCONCLUSIVE, "only a bound is known")


def judge_paired(
    clause: Clause, before: Sequence[Value], after: Sequence[Value], alpha: float
) -> Judgement:
    """Judge runs with equal seeds by paired differences, as ``compare`` does.

    ``clause`` limits the metric's mean change from the baseline. The check fails if the mean change
    is significantly worse than the limit, and passes if the mean change is significantly better.
    Otherwise, the check is inconclusive. A seed is ignored if the metric is undefined in both of
    its runs.

    Args:
        clause: The metric and its allowed loss.
        before: The metric's values in the baseline runs, in the order of the seeds.
        after: The metric's values in the current runs, in the order of the seeds.
        alpha: One-sided significance level.
    """
    pairs = [pair for pair in zip(before, after, strict=True) if not all(map(_is_undefined, pair))]
    if len(pairs) == 1:
        return judge_exact(clause, *pairs[0])
    if not pairs or any(map(_is_undefined, chain.from_iterable(pairs))):
        return _judge_undefined(before, after)
    before, after = zip(*pairs, strict=True)
    found = difference(*_scaled(clause, before, after), level=1 - 2 * alpha)
    decision = found.decision(Better.MORE if clause.more_is_better else Better.LESS)
    if decision is Decision.INCONCLUSIVE:
        more = found.more_seeds(1 - 2 * alpha)
        advice = f"; about {more:,} more seeds would decide" if more else ""
        return Judgement(Verdict.INCONCLUSIVE, (found.obstacle or _beyond(found, clause)) + advice)
    verdict = Verdict.FAIL if decision is Decision.WORSE else Verdict.PASS
    return Judgement(verdict, "" if decision is Decision.SAME else _beyond(found, clause))


def judge_repeated(
    clause: Clause, before: Sequence[Value], after: Sequence[Value], alpha: float
) -> Judgement:
    """Judge several measured runs of one seed against several baseline runs.

    Each limit is a baseline value, made worse by the loss that ``clause`` allows. The check fails
    if the current values are significantly worse than the limits from the baseline. The check
    passes if the current values are significantly better than the limits, or if every current value
    meets every limit.

    The rank tests are one-sided at the level ``alpha``. If there are too few runs for a significant
    result, the check is inconclusive.
    """
    if any(value.raw is None for value in [*before, *after]):
        return _judge_undefined(before, after)
    if any(value.bound for value in [*before, *after]):
        return Judgement(Verdict.INCONCLUSIVE, "only a bound is known of some run")
    sizes = len(before), len(after)
    if not can_reject(*sizes, alpha):
        runs = f"{sizes[0]} and {sizes[1]} runs"
        return Judgement(Verdict.INCONCLUSIVE, f"{runs} are too few for a test at {alpha:g}")
    sign = -1 if clause.more_is_better else 1
    limits = [sign * clause.limit(value.exact) for value in before]
    current = [sign * value.exact for value in after]
    p = p_larger(limits, current)
    if p <= alpha:
        return Judgement(Verdict.FAIL, f"p = {p:.3g}")
    within = p_larger(current, limits)
    if within <= alpha or max(current) <= min(limits):
        return Judgement(Verdict.PASS, f"p = {p:.3g}")
    return Judgement(Verdict.INCONCLUSIVE, f"p = {p:.3g} (worse), {within:.3g} (no worse)")


def _scaled(
    clause: Clause, before: Sequence[Value], after: Sequence[Value]
) -> tuple[list[Value], list[Value]]:
    """Return each seed's limit and current value, which the statistical test compares.

    If ``clause`` allows a relative loss, a seed's limit and current value are divided by the seed's
    baseline value. After the division, seeds with equal relative changes have equal current values.
    """
    units = [abs(float(value.exact)) for value in before]
    if not clause.relative or 0.0 in units:
        units = [1.0] * len(before)
    limits = [
        Value(float(clause.limit(value.exact)) / unit, value.bound)
        for value, unit in zip(before, units, strict=True)
    ]
    current = [
        Value(float(value.exact) / unit, value.bound)
        for value, unit in zip(after, units, strict=True)
    ]
    return limits, current


def _beyond(found: Difference, clause: Clause) -> str:
    seeds = f"paired over {found.runs} seed{'s' if found.runs > 1 else ''}"
    if found.mean is None or found.runs < 2:
        return f"{seeds}: too few"
    ends = ("?" if end is None else _amount(end, clause) for end in (found.low, found.high))
    return f"{_amount(found.mean, clause)} [{', '.join(ends)}] from the limit, {seeds}"


def _amount(value: float, clause: Clause) -> str:
    return f"{100 * value:+.3g}%" if clause.relative else f"{value:+.4g}"


def _is_undefined(value: Value) -> bool:
    return value.raw is None


def _judge_undefined(before: Sequence[Value], after: Sequence[Value]) -> Judgement:
    """Judge a metric that is undefined in some runs; a metric undefined in all runs passes."""
    undefined = [list(filter(_is_undefined, values)) for values in (before, after)]
    if len(undefined[0]) == len(before) and len(undefined[1]) == len(after):
        return Judgement(Verdict.PASS, "undefined in both")
    when, which = ("now", undefined[1]) if undefined[1] else ("in the baseline", undefined[0])
    return Judgement(Verdict.FAIL, f"undefined {when}: {which[0].reason or 'no reason given'}")


def _badness_range(clause: Clause, value: Value) -> tuple[Fraction | float, Fraction | float]:
    """Return the range of a metric's true value, negated if larger values are better."""
    low = -inf if value.bound == "<" else value.exact
    high = inf if value.bound == ">" else value.exact
    return (-high, -low) if clause.more_is_better else (low, high)


def _badness_limit(clause: Clause, badness: Fraction | float) -> Fraction | float:
    """Return the worst value of a metric that passes, given the baseline's value.

    If larger values of the metric are better, values are negated, so that larger means worse.
    """
    if isinstance(badness, float):
        assert not isfinite(badness)
        return badness
    return -clause.limit(-badness) if clause.more_is_better else clause.limit(badness)
