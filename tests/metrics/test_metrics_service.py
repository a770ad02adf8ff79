import itertools
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import ServiceWeights
from fairbench.metrics.records import REFUSED, Window
from fairbench.metrics.service import View, booked_in, cumulative, window_service
from fairbench.metrics.traffic import traffic_of
from tests.metrics.metrics_helpers import log, requests, step_ends

WEIGHTS = ServiceWeights()


def served(table, view, start, end, clients=1, weights=WEIGHTS):
    return window_service(table, view, Window(start, end), clients, weights).tolist()


PREFILL = {
    "start_s": 1.0,
    "end_s": 2.0,
    "input_tokens": 100,
    "extend_charged_tokens": 40,
    "extend_tokens": 30,
    "recompute_tokens": 1000,
    "output_tokens": 1,
}


@pytest.mark.parametrize(
    ("view", "at_start", "at_end"),
    [
        (View.CLIENT, 100, 2 * 1),
        (View.ACTUAL, 0, 30 + 2 * 1),
        (View.CHARGED, 40, 2 * 1),
        (View.OUTPUT, 0, 1),
        (View.EXTEND, 0, 30),
    ],
)
def test_a_prefill_books_charges_at_its_start_and_work_at_its_end(view, at_start, at_end):
    table = log(PREFILL)
    assert served(table, view, 0, 1) == [0]  # [a, b) excludes b
    assert served(table, view, 1, 2) == [at_start]
    assert served(table, view, 2, 3) == [at_end]
    assert served(table, view, 0, 9) == [at_start + at_end]


def test_weights_price_input_and_output():
    assert served(log(PREFILL), View.CLIENT, 0, 9, weights=ServiceWeights(3, 5)) == [3 * 100 + 5]


def test_steps_of_a_growing_stretch_end_at_exact_times():
    # d + (d + .5) + (d + 1.0) = 6 - 0: d = 1.5, ends at 1.5, 3.5, 6.0
    table = log({"end_s": 6.0, "steps": 3, "step_growth_s": 0.5, "output_tokens": 12})
    row, ends = step_ends(table, np.array([0]))
    assert row.tolist() == [0, 0, 0]
    assert ends.tolist() == [1.5, 3.5, 6.0]
    # 12 / 3 = 4 tokens per step
    assert served(table, View.OUTPUT, 0, 1.5) == [0]
    assert served(table, View.OUTPUT, 1.5, 3.5) == [4]
    assert served(table, View.OUTPUT, 1.5, 3.6) == [8]
    assert served(table, View.OUTPUT, 3.6, 6.0) == [0]
    assert served(table, View.CLIENT, 6.0, 7.0) == [2 * 4]


def test_every_client_has_its_own_sum_and_an_absent_one_has_zero():
    table = log(
        {"client": 2, "worker": 0, "output_tokens": 3},
        {"client": 0, "worker": 1, "output_tokens": 5},
        {"client": 2, "worker": 1, "output_tokens": 7},
    )
    assert served(table, View.OUTPUT, 0, 2, clients=3) == [5, 0, 10]


def test_an_empty_log_or_window_has_no_service():
    assert served(log(), View.CLIENT, 0, 2, clients=2) == [0, 0]
    assert served(log(PREFILL), View.CLIENT, 5, 1) == [0]


def test_instants_count_ends_and_starts_separately():
    table = log(
        {"start_s": 0.0, "end_s": 1.0, "output_tokens": 1},
        {"start_s": 1.0, "end_s": 2.0, "input_tokens": 10},
    )

    def at_one(**flags):
        return cumulative(table, View.CLIENT, np.array([1.0]), 1, WEIGHTS, **flags).item()

    assert at_one() == 0
    assert at_one(with_ends=True) == 2
    assert at_one(with_starts=True) == 10
    assert at_one(with_ends=True, with_starts=True) == 12


rows = st.builds(
    lambda client, start, first, steps, growth, tokens, amount: {
        "client": client,
        "start_s": start,
        "end_s": start + steps * first + growth * steps * (steps - 1) / 2,
        "steps": steps,
        "step_growth_s": growth,
        "output_tokens": tokens * steps,
        "input_tokens": amount,
        "extend_charged_tokens": amount // 2,
        "extend_tokens": amount // 3,
    },
    st.integers(0, 2),
    st.integers(0, 8),
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 3),
    st.integers(0, 50),
)
instants = st.lists(st.integers(0, 40).map(lambda half: half / 2), min_size=2, max_size=5)


def walked(row, view, start, end):
    """Sum the service of a row in a window, step by step."""
    at_start = {View.CLIENT: "input_tokens", View.CHARGED: "extend_charged_tokens"}.get(view)
    at_end = {View.ACTUAL: "extend_tokens", View.EXTEND: "extend_tokens"}.get(view)
    price = {View.OUTPUT: 1, View.EXTEND: 0}.get(view, 2)
    total = 0.0
    if at_start and start <= row["start_s"] < end:
        total += row[at_start]
    if at_end and start <= row["end_s"] < end:
        total += row[at_end]
    steps, growth = row["steps"], row["step_growth_s"]
    length = (row["end_s"] - row["start_s"]) / steps - growth * (steps - 1) / 2
    now = row["start_s"]
    for _ in range(steps):
        now += length
        length += growth
        if start <= now < end:
            total += price * row["output_tokens"] / steps
    return total


@given(st.lists(rows, max_size=6), instants, st.sampled_from(list(View)))
def test_any_window_equals_a_walk_over_the_steps(entries, times, view):
    start, end = min(times), max(times)
    expected = [
        sum(walked(row, view, start, end) for row in entries if row["client"] == client)
        for client in range(3)
    ]
    assert served(log(*entries), view, start, end, clients=3) == pytest.approx(expected)


@given(st.lists(rows, max_size=6), instants, st.sampled_from(list(View)))
def test_the_services_of_adjacent_windows_add_up(entries, times, view):
    table, cuts = log(*entries), sorted(times)
    parts = [
        window_service(table, view, Window(a, b), 3, WEIGHTS) for a, b in itertools.pairwise(cuts)
    ]
    whole = window_service(table, view, Window(cuts[0], cuts[-1]), 3, WEIGHTS)
    assert sum(parts) == pytest.approx(whole)


def one_clock(start, end, *rows):
    """Return (input, computed input) of each of two clients in a window of hand-written rows."""
    booked = booked_in(log(*rows), Window(start, end), 2).on_one_clock()
    return list(zip(booked.input.tolist(), booked.extend.tolist(), strict=True))


def prompt(start, end, tokens, cached=0, client=0):
    """Return the row of a prompt that is computed in one iteration."""
    fresh = tokens - cached
    row = {"client": client, "start_s": start, "end_s": end, "input_tokens": tokens}
    return row | {"extend_charged_tokens": fresh, "extend_tokens": fresh}


LATER_CHUNK = {"start_s": 12, "end_s": 14, "extend_tokens": 600}


@pytest.mark.parametrize(
    ("rows", "booked"),
    [
        # The window [10, 20) begins or ends in the middle of a prompt, or between its chunks.
        ([prompt(9, 11, 800), prompt(12, 13, 50)], (50, 50)),
        ([prompt(12, 13, 50), prompt(19, 21, 800)], (850, 850)),
        ([prompt(9, 11, 800), prompt(12, 13, 100, cached=70)], (100, 30)),
        ([prompt(8, 12, 1000) | {"extend_tokens": 400}, LATER_CHUNK], (0, 0)),
        ([prompt(9, 11, 800), prompt(19, 21, 700)], (700, 700)),
        # Prompts within the window, and edges that divide less than a tenth of its tokens.
        ([prompt(11, 12, 300, cached=100)], (300, 200)),
        ([prompt(9, 11, 30), prompt(12, 13, 900, cached=100)], (900, 830)),
    ],
)
def test_a_prompt_at_the_edge_of_a_short_window_is_booked_when_it_was_admitted(rows, booked):
    assert one_clock(10, 20, *rows, prompt(11, 12, 7, client=1)) == [booked, (7, 7)]


@given(st.lists(rows, max_size=6), instants)
def test_no_window_has_more_computed_than_input(entries, times):
    booked = booked_in(log(*entries), Window(min(times), max(times)), 3)
    mended = booked.on_one_clock()
    assert (mended.extend <= booked.input).all()
    for place, extend in enumerate(mended.extend):
        assert extend in (booked.extend[place], booked.charged[place])
    for view in (View.CLIENT, View.CHARGED, View.OUTPUT):
        assert (mended.seen(view, WEIGHTS) == booked.seen(view, WEIGHTS)).all()


def test_the_traffic_of_a_run_has_sizes_and_waits_in_order_of_arrival():
    made = requests(
        {"client": 1, "arrival_s": 5.0, "first_token_s": 7.5, "input_tokens": 100}
        | {"output_tokens": 20, "max_new_tokens": 64},
        {"client": 0, "arrival_s": 1.0, "input_tokens": 10, "max_new_tokens": 50},  # no answer
        {"client": 0, "arrival_s": 3.0, "input_tokens": 7, "max_new_tokens": 4, "status": REFUSED},
    )
    traffic = traffic_of(["a", "b"], made, 9.0)
    assert traffic.clients == ("a", "b")
    assert traffic.client.tolist() == [0, 0, 1]
    assert traffic.arrival_s.tolist() == [1.0, 3.0, 5.0]
    assert traffic.tokens.tolist() == [10 + 2 * 50, 7 + 2 * 4, 100 + 2 * 20]
    assert traffic.wait_s.tolist() == [9.0 - 1.0, inf, 2.5]
