"""Test by hand, and by sampling, measures of a run of which only latencies are known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import ServiceWeights
from fairbench_studies.kit.trace import Trace, max_service_spread, throughput_tok_s, ttft_s

WEIGHTS = ServiceWeights()
NAN = float("nan")


def trace(*rows):
    """Return rows of client, prompt, output, arrival, TTFT and latency. None means refused."""
    columns = list(zip(*rows, strict=True))
    times = [np.array([NAN if x is None else x for x in column], float) for column in columns[3:]]
    return Trace(*(np.array(column, int) for column in columns[:3]), *times)


# Client 0 gets 100 tokens of service over [1, 3] and 60 over [4, 8]. Client 1 gets 80 over [2, 6].
SMALL = trace(
    (0, 40, 30, 0.5, 0.5, 2.5),
    (1, 20, 30, 1.0, 1.0, 5.0),
    (0, 20, 20, 3.5, 0.5, 4.5),
    (2, 99, 99, 8.0, None, None),
)


def test_rates_are_over_the_duration_of_the_run():
    assert SMALL.duration_s == 8 - 0.5
    assert throughput_tok_s(SMALL) == (70 + 50 + 40) / 7.5


def test_refused_requests_count_and_have_no_latency():
    assert SMALL.refused == 1
    assert SMALL.finished.tolist() == [True, True, True, False]
    assert ttft_s(SMALL, [0, 2], 50) == 0.5
    assert np.isnan(ttft_s(SMALL, [2], 50))


def test_ttft_of_several_clients_is_taken_together():
    assert ttft_s(SMALL, [0, 1], 50) == 0.5
    assert ttft_s(SMALL, [0, 1], 100) == 1.0


def test_the_spread_of_service_equals_a_hand_computation():
    """Client 2 gets none, so the spread is the largest sum so far: client 0's 160 at 8 s."""
    assert max_service_spread(SMALL, WEIGHTS) == pytest.approx(160)


def test_the_spread_between_two_clients_equals_a_hand_computation():
    two = trace(*[
        (0, 40, 30, 0.5, 0.5, 2.5),
        (1, 20, 30, 1.0, 1.0, 5.0),
        (0, 20, 20, 3.5, 0.5, 4.5),
    ])  # fmt: skip
    # Only events up to the last arrival at 3.5 count. At 3, client 0 has 100 and client 1 has 20.
    assert max_service_spread(two, WEIGHTS) == pytest.approx(100 - 20)


def test_service_at_one_instant_counts_fully():
    instant = trace((0, 10, 1, 0, 1, 1), (1, 1, 1, 5, 1, 2))
    assert max_service_spread(instant, WEIGHTS) == pytest.approx(12, rel=1e-4)


def test_a_run_without_served_requests():
    nothing = trace((0, 10, 1, 0, None, None), (1, 10, 1, 1, None, None))
    assert throughput_tok_s(nothing) == 0
    assert max_service_spread(nothing, WEIGHTS) == 0


ROWS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 50), st.integers(1, 50), st.integers(0, 20),
        st.integers(1, 9), st.integers(1, 9), st.booleans(),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(ROWS)
def test_the_spread_of_service_equals_sampling(rows):
    """All requests begin and end at whole seconds, at which the spread is largest."""
    run = trace(*(
        (c, p, o, at, None if no else wait, None if no else wait + rest)
        for c, p, o, at, wait, rest, no in rows
    ))  # fmt: skip
    largest = 0.0
    for time_s in range(max(row[3] for row in rows) + 1):
        service = {row[0]: 0.0 for row in rows}
        for client, prompt, output, at, wait, rest, refused in rows:
            part = min(1.0, max(0.0, (time_s - at - wait) / rest))
            service[client] += 0 if refused else (prompt + 2 * output) * part
        largest = max(largest, max(service.values()) - min(service.values()))
    assert max_service_spread(run, WEIGHTS) == pytest.approx(largest, abs=1e-6)
