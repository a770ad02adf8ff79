"""Test fairness over time by hand, by properties, and by a separate pass for each window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.metrics.contention import unqueued
from fairbench.metrics.due import shortfall, shortfalls
from fairbench.metrics.fairness import fair_shares, max_min, max_min_each
from fairbench.metrics.fairness_over_time import (
    backlogged_shares,
    least_by_client,
    timeline,
    worst_window,
)
from fairbench.metrics.records import FINISHED, REFUSED, UNFINISHED, Window
from fairbench.metrics.service import View, window_service
from tests.metrics.metrics_helpers import NAN, facts, log, programs, requests
from tests.strategies import examples

HORIZON_S = 100.0


def run_of(calls):
    """Return tables of a run whose calls are programs: (client, arrival, wait, input, output)."""
    rows, made, booked = [], [], []
    for number, (client, arrival_s, wait_s, size, output) in enumerate(calls):
        admitted_s = arrival_s + wait_s
        token_s = admitted_s + 0.5
        finish_s = token_s + 0.1 * (output - 1)
        never = admitted_s >= HORIZON_S
        cut = not never and finish_s > HORIZON_S
        produced = 0 if never else output
        if cut:
            produced = max(0, min(output, 1 + int((HORIZON_S - token_s) / 0.1)))
        done = not (never or cut)
        same = {"program_id": number, "client": client, "arrival_s": arrival_s}
        status = FINISHED if done else UNFINISHED
        rows.append(
            same
            | {
                "request_id": number,
                "admitted_s": NAN if never else admitted_s,
                "first_token_s": token_s if produced else NAN,
                "finish_s": finish_s if done else NAN,
                "input_tokens": size,
                "extend_tokens": 0 if never else size,
                "output_tokens": produced,
                "max_new_tokens": output,
                "status": status,
            }
        )
        made.append(
            same
            | {
                "finish_s": finish_s if done else NAN,
                "demand_input_tokens": size,
                "demand_output_tokens": output,
                "status": status,
            }
        )
        if not never:
            same = {"client": client, "start_s": admitted_s, "end_s": token_s}
            booked.append(same | {"input_tokens": size, "output_tokens": min(1, produced)})
        if produced > 1:
            same = {"client": client, "start_s": token_s, "steps": produced - 1}
            end_s = token_s + 0.1 * (produced - 1)
            booked.append(same | {"end_s": end_s, "output_tokens": produced - 1})
    booked.sort(key=lambda row: row["start_s"])
    return requests(*rows), programs(*made), log(*booked)


CALLS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.floats(0, 95),
        st.sampled_from([0.0, 0.0, 2.0, 17.0, 60.0]),
        st.integers(1, 500),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=25,
)


@examples(60)
@given(CALLS)
def test_the_shortfall_at_many_times_equals_a_computation_for_each_time(calls):
    asked, made, _ = run_of(calls)
    about = facts(clients=3)
    times = np.array([0.0, 3.3, 20.0, 51.7, 99.0, 100.0])
    found = shortfalls(asked, made, about, times).all
    expected = np.array([shortfall(asked, made, about, at_s) for at_s in times]).T
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-3)


def test_the_shortfall_counts_the_calls_that_a_program_never_made():
    like = {"input_tokens": 10, "output_tokens": 3, "max_new_tokens": 3}
    asked = requests(
        *(
            like
            | {"depth": depth, "arrival_s": at_s, "admitted_s": at_s}
            | {"first_token_s": at_s + 1, "finish_s": at_s + 3}
            for depth, at_s in enumerate((0.0, 20.0, 40.0))
        ),
        {"program_id": 1, "arrival_s": 5.0, "input_tokens": 10, "max_new_tokens": 3,
         "status": UNFINISHED},
    )  # fmt: skip
    made = programs(
        {"demand_requests": 3, "demand_input_tokens": 30, "demand_output_tokens": 9,
         "finish_s": 43.0},
        {"program_id": 1, "arrival_s": 5.0, "demand_requests": 3, "demand_input_tokens": 30,
         "demand_output_tokens": 9, "status": UNFINISHED},
    )  # fmt: skip
    times = np.array([1.0, 6.0, 7.0, 8.0, 30.0, 100.0])
    found = shortfalls(asked, made, facts(), times).all
    expected = np.array([shortfall(asked, made, facts(), at_s) for at_s in times]).T
    assert found == pytest.approx(expected)
    assert found[0, -1] > 16  # more than the only call that was made


@examples(25)
@given(CALLS)
def test_the_worst_window_is_found_as_by_trying_every_window(calls):
    asked, made, booked = run_of(calls)
    about, window = facts(clients=3), Window(0.0, 100.0)
    line = timeline(asked, made, booked, about, window)
    found = worst_window(line, 10.0, least_requests=0.0)
    least = []
    for first in range(91):
        part = Window(float(first), float(first + 10))
        got = window_service(booked, View.CLIENT, part, 3, about.weights)
        end_s = np.array([part.end_s])
        lacked = shortfalls(asked, made, about, end_s, unqueued).all[:, 0]
        due = max_min(float(got.sum()), got + lacked)
        waited = line.waited_s[:, first + 10] - line.waited_s[:, first]
        lasted = line.lasted_s[:, first + 10] - line.lasted_s[:, first]
        seconds = np.diff(line.waited_s[:, first : first + 11]) > 0
        held_up = (due > 1e-9) & (waited > 0.05 * lasted) & (seconds.sum(axis=1) >= 5)
        least += (got[held_up] / due[held_up]).tolist()
    assert (found is None) == (not least)
    if found:
        assert 0 <= found.share <= 1
        assert found.share == pytest.approx(min(1.0, min(least)), abs=1e-5)


@examples(60)
@given(CALLS)
def test_a_window_as_long_as_the_run_divides_all_the_service(calls):
    """Demand is due as fast as it was served; for the cumulative share, as fast as alone."""
    asked, made, booked = run_of(calls)
    about, window = facts(clients=3), Window(0.0, 100.0)
    line = timeline(asked, made, booked, about, window)
    service, entitlement, _ = line.window_shares(line.cells)
    cumulative = fair_shares(asked, made, booked, about, window)
    assert service[:, 0] == pytest.approx(cumulative.service, abs=1e-3)
    lacked = shortfalls(asked, made, about, np.array([100.0]), unqueued).all[:, 0]
    due = max_min(float(cumulative.service.sum()), cumulative.service + lacked)
    assert entitlement[:, 0] == pytest.approx(due, rel=1e-5, abs=1e-2)


@examples(60)
@given(CALLS)
def test_a_client_alone_is_at_100_percent_in_every_window(calls):
    asked, made, booked = run_of([(0, *rest) for _, *rest in calls])
    line = timeline(asked, made, booked, facts(clients=1), Window(0.0, 100.0))
    for length_s in (1.0, 10.0, 60.0, 100.0):
        found = worst_window(line, length_s, least_requests=0.0)
        assert found is None or found.share == pytest.approx(1)
    while_backlogged = backlogged_shares(line)
    assert np.isnan(while_backlogged[0]) or while_backlogged[0] == pytest.approx(1)


@given(
    st.lists(st.lists(st.integers(0, 1000), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 3000), min_size=6, max_size=6),
    st.sampled_from([(1.0, 1.0, 1.0), (1.0, 2.0, 5.0)]),
)
def test_every_column_is_its_own_max_min_allocation(columns, capacities, weights):
    demands = np.array(columns, dtype=np.float64).T
    capacity = np.array(capacities[: len(columns)], dtype=np.float64)
    found = max_min_each(capacity, demands, np.array(weights))
    for number, column in enumerate(demands.T):
        expected = max_min(float(capacity[number]), column, np.array(weights))
        assert found[:, number] == pytest.approx(expected, abs=1e-6)


def flood():
    """Return three clients under FCFS. The third sends 10 calls a second from 40 to 52 s.

    A call has 8 input tokens and 1 output token, is worth 10 tokens, and takes 0.2 s, so the server
    does 5 a second. Clients 0 and 1 each send a call a second, together 40% of that.
    """
    arrivals = [(float(second), client) for second in range(100) for client in (0, 1)]
    arrivals += [(40 + number / 10, 2) for number in range(120)]
    calls, free_s = [], 0.0
    for arrival_s, client in sorted(arrivals):
        start_s = max(free_s, arrival_s)
        calls.append((client, arrival_s, start_s - arrival_s, 8, 1))
        free_s = start_s + 0.2
    return calls


def test_a_flood_that_drains_shows_in_a_window_and_not_in_the_whole_run():
    """In 12 s, 144 calls arrive and 60 are served. Then 84 wait, and 2 a second still arrive.

    FCFS serves the queue at 3 a second until 80 s; at 100 s it is empty. Meanwhile, a well-behaved
    client gets a twelfth of the service: 0.417 calls a second instead of 1.
    """
    asked, made, booked = run_of(flood())
    about = facts(clients=3, misbehaving=2)
    whole = fair_shares(asked, made, booked, about, Window(0.0, 100.0))
    assert whole.ratio[:2] == pytest.approx(1, abs=0.01)
    line = timeline(asked, made, booked, about, Window(0.0, 100.0))
    found = worst_window(line, 10.0)
    assert found is not None
    assert found.client in (0, 1)
    assert found.heavy == 2
    assert 40 <= found.start_s <= 60
    # In order of arrival, a client gets 4.2 of 50 calls in ten seconds. A third, 16.7, is
    # due to it, and it asks at most for the calls not yet served: those 4.2 and the backlog.
    assert found.share == pytest.approx(4.2 / 16.7, abs=0.08)
    assert least_by_client(line, 10.0)[:2].min() == found.share
    assert backlogged_shares(line)[:2].max() < 0.8


def test_before_the_flood_every_window_is_fair():
    asked, made, booked = run_of(flood())
    line = timeline(asked, made, booked, facts(clients=3), Window(0.0, 30.0))
    found = worst_window(line, 10.0)
    assert found is None or found.share == pytest.approx(1)
    assert np.isnan(backlogged_shares(line)[2])


def test_a_refused_call_counts_in_the_window_in_which_it_was_refused():
    calls = [(1, float(second), 0.0, 8, 1) for second in range(100)]
    asked, made, booked = run_of(calls)
    turned_away = {"client": 0, "program_id": 1000, "arrival_s": 30.0, "status": REFUSED}
    columns = requests(turned_away | {"input_tokens": 50, "max_new_tokens": 1}).to_columns()
    more = {
        name: np.concatenate([column, columns[name]]) for name, column in asked.to_columns().items()
    }
    asked = type(asked).from_columns(more)
    line = timeline(asked, made, booked, facts(clients=2), Window(0.0, 100.0))
    _, entitlement, held_up = line.window_shares(10)
    assert np.flatnonzero(held_up[0]).tolist() == list(range(20, 30)) or held_up[0, 25]
    assert entitlement[0, 25] > 0
    assert entitlement[0, 50:] == pytest.approx(0)


def test_an_answer_slowed_by_its_batch_is_no_shortage():
    """Client 1 decodes at half the pace of client 0. Neither waits."""
    calls = [
        {
            "program_id": number,
            "client": number % 2,
            "arrival_s": float(number),
            "admitted_s": float(number),
            "first_token_s": number + 0.04,
            "finish_s": number + 0.04 + (10.0 if number % 2 else 5.0),
            "input_tokens": 10,
            "extend_tokens": 10,
            "output_tokens": 101,
            "max_new_tokens": 101,
        }
        for number in range(20)
    ]
    made = [
        {"program_id": number, "client": number % 2, "demand_output_tokens": 101}
        for number in range(20)
    ]
    booked = log({"client": 1, "start_s": 1.0, "end_s": 2.0, "output_tokens": 1})
    about = facts()
    got = fair_shares(requests(*calls), programs(*made), booked, about, Window(0.0, 20.0))
    assert shortfall(requests(*calls), programs(*made), about, 20.0)[1] > 0
    assert not got.contended


def test_a_client_is_not_judged_in_windows_where_it_hardly_waits():
    """Five calls of client 0 arrive at 56 s and wait 14 s. Client 1 gets one call a second.

    A window of 60 s contains at most half of the wait. The window from 50 to 70 s is mostly wait.
    """
    calls = [(1, float(second), 0.0, 8, 1) for second in range(100)]
    calls += [(0, 56.0, 14.0, 8, 1)] * 5
    asked, made, booked = run_of(sorted(calls, key=lambda call: call[1]))
    line = timeline(asked, made, booked, facts(clients=2), Window(0.0, 100.0))
    assert np.isnan(least_by_client(line, 60.0)[0])
    assert least_by_client(line, 20.0)[0] < 0.5


def test_a_call_that_is_refused_at_the_start_of_a_window_belongs_to_the_window():
    turned_away = {"client": 0, "program_id": 0, "arrival_s": 35.0, "status": REFUSED}
    never = {"admitted_s": NAN, "first_token_s": NAN, "finish_s": NAN, "output_tokens": 0}
    asked = requests(turned_away | never)
    made = programs({"program_id": 0, "client": 0, "arrival_s": 35.0, "status": REFUSED})
    line = timeline(asked, made, log(), facts(clients=1), Window(30.0, 60.0))
    _, _, held_up = line.window_shares(10)
    # Windows of 10 s begin at 30, 31, ..., 50 s. Those from 26 s to 35 s contain the refusal.
    assert np.flatnonzero(held_up[0]).tolist() == [0, 1, 2, 3, 4, 5]
