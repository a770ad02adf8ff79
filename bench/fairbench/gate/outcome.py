"""The outcome of a gate: changes between summaries, and all clauses judged at all points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import mean
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.gate.judge import (
    Clause,
    Verdict,
    judge_exact,
    judge_paired,
    judge_repeated,
    parse_clause,
)
from fairbench.gate.points import PairedPoint, over_seeds
from fairbench.metrics.catalogue import CLIENTS, metric_of
from fairbench.metrics.metric import Better
from fairbench.results.header import basis
from fairbench.results.paired import mean_value
from fairbench.results.store import Summary
from fairbench.results.values import ABSENT, Value, values_of

# Processors add up floating point numbers in different orders; a changed decision makes a larger
# difference.
DIGITS = (3, 5, 8)
LARGE = 1000  # a change of at least this many percent is printed without decimals
ROUNDING = Fraction(1, 10**12)


class Change(NamedTuple):
    """A changed value. A bound is part of the value."""

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

    The changes of single clients follow from these, and are numerous.
    """
    return [one for one in found if not one.metric.startswith(CLIENTS)] or found


def _differ(before: Value, after: Value) -> bool:
    if before.bound != after.bound:
        return True
    if not (before.is_number and after.is_number):
        return bool(before.raw != after.raw)
    return abs(after.exact - before.exact) > ROUNDING * abs(before.exact)


RUN = "run"  # the check of a point whose run failed
NO_CHANGE = "no value may change"  # the check of simulated runs without clauses


@dataclass(frozen=True, slots=True)
class Row:
    """A clause's result at a point. ``before`` and ``after`` are texts, ``change`` the difference.

    ``causes`` are the defaults that changed in between.
    """

    point: str
    clause: str
    verdict: Verdict
    before: str = ""
    after: str = ""
    change: str = ""
    reason: str = ""
    causes: tuple[str, ...] = ()

    def wording(self) -> str:
        """Describe on one line what happened, and why if defaults changed."""
        numbers = f"{self.before} to {self.after}" if self.before else ""
        parts = (str(self.verdict), numbers, self.change, self.reason, *self.causes)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows of judged clauses; ``changes`` are other changed metrics by point.

    ``causes`` are the defaults that changed since the baseline was stored, at some point.
    """

    basis: str
    points: int
    rows: tuple[Row, ...]
    changes: Mapping[str, tuple[Change, ...]]
    causes: tuple[str, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """Return the number of rows with this verdict."""
        return sum(row.verdict == verdict for row in self.rows)

    def with_errors(self, errors: Mapping[str, str]) -> Outcome:
        """Return the outcome with a row for each point whose run failed, by name."""
        rows = [Row(name, RUN, Verdict.ERROR, reason=text) for name, text in errors.items()]
        return replace(self, points=self.points + len(errors), rows=(*rows, *self.rows))

    def summary(self) -> str:
        """Return one line with the numbers of points, checks and verdicts of each kind."""
        shown = [one for one in Verdict if one is not Verdict.ERROR or self.count(one)]
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in shown)
        return f"{counted(self.points, 'point')}, {counted(len(self.rows), 'check')}: {counts}"


NOTHING = Outcome("nothing was judged", 0, (), {})


def counted(number: int, noun: str) -> str:
    """``1 point``, ``2 points``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def judge(pairs: Sequence[PairedPoint], texts: Sequence[str], *, alpha: float) -> Outcome:
    """Judge clauses at every point; repeated runs at level ``alpha``.

    A clause is judged over all seeds of an experiment together. Without clauses, simulated points
    must not differ at all. Raises UsageError for a wrong clause, and if there is none although real
    runs always differ.
    """
    if not texts and not all(pair.simulated for pair in pairs):
        raise UsageError(
            "--fail-if is missing: only simulated runs give the same results each time, so "
            "other runs need a limit for each metric"
        )
    summaries = [summary for pair in pairs for summary in (*pair.before, *pair.after)]
    known = {key for summary in summaries for key in values_of(summary)}
    clauses = [parse_clause(text, known) for text in texts]
    named = {clause.metric for clause in clauses}
    rows: list[Row] = []
    unnamed: dict[str, tuple[Change, ...]] = {}
    for pair in pairs:
        found = changes(pair.before[0], pair.after[0]) if pair.simulated else ()
        if not clauses:
            rows.append(_unchanged(pair, found))
        if rest := tuple(one for one in found if one.metric not in named):
            unnamed[pair.name] = rest
    rows += [_row(clause, pair, alpha) for pair in over_seeds(pairs) for clause in clauses]
    bases = dict.fromkeys(map(basis, summaries))
    causes = tuple(dict.fromkeys(cause for pair in pairs for cause in pair.causes))
    return Outcome("; ".join(bases), len(pairs), tuple(rows), unnamed, causes)


def _row(clause: Clause, pair: PairedPoint, alpha: float) -> Row:
    before = [values_of(summary).get(clause.metric, ABSENT) for summary in pair.before]
    after = [values_of(summary).get(clause.metric, ABSENT) for summary in pair.after]
    known = metric_of(clause.metric)
    unit = f" {known.unit}" if known and known.unit else ""
    if pair.simulated:
        verdict, reason = judge_exact(clause, before[0], after[0])
        if verdict is Verdict.FAIL and not reason:
            reason = f"{'at least' if clause.more_is_better else 'at most'} "
            reason += f"{_limit_text(clause, before[0])}{unit} is allowed"
        one, other = short_texts(before[0], after[0])
        texts = one + unit, other + unit
    else:
        seeds = _seeds(pair.before), _seeds(pair.after)
        if len(set(seeds[0]) & set(seeds[1])) > 1:
            paired = _by_seed(before, seeds[0]), _by_seed(after, seeds[1])
            verdict, reason = judge_paired(clause, *paired, alpha)
        else:
            verdict, reason = judge_repeated(clause, before, after, alpha)
        texts = _mean_text(before, unit), _mean_text(after, unit)
    old, new = _mean(before), _mean(after)
    change = "" if old is None or new is None else relative_difference(old, new)
    return Row(pair.name, clause.text, verdict, *texts, change, reason, pair.causes)


def _seeds(summaries: Sequence[Summary]) -> list[int]:
    return [int(summary["seed"]) for summary in summaries]


def _by_seed(values: Sequence[Value], seeds: Sequence[int]) -> list[Value]:
    """Return a value per seed, in order of seeds: the mean of its repeats, or undefined."""
    found: list[Value] = []
    for seed in sorted(set(seeds)):
        own = [value for value, at in zip(values, seeds, strict=True) if at == seed]
        undefined = [value for value in own if value.raw is None]
        found.append(undefined[0] if undefined else own[0] if len(own) == 1 else mean_value(own))
    return found


def _mean(values: Sequence[Value]) -> Fraction | None:
    numbers = [value.exact for value in values if value.is_number]
    return mean(numbers) if len(numbers) == len(values) else None


def _limit_text(clause: Clause, before: Value) -> str:
    limit = Value(float(clause.limit(before.exact)))
    return short_texts(limit, limit)[0]


def _mean_text(values: Sequence[Value], unit: str) -> str:
    average = _mean(values)
    bound = next((value.bound for value in values if value.bound), "")
    shown = "undefined" if average is None else f"{bound} {float(average):.6g}{unit}".strip()
    return f"{shown} (n = {len(values)})"


def _unchanged(pair: PairedPoint, found: Sequence[Change]) -> Row:
    if not found:
        return Row(pair.name, NO_CHANGE, Verdict.PASS)
    reason = f"{counted(len(found), 'value')} changed"
    return Row(pair.name, NO_CHANGE, Verdict.FAIL, reason=reason, causes=pair.causes)
