"""Test that the search gives the answer of trying every size, and reports non-monotone results."""

from itertools import product

import pytest

from fairbench_logs.planning.search import (
    SmallestSize,
    _cheaper,
    bisected,
    every_size,
    is_monotone,
    largest,
)


def searched(search, enough):
    """Return the result of a search and the order of the sizes that it tried."""
    asked, wanted = [], next(search)
    while True:
        assert wanted, "who asks for nothing is never told anything"
        asked += wanted
        try:
            wanted = search.send({one: enough(one) for one in wanted})
        except StopIteration as end:
            return end.value, asked


@pytest.mark.parametrize("low", [1, 3])
@pytest.mark.parametrize("step", range(1, 21))
def test_halving_finds_the_threshold_anywhere(low, step):
    found, asked = searched(bisected(low, low + 17), lambda one: one >= low + step - 1)
    assert found.smallest == (low + step - 1 if step <= 18 else None)
    assert found.monotone
    assert len(asked) == len(set(asked)) <= 9
    assert set(asked) <= set(range(low, low + 18))


@pytest.mark.parametrize("pattern", list(product([False, True], repeat=6)))
def test_halves_stay_correct_although_the_search_sees_no_step_between_them(pattern):
    found, _ = searched(bisected(1, 6), lambda one: pattern[one - 1])
    true, _ = searched(every_size(1, 6), lambda one: pattern[one - 1])
    if not found.monotone or is_monotone(true.tried):
        assert found.smallest == true.smallest
    assert all(pattern[one - 1] is enough for one, enough in found.tried.items())


def test_the_neighbours_of_the_step_are_tried():
    found, _ = searched(bisected(1, 32), lambda one: one >= 11)
    assert {9, 10, 11, 12} <= set(found.tried)


def test_a_dip_beside_the_step_is_seen_and_everything_below_is_tried():
    found, _ = searched(bisected(1, 16), lambda one: one >= 9 or one == 7)
    assert found.smallest == 7
    assert not found.monotone
    assert set(range(1, 10)) <= set(found.tried)


@pytest.mark.parametrize("smallest", [1, 2, 4, 8, 16])
def test_a_small_size_that_suffices_among_larger_ones_that_do_not_is_found(smallest):
    found, _ = searched(bisected(1, 32), lambda one: smallest <= one < 20)
    assert (found.smallest, found.monotone) == (smallest, False)
    none, asked = searched(bisected(1, 32), lambda one: False)
    assert (none.smallest, none.monotone, sorted(asked)) == (None, True, [1, 2, 4, 8, 16, 31, 32])


def test_a_range_with_a_single_number():
    assert searched(bisected(4, 4), lambda one: True) == (SmallestSize(4, True, {4: True}), [4])
    assert searched(bisected(4, 4), lambda one: False) == (
        SmallestSize(None, True, {4: False}),
        [4],
    )


@pytest.mark.parametrize("first", [1, 4, 7])
@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 6, 7, 9, 13, 14, 15, 31, 40, 99])
@pytest.mark.parametrize("least", [1, 3, 5])
def test_the_most_users_are_found_from_any_start(first, most, least):
    start = max(first, least)
    search = largest(start, 40, lambda one: one >= least)
    found, asked = searched(search, lambda one: one <= most)
    assert found.smallest == (min(most, 40) if most >= least else None)
    assert found.monotone
    assert len(asked) == len(set(asked)) <= 13
    assert all(least <= one <= 40 for one in asked)
    # this call shows that a larger number is too many
    assert most >= 40 or most < least or most + 1 in asked


def test_users_that_suffice_beyond_a_failure_are_reported_as_not_monotone():
    found, asked = searched(largest(4, 64, lambda one: True), lambda one: one in (4, 6))
    assert asked == [4, 8, 6, 7]
    assert (found.smallest, found.monotone) == (6, True)
    found, asked = searched(largest(8, 64, lambda one: True), lambda one: one in (2, 5, 6))
    assert asked == [8, 4, 2, 3]
    found, asked = searched(largest(4, 64, lambda one: True), lambda one: one in (4, 5, 7))
    assert asked == [4, 8, 6, 5, 7]
    assert (found.smallest, found.monotone) == (7, False)


def test_a_choice_is_cheaper_than_the_first_choice_with_the_same_load():
    keys = ("load", "gpus", "cost")
    rows = [
        {"replicas": 1, "timing_profile": "p", **dict(zip(keys, one, strict=True))}
        for one in ((1.0, 2, 4.0), (1.0, 1, 3.0), (2.0, 6, 12.0), (2.0, 4, 8.0), (2.0, 7, 14.0))
    ]
    # Rows 3 and 4 cost more than the first row, which has half of their load.
    assert _cheaper(rows) == [1, 3]
    rows[2]["replicas"] = rows[2]["gpus"] = rows[2]["cost"] = None
    assert _cheaper(rows) == [1, 4, 3]
