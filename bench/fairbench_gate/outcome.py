"""The outcome of a check: the verdicts on all experiments, and other changed metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import mean
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.metrics.catalogue import CLIENTS, metric_of
from fairbench.metrics.metric import Better
from fairbench.results.significance import mean_value
from fairbench.results.store import Summary
from fairbench.results.summary import ABSENT, Value, basis, values_of
from fairbench_gate.clauses import (
    Clause,
    Verdict,
    judge_exact,
    judge_paired,
    judge_repeated,
    parse_clause,
)
from fairbench_gate.points import PairedPoint, over_seeds

DIGITS = (3, 5, 8)
LARGE = 1000  # percentages from this value on are printed without decimal places
# Relative changes of a metric up to ``ROUNDING`` are ignored. Rounding errors change a metric by
# less than ``ROUNDING``, and different scheduling decisions change it by more.
ROUNDING = Fraction(1, 10**12)


class Change(NamedTuple):
    """A changed metric: its key, and its values before and after the change."""

    metric: str
    before: Value
    after: Value

    @property
    def texts(self) -> tuple[str, str]:
        """The baseline and the current value as short texts that differ from each other."""
        return short_texts(self.before, self.after)

    @property
    def difference(self) -> str:
        """The change in percent of the baseline, or in the metric's unit if the baseline is 0."""
        if not (self.before.is_number and self.after.is_number):
            return ""
        return relative_difference(self.before.exact, self.after.exact)

    @property
    def direction(self) -> str:
        """The direction of a metric's change: ``worse``, ``better``, or "" for neither."""
        metric = metric_of(self.metric)
        better = metric.better if metric else Better.NEITHER
        if better is Better.NEITHER or not (self.before.is_number and self.after.is_number):
            return ""
        grew = self.after.exact > self.before.exact
        return "better" if grew is (better is Better.MORE) else "worse"


def short_texts(before: Value, after: Value) -> tuple[str, str]:
    """Return two values with three digits, or with more digits if needed to distinguish them."""
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
    """Return the change from ``before`` to ``after`` in percent, such as ``+3.2%``.

    If ``before`` is 0, the result is ``after`` with its sign, not a percentage.
    """
    if before == 0:
        return _signed(float(after))
    return f"{_signed(float(100 * (after - before) / abs(before)))}%"


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= LARGE else f"{value:+.3g}"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Return the metrics whose values in two summaries differ by more than rounding."""
    old, new = values_of(before), values_of(after)
    pairs = [Change(key, old.get(key, ABSENT), new.get(key, ABSENT)) for key in {**old, **new}]
    return tuple(pair for pair in pairs if _differ(pair.before, pair.after))


def of_the_cluster(found: Sequence[Change]) -> Sequence[Change]:
    """Return the changed cluster-wide metrics or, if none changed, the changed client metrics.

    If cluster-wide metrics changed, the numerous client metrics usually changed as a result.
    """
    return [one for one in found if not one.metric.startswith(CLIENTS)] or found


def _differ(before: Value, after: Value) -> bool:
    if before.bound != after.bound:
        return True
    if not (before.is_number and after.is_number):
        return bool(before.raw != after.raw)
    return abs(after.exact - before.exact) > ROUNDING * abs(before.exact)


RUN = "run"  # name that the table of checks shows for a failed run
NO_CHANGE = "no value may change"  # name of the check if the user sets no limits


@dataclass(frozen=True, slots=True)
class ClauseRow:
    """The result of checking one metric limit.

    ``causes`` names settings whose defaults differ between the two compared versions of fairbench.
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
        """Return the result in one line, with the changed defaults that may explain the result."""
        numbers = f"{self.before} to {self.after}" if self.before else ""
        parts = (str(self.verdict), numbers, self.change, self.reason, *self.causes)
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of all checks of metric limits, and each experiment's changes in other metrics.

    ``causes`` names default settings that changed after the baseline was stored.
    """

    basis: str
    points: int
    rows: tuple[ClauseRow, ...]
    changes: Mapping[str, tuple[Change, ...]]
    causes: tuple[str, ...] = ()

    def rows_with(self, verdict: Verdict) -> int:
        """Return the number of rows with the given verdict."""
        return sum(row.verdict == verdict for row in self.rows)

    def with_errors(self, errors: Mapping[str, str]) -> Outcome:
        """Return the outcome with one more row for each failed run (and its error message)."""
        rows = [ClauseRow(name, RUN, Verdict.ERROR, reason=text) for name, text in errors.items()]
        return replace(self, points=self.points + len(errors), rows=(*rows, *self.rows))

    def answer(self) -> str:
        """Return one line: whether the check passes, and which limits were exceeded."""
        texts = []
        for verdict, said in ANSWERS.items():
            names = dict.fromkeys(row.clause for row in self.rows if row.verdict is verdict)
            points = len({row.point for row in self.rows if row.verdict is verdict})
            if names:
                more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
                listed = ", ".join(list(names)[:MOST_NAMED])
                texts.append(f"{said} at {counted(points, 'point')}: {listed}{more}")
        passed = f"Passed: {counted(len(self.rows), 'check')} at {counted(self.points, 'point')}"
        return "; ".join(texts) or passed

    def summary(self) -> str:
        """Return one line that counts experiments, checks and verdicts."""
        shown = [one for one in Verdict if one is not Verdict.ERROR or self.rows_with(one)]
        counts = ", ".join(f"{self.rows_with(verdict)} {verdict}" for verdict in shown)
        return f"{counted(self.points, 'point')}, {counted(len(self.rows), 'check')}: {counts}"


MOST_NAMED = 4  # maximum number of exceeded limits that the verdict's sentence lists
ANSWERS = {
    Verdict.ERROR: "Not judged",
    Verdict.FAIL: "Failed",
    Verdict.INCONCLUSIVE: "Not decided",
}
NOTHING = Outcome("nothing was judged", 0, (), {})


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 point`` or ``2 points``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def judge(pairs: Sequence[PairedPoint], texts: Sequence[str], *, alpha: float) -> Outcome:
    """Check the metric limits of every experiment.

    ``alpha`` is the significance level of tests over several runs. A limit is checked once per
    experiment, over all seeds. If no limits are given, no metric of a simulated experiment may
    change. Raises UsageError for an invalid limit, and for measured runs without limits, because
    two measured runs always differ.
    """
    if not texts and not all(pair.simulated for pair in pairs):
        raise UsageError(
            "--fail-if is missing: runs on real servers need a limit for each metric, because "
            "only simulated runs give the same results each time"
        )
    summaries = [summary for pair in pairs for summary in (*pair.before, *pair.after)]
    known = {key for summary in summaries for key in values_of(summary)}
    clauses = [parse_clause(text, known) for text in texts]
    named = {clause.metric for clause in clauses}
    rows: list[ClauseRow] = []
    unnamed: dict[str, tuple[Change, ...]] = {}
    for pair in pairs:
        found = changes(pair.before[0], pair.after[0]) if pair.simulated else ()
        if not clauses:
            rows.append(_unchanged(pair, found))
        if rest := tuple(one for one in found if one.metric not in named):
            unnamed[pair.name] = rest
    rows += [_clause_row(clause, pair, alpha) for pair in over_seeds(pairs) for clause in clauses]
    bases = dict.fromkeys(map(basis, summaries))
    causes = tuple(dict.fromkeys(cause for pair in pairs for cause in pair.causes))
    return Outcome("; ".join(bases), len(pairs), tuple(rows), unnamed, causes)


def _clause_row(clause: Clause, pair: PairedPoint, alpha: float) -> ClauseRow:
    before = [values_of(summary).get(clause.metric, ABSENT) for summary in pair.before]
    after = [values_of(summary).get(clause.metric, ABSENT) for summary in pair.after]
    known = metric_of(clause.metric)
    unit = f" {known.unit}" if known and known.unit else ""
    if pair.simulated:
        verdict, reason = judge_exact(clause, before[0], after[0])
        if verdict is Verdict.FAIL and not reason:
            limit = _short(Value(float(clause.limit(before[0].exact))), DIGITS[0])
            side = "at least" if clause.more_is_better else "at most"
            reason = f"{side} {limit}{unit} is allowed"
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
    old, new = _mean_of_repeats(before), _mean_of_repeats(after)
    change = "" if old is None or new is None else relative_difference(old, new)
    return ClauseRow(pair.name, clause.text, verdict, *texts, change, reason, pair.causes)


def _seeds(summaries: Sequence[Summary]) -> list[int]:
    return [int(summary["seed"]) for summary in summaries]


def _by_seed(values: Sequence[Value], seeds: Sequence[int]) -> list[Value]:
    """Return the metric's mean over the repeats of each seed, in ascending order of the seeds.

    A seed's mean is undefined if the metric is undefined in any repeat.
    """
    found: list[Value] = []
    for seed in sorted(set(seeds)):
        own = [value for value, at in zip(values, seeds, strict=True) if at == seed]
        undefined = [value for value in own if value.raw is None]
        found.append(undefined[0] if undefined else own[0] if len(own) == 1 else mean_value(own))
    return found


def _mean_of_repeats(values: Sequence[Value]) -> Fraction | None:
    numbers = [value.exact for value in values if value.is_number]
    return mean(numbers) if len(numbers) == len(values) else None


def _mean_text(values: Sequence[Value], unit: str) -> str:
    average = _mean_of_repeats(values)
    bound = next((value.bound for value in values if value.bound), "")
    shown = "undefined" if average is None else f"{bound} {float(average):.6g}{unit}".strip()
    return f"{shown} (n = {len(values)})"


def _unchanged(pair: PairedPoint, found: Sequence[Change]) -> ClauseRow:
    if not found:
        return ClauseRow(pair.name, NO_CHANGE, Verdict.PASS)
    reason = f"{counted(len(found), 'value')} changed"
    return ClauseRow(pair.name, NO_CHANGE, Verdict.FAIL, reason=reason, causes=pair.causes)
