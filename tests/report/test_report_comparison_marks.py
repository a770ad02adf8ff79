"""The best and the worst of several values, of which some are bounds."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.metric import Better
from fairbench.report.marks import BEST, NEITHER, WORST, marks_of


def metric(mean, *bounds):
    return {"mean": mean, **dict.fromkeys(bounds, True)}


@pytest.mark.parametrize(
    ("intervals", "marks"),
    [
        ([metric(1.0), metric(2.0), metric(3.0)], "* !"),
        ([metric(1.001), metric(1.002), metric(3.0)], "**!"),
        ([metric(1.001), metric(1.002)], "  "),
        ([metric(1.0)], " "),
        ([None, metric(1.0), metric(3.0)], " *!"),
        # The first may be worse than all: neither the best nor the worst is known.
        ([metric(1.0, "lower_bound"), metric(2.0), metric(3.0)], "   "),
        ([metric(1.0), metric(8.0, "lower_bound"), metric(9.0, "lower_bound")], "*!!"),
        ([metric(1.0, "upper_bound"), metric(2.0)], "*!"),
        ([metric(2.0, "upper_bound"), metric(1.0)], "  "),
    ],
)
def test_marks_of_less_is_better(intervals, marks):
    assert "".join(marks_of(intervals, Better.LESS)) == marks


def test_marks_of_more_is_better():
    assert marks_of([metric(1.0), metric(2.0)], Better.MORE) == [WORST, BEST]


BOUNDS = st.sampled_from(["", "lower_bound", "upper_bound"])


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), BOUNDS), min_size=1, max_size=4))
def test_marks_are_only_what_is_certain(values):
    marks = marks_of(
        [metric(mean, *([kind] if kind else [])) for mean, kind in values], Better.LESS
    )
    # Every way in which the unknown values may turn out.
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
            # Worse than all that is not, like itself, without a limit.
            limited = [other for other, (_, kind) in enumerate(values) if kind != "lower_bound"]
            assert all(outcome[row] >= outcome[other] for outcome in outcomes for other in limited)
    if all(kind == "" for _, kind in values) and len({mean for mean, _ in values}) > 1:
        assert {BEST, WORST} <= set(marks)


def test_of_what_is_neither_better_nor_worse_nothing_is_marked():
    assert marks_of([metric(1.0), None, metric(2.0)], Better.NEITHER) == [NEITHER] * 3
