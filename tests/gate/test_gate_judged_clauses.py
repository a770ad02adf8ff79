"""Test the verdict on a clause, for one run against one and for several against several."""

from itertools import combinations
from random import Random

import pytest

from fairbench.errors import DataError
from fairbench.results.summary import Value
from fairbench_gate.clauses import (
    Verdict,
    can_reject,
    judge_exact,
    judge_paired,
    judge_repeated,
    p_larger,
    parse_clause,
)

PASS, FAIL, INCONCLUSIVE, ERROR = Verdict
LESS = "victim_p99_s"
MORE = "jain_index"


def value(raw):
    """``"> 3"`` is a lower bound."""
    if isinstance(raw, str):
        return Value(float(raw[2:]), raw[0])
    return Value(raw, reason="" if raw is not None else "nobody was served")


def exact(text, before, after):
    return judge_exact(parse_clause(text, {LESS, MORE}), value(before), value(after))


def repeated(text, before, after, alpha=0.05):
    clause = parse_clause(text, {LESS, MORE})
    return judge_repeated(clause, list(map(value, before)), list(map(value, after)), alpha)


def paired(text, before, after, alpha=0.05):
    clause = parse_clause(text, {LESS, MORE})
    return judge_paired(clause, list(map(value, before)), list(map(value, after)), alpha)


@pytest.mark.parametrize(
    ("text", "before", "after", "verdict"),
    [
        (f"{LESS}:+10%", 1.0, 1.1, PASS),  # exactly at the limit
        (f"{LESS}:+10%", 1.0, 1.1000000000000003, FAIL),
        (f"{LESS}:+10%", 1.0, 0.1, PASS),
        (f"{LESS}:+0%", 0.1, 0.1, PASS),
        (f"{LESS}:+0%", 0.1, 0.10000000000000002, FAIL),
        (f"{LESS}:+0%", 0.0, 1e-9, FAIL),
        (f"{MORE}:-0.02", 0.9, 0.88, PASS),
        (f"{MORE}:-0.02", 0.9, 0.8799999999999999, FAIL),
        (f"{MORE}:-0.02", 0.9, 1.0, PASS),
        (f"{MORE}:-50%", 4, 2, PASS),
    ],
)
def test_a_clause_fails_when_strictly_worse_than_its_limit(text, before, after, verdict):
    assert exact(text, before, after) == (verdict, "")


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (10.0, "> 11", FAIL),  # the limit is 11, and the value is above it
        (10.0, "> 10.9", INCONCLUSIVE),
        ("> 10", 11.0, PASS),
        ("> 10", 11.1, INCONCLUSIVE),
        ("> 10", "> 10", PASS),  # the same simulation repeated
        ("> 10", "> 90", INCONCLUSIVE),
        ("< 10", 11.0, FAIL),  # the limit is below 11
        ("< 10", 10.9, INCONCLUSIVE),
        (10.0, "< 11", PASS),
        (10.0, "< 11.1", INCONCLUSIVE),
        ("< 10", "> 11", FAIL),
    ],
)
def test_a_bound_decides_a_clause_if_it_can(before, after, verdict):
    assert exact(f"{LESS}:+10%", before, after).verdict is verdict


def test_a_bound_on_a_metric_that_should_be_high_is_reversed():
    assert exact(f"{MORE}:-0.1", 0.5, "> 0.4").verdict is PASS
    assert exact(f"{MORE}:-0.1", 0.5, "> 0.3").verdict is INCONCLUSIVE
    assert exact(f"{MORE}:-0.1", 0.5, "< 0.4").verdict is FAIL


def test_a_number_and_null_cannot_be_compared():
    assert exact(f"{MORE}:-1", 0.5, None) == (FAIL, "undefined now: nobody was served")
    assert exact(f"{MORE}:-1", None, 0.5) == (FAIL, "undefined in the baseline: nobody was served")
    assert exact(f"{MORE}:-1", None, None) == (PASS, "undefined in both")
    assert repeated(f"{MORE}:-1", [None] * 3, [None] * 3) == (PASS, "undefined in both")
    assert repeated(f"{MORE}:-1", [0.5] * 3, [0.5, None, 0.5]).verdict is FAIL


def test_seeds_without_a_value_in_both_runs_do_not_count():
    """In a short run, the worst minute is undefined for seeds in which no client waited."""
    assert paired(f"{MORE}:-5%", [None, 1.0, None], [None, 1.0, None]) == (PASS, "")
    assert paired(f"{MORE}:-5%", [None, 1.0, None], [None, 0.9, None]).verdict is FAIL
    assert paired(f"{MORE}:-5%", [None, 1.0, 0.8], [None, 1.0, 0.8]).verdict is PASS
    assert paired(f"{MORE}:-5%", [None] * 3, [None] * 3) == (PASS, "undefined in both")
    assert paired(f"{MORE}:-5%", [None, 1.0, 0.8], [None, 1.0, None]).verdict is FAIL
    assert paired(f"{MORE}:-5%", [None, 1.0, 0.8], [0.7, 1.0, 0.8]).verdict is FAIL


def test_text_where_a_number_should_be_is_an_error():
    with pytest.raises(DataError, match="'0,5' in a summary: must be a number"):
        judge_exact(parse_clause(f"{MORE}:-1", {MORE}), Value("0,5"), Value(0.5))


def test_measured_runs_fail_when_they_rank_worse_than_allowed():
    before = [10.0, 10.2, 9.8]
    assert repeated(f"{LESS}:+10%", before, [12.0, 12.5, 11.9]) == (FAIL, "p = 0.05")
    assert repeated(f"{LESS}:+30%", before, [12.0, 12.5, 11.9]) == (PASS, "p = 1")
    overlapping = repeated(f"{LESS}:+10%", before, [12.0, 10.9, 11.9])
    assert overlapping == (INCONCLUSIVE, "p = 0.2 (worse), 0.9 (no worse)")
    assert repeated(f"{MORE}:-0.02", [0.9, 0.91, 0.92], [0.85, 0.86, 0.87]).verdict is FAIL
    assert repeated(f"{MORE}:-0.02", [0.85, 0.86, 0.87], [0.9, 0.91, 0.92]).verdict is PASS


def test_measured_runs_pass_without_significance_only_below_the_best_limit():
    before = [10.0, 20.0, 30.0]
    assert repeated(f"{LESS}:+10%", before, [11.0, 10.9, 11.0]).verdict is PASS
    assert repeated(f"{LESS}:+10%", before, [11.0, 10.9, 11.1]).verdict is INCONCLUSIVE
    assert repeated(f"{LESS}:+10%", before, [12.0, 21.0, 32.0]).verdict is INCONCLUSIVE


def test_equal_measured_runs_pass():
    assert repeated(f"{LESS}:+0%", [3.0] * 4, [3.0] * 4) == (PASS, "p = 1")


def test_too_few_measured_runs_are_inconclusive_at_any_difference():
    verdict, reason = repeated(f"{LESS}:+0%", [1.0, 1.0], [9.0, 9.0, 9.0])
    assert (verdict, reason) == (INCONCLUSIVE, "2 and 3 runs are too few for a test at 0.05")
    assert repeated(f"{LESS}:+0%", [1.0, 1.0], [9.0, 9.0, 9.0], alpha=0.1).verdict is FAIL


def test_with_several_seeds_a_clause_is_judged_by_paired_changes():
    # Loads differ tenfold. The change is about 20% under each load.
    before, after = [1.0, 4.0, 10.0], [1.21, 4.76, 12.0]
    verdict, reason = paired(f"{LESS}:+10%", before, after)
    assert verdict is FAIL
    # Changes of 21, 19 and 20% are on average 10% beyond the limit. The half width is 2.91999 x 1 /
    # sqrt(3).
    assert reason == "+10% [+8.31%, +11.7%] from the limit, paired over 3 seeds"
    assert paired(f"{LESS}:+30%", before, after).verdict is PASS
    verdict, reason = paired(f"{LESS}:+20%", before, after)
    assert verdict is INCONCLUSIVE
    assert " [-1.69%, +1.69%] from the limit" in reason
    assert paired(f"{LESS}:+18.5%", before, after) == (
        INCONCLUSIVE,
        "+1.5% [-0.186%, +3.19%] from the limit, paired over 3 seeds; about 2 more seeds would "
        "decide",
    )


def test_with_several_seeds_equal_runs_pass_under_any_load():
    assert paired(f"{LESS}:+0%", [1.0, 50.0], [1.0, 50.0]) == (PASS, "")
    assert paired(f"{LESS}:+1%", [1.0, 50.0], [1.0, 50.0]).verdict is PASS
    assert paired(f"{MORE}:-0", [0.1, 0.9], [0.1, 0.9]) == (PASS, "")
    assert paired(f"{LESS}:+10%", [0.0, 50.0, 1.0], [0.0, 50.0, 1.0]).verdict is not FAIL


def test_with_several_seeds_more_can_be_better():
    assert paired(f"{MORE}:-0.02", [0.9, 0.8, 0.7], [0.85, 0.74, 0.65]).verdict is FAIL
    assert paired(f"{MORE}:-0.02", [0.9, 0.8, 0.7], [0.91, 0.80, 0.71]).verdict is PASS


def test_with_several_seeds_a_bound_decides_if_it_can():
    assert paired(f"{LESS}:+10%", [10.0, 11.0], ["> 100", "> 110"]).verdict is FAIL
    assert paired(f"{LESS}:+10%", ["> 100", "> 110"], [10.0, 11.0]).verdict is PASS
    both = paired(f"{LESS}:+10%", ["> 10", "> 11"], ["> 10", "> 11"])
    assert both == (INCONCLUSIVE, "only bounds are known")
    assert paired(f"{LESS}:+10%", [10.0, 11.0], [10.0, None]).verdict is FAIL


def test_a_bound_has_no_rank():
    assert repeated(f"{LESS}:+0%", [1.0, 1.0, 1.0], [9.0, 9.0, "> 9"]).verdict is INCONCLUSIVE


def brute_force(first, second):
    """Return the share of all splits whose second part ranks at least as high as observed."""
    pooled = [*first, *second]

    def rank_sum(chosen):
        return sum(
            sum(other < pooled[i] for other in pooled)
            + sum(other == pooled[i] for other in pooled) / 2
            for i in chosen
        )

    splits = list(combinations(range(len(pooled)), len(second)))
    observed = rank_sum(range(len(first), len(pooled)))
    return sum(rank_sum(chosen) >= observed for chosen in splits) / len(splits)


def test_the_rank_test_equals_counting_every_split():
    random = Random(1)
    for _ in range(60):
        first, second = (
            [random.randrange(5) for _ in range(random.randint(1, 5))] for _ in range(2)
        )  # few distinct values, so that many tie
        assert p_larger(first, second) == pytest.approx(brute_force(first, second))


def test_the_rank_test_gives_the_published_result_of_its_example():
    # permeability of membranes at term and earlier, p = 0.1272: Hollander and Wolfe (1973), p. 69
    term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46]
    earlier = [1.15, 0.88, 0.90, 0.74, 1.21]
    assert p_larger(earlier, term) == pytest.approx(0.1272, abs=5e-5)


def test_a_test_without_power_is_reported_as_such():
    assert can_reject(3, 3, 0.05)  # one of 20 splits
    assert not can_reject(3, 3, 0.049)
    assert not can_reject(2, 3, 0.05)
