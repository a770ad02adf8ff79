import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbench.metrics.censored_latency import (
    Percentile,
    Ranked,
    Sample,
    mean_percentile,
    percentile,
    samples,
)
from fairbench.metrics.records import REFUSED, UNFINISHED, Window
from tests.metrics.metrics_helpers import NAN, facts, programs, requests


def sample(known=(), more_than=(), refused=0):
    return Sample(np.array(known, dtype=float), np.array(more_than, dtype=float), refused)


@pytest.mark.parametrize(
    ("made", "percent", "expected"),
    [
        (sample([4, 1, 2]), 50, (2, False)),
        (sample([10, 20]), 99, (19.9, False)),  # rank 0.99, between 10 and 20
        (sample([1, 2], [50]), 50, (2, False)),  # the third value is the largest in any case
        (sample([1, 2], [50]), 99, (2 + 0.98 * 48, True)),  # rank 1.98 of (1, 2, >50)
        (sample([1, 9], [2]), 50, (2, True)),  # in (2, 9]
        (sample([5], [5]), 0, (5, False)),  # the censored value is larger than 5
        (sample([5, 7], [5]), 50, (5, True)),  # (5, >5, 7)
        (sample([], [3, 4]), 50, (3.5, True)),
        (sample([1, 2], [], 1), 50, (2, False)),
        (sample([1, 2], [], 1), 99, (math.inf, False)),
        (sample([], [], 2), 50, (math.inf, False)),
        (sample([1], [6], 1), 50, (6, True)),
    ],
)
def test_percentiles_equal_hand_computed_values(made, percent, expected):
    value, censored = percentile(made, percent)
    assert value == pytest.approx(expected[0])
    assert censored is expected[1]


def test_the_percentiles_of_several_clients_do_not_mix_their_latencies():
    clients = [sample([1], [6], 1), sample(), sample([4, 1, 2]), sample([2], [], 2)]
    first, empty, third, last = Ranked(clients).percentiles(50)
    assert [first, third, last] == [(6, True), (2, False), (math.inf, False)]
    assert math.isnan(empty.value_s)


def test_a_percentile_that_may_equal_a_known_value_stays_just_below_it():
    # Sorted, the least possible values are 3, 5, 7. As > 3 may be anything, the median lies in [5,
    # 7].
    value, censored = percentile(sample([5, 7], [3]), 50)
    assert (value, censored) == (math.nextafter(5, 0), True)


def test_a_percentile_that_depends_on_a_lower_bound_is_a_lower_bound():
    # of 1 and > 6, the median is more than 3.5
    assert percentile(sample([1], [6]), 50) == (3.5, True)


def test_no_values_have_no_percentile():
    value, censored = percentile(sample(), 50)
    assert math.isnan(value)
    assert not censored


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.sampled_from([0, 1, 50, 95, 99, 100])
)
def test_uncensored_percentiles_are_those_of_numpy(known, percent):
    value, censored = percentile(sample(known), percent)
    assert value == pytest.approx(float(np.percentile(known, percent)), rel=1e-12)
    assert not censored


whole = st.integers(0, 6)


@settings(max_examples=100, deadline=None)  # ties are rare
@given(
    st.lists(whole, max_size=3),
    st.lists(whole, min_size=1, max_size=3),
    st.integers(0, 1),
    st.sampled_from([0, 25, 50, 75, 90, 99, 100]),
)
def test_a_censored_percentile_holds_for_every_possible_completion(
    known, more_than, refused, percent
):
    """A true latency may be just above its bound, equal to any other value, or infinite."""
    value, censored = percentile(sample(known, more_than, refused), percent)
    sizes = [size + shift for size in range(8) for shift in (1e-9, 0.5, 1.0)] + [1e9]
    futures = itertools.product(*([s for s in sizes if s > bound] for bound in more_than))
    fixed = [*known, *[math.inf] * refused]
    different = {tuple(sorted(late)) for late in futures}  # a percentile ignores the order
    outcomes = [
        one.value_s
        for one in Ranked([sample([*fixed, *late]) for late in different]).percentiles(percent)
    ]
    if censored:
        assert min(outcomes) > value
        assert min(outcomes) == pytest.approx(value, abs=1e-6)
        assert max(outcomes) > min(outcomes)
    else:
        assert set(outcomes) == {value}


def test_the_mean_of_percentiles_is_censored_or_undefined_like_one_of_them():
    assert mean_percentile([Percentile(2, False), Percentile(5, True)]) == (3.5, True)
    assert mean_percentile([Percentile(2, False), Percentile(4, False)]) == (3, False)
    assert math.isnan(mean_percentile([]).value_s)
    assert math.isnan(mean_percentile([Percentile(2, False), Percentile(NAN, False)]).value_s)


PROGRAMS = programs(
    {"program_id": 7, "client": 1, "arrival_s": 9, "finish_s": 11},  # before the window
    {"program_id": 3, "client": 1, "arrival_s": 10, "finish_s": 16},
    {"program_id": 5, "client": 1, "arrival_s": 12, "status": REFUSED},
    {
        "program_id": 4,
        "client": 1,
        "arrival_s": 15,
        "status": UNFINISHED,
        "requests": 3,
        "demand_requests": 5,
    },
    {"program_id": 6, "client": 0, "arrival_s": 15, "finish_s": 16},  # another client
    {"program_id": 8, "client": 1, "arrival_s": 20, "finish_s": 21},  # at the end of the window
)
REQUESTS = requests(
    {"program_id": 7, "client": 1, "arrival_s": 9, "first_token_s": 9.5},
    {"program_id": 3, "client": 1, "arrival_s": 10, "first_token_s": 11},
    {"program_id": 3, "client": 1, "arrival_s": 25, "first_token_s": 29},  # after the window
    {"program_id": 5, "client": 1, "arrival_s": 12, "status": REFUSED},
    {"program_id": 4, "client": 1, "arrival_s": 15, "first_token_s": 18, "status": UNFINISHED},
    {"program_id": 4, "client": 1, "arrival_s": 16, "status": UNFINISHED},
    {"program_id": 6, "client": 0, "arrival_s": 15, "first_token_s": 16},
)
FACTS = {"window": Window(10, 20), "horizon_s": 30.0}


def test_the_cohort_is_the_programs_of_clients_that_arrived_in_the_window():
    got = samples(REQUESTS, PROGRAMS, facts(**FACTS))[1]
    assert got.known_s.tolist() == [6]
    assert got.more_than_s.tolist() == [15]  # 30 - 15
    assert (got.refused, got.n) == (1, 3)


def test_ttft_counts_the_requests_of_those_programs_whether_sent_or_not():
    got = samples(REQUESTS, PROGRAMS, facts(**FACTS, latency="ttft"))[1]
    assert sorted(got.known_s.tolist()) == [1, 3, 4]  # an unfinished request may have a first token
    assert got.more_than_s.tolist() == [14, 0, 0]  # 30 - 16, and two that were never sent
    assert got.refused == 1
