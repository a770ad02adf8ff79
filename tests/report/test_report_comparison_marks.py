"""Test the marks of the best and the worst of several values, some of which are bounds."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.catalogue import CATALOGUE, column_of
from fairbench.metrics.metric import Better, Display
from fairbench.report.comparison_table import BEST, NEITHER, WORST, cell_marks, marks_of
from fairbench.results.comparison import ComparedRun, SchedulerResults
from fairbench.results.summary import Value

SIGNS = {"lower_bound": ">", "upper_bound": "<"}


def metric(value, *bounds):
    """Return a value of one seed."""
    return {0: Value(value, *(SIGNS[bound] for bound in bounds))}


def over_seeds(*raw):
    return {seed: Value(one) for seed, one in enumerate(raw)}


@pytest.mark.parametrize(
    ("intervals", "marks"),
    [
        ([metric(1.0), metric(2.0), metric(3.0)], "* !"),
        ([metric(1.001), metric(1.002), metric(3.0)], "**!"),
        ([metric(1.001), metric(1.002)], "  "),
        ([metric(1.0)], " "),
        ([metric(None), metric(1.0), metric(3.0)], " *!"),
        ([{}, metric(1.0), metric(3.0)], " *!"),
        # The first value may be worse than all others, so neither the best nor the worst is known.
        ([metric(1.0, "lower_bound"), metric(2.0), metric(3.0)], "   "),
        ([metric(1.0), metric(8.0, "lower_bound"), metric(9.0, "lower_bound")], "*!!"),
        ([metric(1.0, "upper_bound"), metric(2.0)], "*!"),
        ([metric(2.0, "upper_bound"), metric(1.0)], "  "),
    ],
)
def test_the_best_and_worst_are_marked_where_less_is_better(intervals, marks):
    assert "".join(marks_of(intervals, Better.LESS)) == marks


def test_the_best_and_worst_are_marked_where_more_is_better():
    assert marks_of([metric(1.0), metric(2.0)], Better.MORE) == [WORST, BEST]


BOUNDS = st.sampled_from(["", "lower_bound", "upper_bound"])


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), BOUNDS), min_size=1, max_size=4))
def test_only_significant_differences_are_marked(values):
    marks = marks_of(
        [metric(mean, *([kind] if kind else [])) for mean, kind in values], Better.LESS
    )
    # Every possible order of the unknown values is tried.
    outcomes = list(
        product(
            *({"": [v], "lower_bound": [v, v + 9], "upper_bound": [v, 0.0]}[k] for v, k in values)
        )
    )
    for row, mark in enumerate(marks):
        if mark == BEST:
            assert all(outcome[row] == min(outcome) for outcome in outcomes)
            assert any(max(outcome) > min(outcome) for outcome in outcomes)
        elif mark == WORST:
            # The worst value is at least as high as all values that are not lower bounds.
            limited = [other for other, (_, kind) in enumerate(values) if kind != "lower_bound"]
            assert all(outcome[row] >= outcome[other] for outcome in outcomes for other in limited)
    if all(kind == "" for _, kind in values) and len({mean for mean, _ in values}) > 1:
        assert {BEST, WORST} <= set(marks)


def test_metrics_without_a_direction_are_not_marked():
    assert marks_of([metric(1.0), metric(None), metric(2.0)], Better.NEITHER) == [NEITHER] * 3


LOADS = (10.0, 20.0, 30.0)  # values of three seeds, far apart


def shifted(by, noise=(0.0, 0.1, -0.1)):
    return over_seeds(*(load + by + one for load, one in zip(LOADS, noise, strict=True)))


def test_with_several_seeds_marks_need_significant_paired_differences():
    # Each interval is 50 wide, so only pairs can tell the values apart.
    assert marks_of([shifted(0), shifted(2), shifted(5)], Better.LESS) == [BEST, NEITHER, WORST]
    noisy = shifted(1, (2.0, -3.0, 1.0))
    assert marks_of([shifted(0), noisy, shifted(5)], Better.LESS) == [NEITHER] * 3
    assert marks_of([shifted(0), noisy, shifted(50)], Better.LESS)[2] == WORST


def test_with_several_seeds_equal_printed_values_are_marked_alike():
    assert marks_of([shifted(0), shifted(1e-6), shifted(5)], Better.LESS) == [BEST, BEST, WORST]
    assert marks_of([shifted(0), shifted(1e-6)], Better.LESS) == [NEITHER] * 2


def test_a_seed_without_a_value_leaves_no_mark():
    lacking = shifted(0) | {1: Value(None)}
    assert marks_of([lacking, shifted(50)], Better.LESS) == [NEITHER] * 2
    fewer = {0: Value(1.0)}  # only one seed in common
    assert marks_of([fewer, shifted(50)], Better.LESS) == [NEITHER] * 2
    assert marks_of([fewer, {0: Value(9.0)}, shifted(50)], Better.LESS) == [NEITHER] * 3


def test_lower_bounds_above_all_others_are_worst_together():
    censored = {seed: Value(load + 50.0, ">") for seed, load in enumerate(LOADS)}
    assert marks_of([shifted(0), censored, censored], Better.LESS) == [BEST, WORST, WORST]


@pytest.mark.parametrize(
    ("key", "marks"),
    [
        ("service_rate_tok_s", ["*", "!"]),
        ("jain_index_entitlement", ["*", "!"]),
        ("victim_p95_s", ["!", "*"]),
        *((key, ["", ""]) for key, one in CATALOGUE.items() if not one.verdict),
    ],
)
def test_a_metric_that_is_only_more_or_less_has_no_best_value(key, marks):
    def cell(*values):
        runs = [
            ComparedRun(None, {}, {"seed": seed, key: value, "censored": [], "notes": {}})
            for seed, value in enumerate(values)
        ]
        return SchedulerResults("place", "scheduler", tuple(runs))

    found = cell_marks(
        [cell(0.9, 0.91, 0.92), cell(0.4, 0.41, 0.42)], [column_of(key, Display.COMPARISON)]
    )
    assert [mark.strip() for (mark,) in found] == marks
