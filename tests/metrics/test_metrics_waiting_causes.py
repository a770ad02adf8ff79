"""Test the facts on a client's waits in a window, on tables whose numbers are known by hand."""

from math import isnan

import pytest

from fairbench.metrics.records import REFUSED, Window
from fairbench.metrics.waiting_causes import WaitingCauses
from tests.metrics.metrics_helpers import NAN, facts, requests

ALICE, BOB, CAROL = 0, 1, 2
RUN = facts(3)
PART = Window(10.0, 20.0)
ROWS = (
    {"client": ALICE, "arrival_s": 0.0, "admitted_s": 15.0, "extend_tokens": 9},
    # waits 2 s of its 7 s in the window, at worker 1
    {"client": BOB, "worker": 1, "arrival_s": 5.0, "admitted_s": 12.0, "cached_tokens": 10},
    # waits 4 s, at worker 1
    {"client": BOB, "worker": 1, "arrival_s": 11.0, "admitted_s": 15.0, "extend_tokens": 30},
    # is never admitted: waits 8 s of its 88 s in the window, at worker 0
    {"client": BOB, "worker": 0, "arrival_s": 12.0, "admitted_s": NAN, "extend_tokens": 70},
    {"client": BOB, "worker": 0, "arrival_s": 50.0, "admitted_s": 50.0, "cached_tokens": 60},
    {"client": BOB, "worker": 0, "arrival_s": 13.0, "status": REFUSED},
)


def test_every_fact_is_the_one_worked_out_by_hand():
    assert WaitingCauses(requests(*ROWS), RUN, RUN.window).row(BOB, PART) == {
        "wait_p50_s": 7.0,  # of 4, 7 and 88 s
        "run_wait_p50_s": 5.5,  # of 0, 4, 7 and 88 s
        "waiting": pytest.approx(14 / 10),
        "others_waiting": pytest.approx(5 / 10),
        "worker": 0,
        "worker_ratio": pytest.approx(8 / 14),
        "arrivals_ratio": pytest.approx(5.0),  # 2 requests in 10 s, and 4 in 100 s
        "admitted": 2,
        "hit_rate": pytest.approx(10 / 40),
        "run_hit_rate": pytest.approx(70 / 100),
    }


def test_a_wait_in_the_gateway_has_no_worker():
    row = {"client": BOB, "arrival_s": 10.0, "admitted_s": 20.0}
    held = requests(row)
    columns = held.to_columns() | {"routed_s": held.arrival_s + 8.0}
    found = WaitingCauses(type(held).from_columns(columns), RUN, RUN.window).row(BOB, PART)
    assert (found["worker"], found["worker_ratio"], found["waiting"]) == (None, 0.8, 1.0)


def test_a_client_without_requests_has_no_numbers():
    found = WaitingCauses(requests(*ROWS), RUN, RUN.window).row(CAROL, PART)
    assert (found["waiting"], found["admitted"]) == (0.0, 0)
    undefined = {key for key, value in found.items() if value is not None and isnan(value)}
    assert undefined == {
        "wait_p50_s", "run_wait_p50_s", "worker_ratio", "arrivals_ratio", "hit_rate", "run_hit_rate"
    }  # fmt: skip
