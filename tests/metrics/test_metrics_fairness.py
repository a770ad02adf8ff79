import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.fairness import (
    all_active_window,
    entitlement_ratios,
    fair_shares,
    jain,
    max_min,
)
from fairbench.metrics.records import REFUSED, UNFINISHED, Client, Window
from tests.metrics.metrics_helpers import facts, log, programs, requests

amounts = st.floats(min_value=0, max_value=1e150, allow_subnormal=True)
tokens = st.lists(st.integers(0, 10**6), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("shares_", "expected"),
    [
        ([5, 5, 5], 1),
        ([7, 0, 0, 0], 1 / 4),
        ([1, 2, 3], 36 / (3 * 14)),  # (1+2+3)^2 / (3 * (1+4+9))
        # the 0.855 of [DLPM] §7.2 for 3 clients k:1:1
        ([2.23, 1, 1], 4.23**2 / (3 * (2.23**2 + 2))),
        ([5e-324, 5e-324], 1),  # squares that would underflow
        ([1e200, 1e200], 1),  # squares that would overflow
    ],
)
def test_jain_equals_hand_computed_values(shares_, expected):
    assert jain(shares_) == pytest.approx(expected, rel=1e-12)


def test_jain_of_the_example_in_the_paper_is_0_855():
    assert round(jain([2.23, 1, 1]), 3) == 0.855


@pytest.mark.parametrize("undefined", [[], [0, 0]])
def test_jain_without_clients_is_undefined_and_not_perfect(undefined):
    assert math.isnan(jain(undefined))


@given(st.lists(amounts, min_size=1, max_size=8).filter(any))
def test_jain_lies_between_one_nth_and_one(x):
    assert 1 / len(x) - 1e-12 <= jain(x) <= 1 + 1e-12


@given(tokens.filter(any), st.sampled_from([1e-9, 0.3, 7.0, 1e12]))
def test_jain_does_not_depend_on_the_scale(x, factor):
    assert jain([factor * value for value in x]) == pytest.approx(jain(x))


@pytest.mark.parametrize(
    ("capacity", "demands", "expected"),
    [
        (10, [2, 8, 10], [2, 4, 4]),  # 10/3 > 2: keep 2; (10-2)/2 = 4 each
        (12, [2, 4, 10], [2, 4, 6]),  # 2 and 4 are met, 12-6 = 6 remain
        (9, [3, 3, 3], [3, 3, 3]),
        (6, [3, 3, 3], [2, 2, 2]),
        (100, [1, 0, 2], [1, 0, 2]),  # capacity is left over
        (0, [1, 2], [0, 0]),
        (5, [], []),
    ],
)
def test_max_min_shares_equal_hand_computed_values(capacity, demands, expected):
    assert max_min(capacity, demands).tolist() == expected


@given(st.integers(0, 10**7), tokens)
def test_max_min_is_the_max_min_allocation(capacity, demands):
    given_ = max_min(capacity, demands)
    demanded = np.array(demands)
    assert given_.sum() == pytest.approx(min(capacity, demanded.sum()))
    assert np.all(given_ <= demanded)
    assert np.all(given_ >= 0)
    unmet = given_ < demanded
    # all clients that want more have equal amounts, and no client has more than these
    if unmet.any():
        assert len(set(given_[unmet].tolist())) == 1
        assert given_.max() <= given_[unmet].max() * (1 + 1e-12)


def test_a_client_entitled_to_nothing_has_no_ratio():
    ratios = entitlement_ratios(np.array([0.0, 3.0]), np.array([0.0, 4.0]))
    assert math.isnan(ratios[0])
    assert ratios[1] == 0.75


def computed(tokens):
    return {"extend_charged_tokens": tokens, "extend_tokens": tokens}


def test_shares_of_a_small_run():
    """The due amount is the service plus the shortage at the end. The window is [10, 20)."""
    never = {"status": UNFINISHED, "arrival_s": 9.0}
    asked = requests(
        {"program_id": 0, "client": 0, "input_tokens": 870, **never},
        {"program_id": 1, "client": 1, "input_tokens": 40, "max_new_tokens": 5, **never},
        {"program_id": 2, "client": 2, "input_tokens": 20, **never},
        {"program_id": 3, "client": 2, "input_tokens": 999, **never, "arrival_s": 20.0},
    )
    table = programs(
        {"client": 0, "demand_input_tokens": 870, "status": UNFINISHED},
        {
            "program_id": 1,
            "client": 1,
            "demand_input_tokens": 40,
            "demand_output_tokens": 5,
            "status": UNFINISHED,
        },
        {"program_id": 2, "client": 2, "demand_input_tokens": 20, "status": UNFINISHED},
        {"program_id": 3, "client": 2, "demand_input_tokens": 999, "status": UNFINISHED},
    )
    served = log(
        {"client": 1, "start_s": 0, "end_s": 1, "input_tokens": 20},  # before the window
        {"client": 0, "start_s": 10, "end_s": 11, "input_tokens": 130, **computed(13)},
        {"client": 1, "start_s": 11, "end_s": 12, "input_tokens": 10, "output_tokens": 5},
        {"client": 2, "start_s": 12, "end_s": 13, "input_tokens": 40, **computed(40)},
    )
    got = fair_shares(asked, table, served, facts(clients=3), Window(10, 20))
    assert got.service.tolist() == [130, 10 + 2 * 5, 40]  # 190 tokens in all
    assert got.actual.tolist() == [13, 10, 40]
    assert got.demand.tolist() == [130 + 870, 20 + 40 + 2 * 5, 40 + 20]
    # 190 over (1000, 70, 60): 63.3 > 60, then 130 / 2 = 65 < 70 for the other two
    assert got.entitlement.tolist() == [65, 65, 60]
    assert got.ratio.tolist() == pytest.approx([2, 20 / 65, 40 / 60])
    assert len(got.entitled_ratios) == 3


def test_a_client_without_demand_is_not_among_the_entitled():
    asked = requests({"input_tokens": 10, "admitted_s": 4.0, "status": UNFINISHED})
    table = programs({"client": 0, "demand_input_tokens": 10, "status": UNFINISHED})
    served = log({"client": 0, "start_s": 4, "end_s": 6, "input_tokens": 10})
    got = fair_shares(asked, table, served, facts(clients=2), Window(0, 5))
    assert got.entitled_ratios.tolist() == [1]


ACTIVE = (
    {"client": 0, "arrival_s": 5, "finish_s": 50},
    {"client": 0, "arrival_s": 1, "finish_s": 20},
    {"client": 1, "arrival_s": 7, "finish_s": 9},
    {"client": 1, "arrival_s": 8, "finish_s": 40},
)


def test_all_are_active_from_the_last_first_arrival_to_the_first_last_completion():
    # first arrivals 1 and 7, last completions 50 and 40
    assert all_active_window(programs(*ACTIVE), facts()) == Window(7, 40)


def test_unfinished_work_keeps_a_client_active_to_the_end():
    table = programs(*ACTIVE, {"client": 1, "arrival_s": 9, "status": UNFINISHED})
    assert all_active_window(table, facts(horizon_s=60.0)) == Window(7, 50)


@pytest.mark.parametrize(
    "other",
    [
        {"client": 0},  # client 1 sent no request
        {"client": 1, "arrival_s": 7, "status": REFUSED},  # none of its requests ended
        {"client": 1, "arrival_s": 50, "finish_s": 60},  # arrived after client 0 had left
    ],
)
def test_there_may_be_no_time_in_which_all_are_active(other):
    assert all_active_window(programs(*ACTIVE[:2], other), facts()) is None


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "expected"),
    [
        (12, [99, 99, 99], [1, 2, 3], [2, 4, 6]),
        # level 3: c gets its 2, and 10 are divided 2 to 1
        (12, [99, 99, 2], [2, 1, 1], [20 / 3, 10 / 3, 2]),
        (12, [3, 99, 99], [2, 1, 1], [3, 4.5, 4.5]),  # level 3: a gets 3 of its 6, and 9 remain
        (12, [6, 99, 99], [2, 1, 1], [6, 3, 3]),  # exactly its entitlement
        (50, [9, 5, 3], [2, 1, 1], [9, 5, 3]),  # capacity left over
    ],
)
def test_max_min_shares_by_weight_equal_hand_computed_values(capacity, demands, weights, expected):
    assert max_min(capacity, demands, weights).tolist() == pytest.approx(expected)


weighted = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), min_size=1, max_size=5)


def every_way(capacity, clients):
    """Return all max-min allocations of ``capacity``, found by exhaustive exact arithmetic.

    An allocation meets some demands, and gives all other clients the same level by weight. No met
    demand exceeds the level, and no unmet demand is below it.
    """
    found = set()
    for rest in itertools.product([0, 1], repeat=len(clients)):
        pairs = list(zip(clients, rest, strict=True))
        left = capacity - sum(demand for (demand, _), is_rest in pairs if not is_rest)
        claims = sum(weight * is_rest for (_, weight), is_rest in pairs)
        if left < 0 or (left > 0 and not claims):
            continue
        level = Fraction(left, claims) if claims else Fraction(capacity)
        if all((level * w <= d) if is_rest else (d <= level * w) for (d, w), is_rest in pairs):
            found.add(tuple(level * w if is_rest else d for (d, w), is_rest in pairs))
    return found


@given(st.integers(0, 200), weighted)
def test_the_max_min_allocation_by_weight_is_the_only_possible_one(capacity, clients):
    demands, weights = zip(*clients, strict=True)
    (expected,) = every_way(min(capacity, sum(demands)), clients)
    assert max_min(capacity, demands, weights).tolist() == pytest.approx(list(map(float, expected)))


@given(st.floats(0, 1e9), tokens)
def test_equal_weights_change_no_bit_of_the_result(capacity, demands):
    plain = max_min(capacity, demands).tolist()
    assert max_min(capacity, demands, np.ones(len(demands))).tolist() == plain
    twice = max_min(capacity, demands, np.full(len(demands), 2.0)).tolist()
    assert twice == pytest.approx(plain)


def test_shares_by_weight():
    of_each = [{"program_id": n, "client": n, "status": UNFINISHED} for n in (0, 1)]
    asked = requests(*(one | {"arrival_s": 0.5, "input_tokens": 1000} for one in of_each))
    table = programs(*(one | {"demand_input_tokens": 1000} for one in of_each))
    served = log(
        {"client": 0, "start_s": 1, "input_tokens": 120},
        {"client": 1, "start_s": 2, "input_tokens": 30},
    )
    known = facts(clients=2)
    known = replace(known, clients=(Client("a", False, 2.0), Client("b", False, 0.5)))
    got = fair_shares(asked, table, served, known, Window(0, 9))
    assert got.entitlement.tolist() == pytest.approx([120, 30])  # 150 divided 4 to 1
    assert got.ratio.tolist() == pytest.approx([1, 1])
