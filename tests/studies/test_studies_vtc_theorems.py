"""Test the claims on the VTC paper's theorems: hand-made records, and made-up extremes."""

from types import SimpleNamespace

import numpy as np
import pytest

from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.extremes import Extremes, extremes_of, largest_ahead, largest_unasked
from fairbench_studies.vtc.store import Results
from fairbench_studies.vtc.theorems import judge_lead, judge_response, judge_share
from tests.studies.service_helpers import NEVER, requests_of, service_of

AT_THE_BOUNDS = Extremes(unit=100.0, clients=3, lead=400.0, ahead=400.0, unasked=500.0)


def steady(late_s=0.0):
    """Return a client's requests of ten minutes, which wait longer in the last minute."""
    at_s = np.arange(0.0, 600.0, 2.0)
    wait_s = np.where(at_s >= 538.0, late_s, 0.0) + 0.5
    same = np.zeros(len(at_s), dtype=int)
    return Trace(same, same + 1, same + 1, at_s, wait_s, wait_s + 1)


def results(*extremes, late_s=0.0):
    """Return a seed whose runs have the given extremes."""
    named = {f"run {number}": one for number, one in enumerate(extremes)}
    return Results({"vtc-increasing vtc": steady(late_s)}, {}, {}, named)


def test_others_are_served_while_a_clients_only_request_waits():
    """Client 0's first request waits from 2 to 5, while client 1 gets 100 and 2 x 5 tokens.

    The request at 3 is not the client's only one, nor is that at 11, because the first one runs
    until 12. The request at 13 is alone, and the others get 40 tokens.
    """
    requests = requests_of(
        (0, 2.0, 5.0, 12.0),
        (0, 3.0, 6.0, 9.0),
        (0, 11.0, 12.5, 12.8),
        (0, 13.0, 15.0, NEVER),
        (1, 0.0, 0.0, 20.0),
    )
    service = service_of(
        (1, 0.0, 1.0, 500, 0),  # before
        (1, 3.0, 3.5, 100, 0),
        (1, 3.5, 4.5, 0, 5),
        (0, 4.0, 4.5, 30, 0),  # of client 0
        (1, 11.5, 12.0, 900, 0),
        (1, 14.0, 14.5, 40, 0),
    )
    assert largest_ahead(requests, service, 2) == 100 + 2 * 5
    fewer = service_of((1, 3.0, 3.5, 20, 0), (1, 11.5, 12.0, 900, 0), (1, 14.0, 14.5, 40, 0))
    assert largest_ahead(requests, fewer, 2) == 40


def test_a_request_after_another_that_never_ends_is_not_alone():
    requests = requests_of((0, 0.0, 0.0, NEVER), (0, 5.0, 9.0, 10.0), (1, 0.0, 0.0, 20.0))
    assert largest_ahead(requests, service_of((1, 6.0, 7.0, 50, 0)), 2) == 0.0


@pytest.mark.parametrize(("other_at_s", "unasked"), [(3.0, 300 / 2 - 40), (1.0, 300 - 40)])
def test_a_share_is_of_the_clients_that_requested_since_the_wait_began(other_at_s, unasked):
    """Client 0 waits from 2 to 8 and requests 20 + 20 weighted tokens. All clients are served 300.

    The share is half if client 1 sends its request while client 0 waits, and all if before.
    """
    requests = requests_of(
        (0, 2.0, 8.0, 9.0, 10, 5),
        (0, 4.0, 8.0, 9.0, 10, 5),
        (1, other_at_s, 5.0, 7.0, 300, 0),
    )
    service = service_of((1, 0.0, 1.0, 800, 0), (1, 5.0, 6.0, 300, 0), (0, 8.5, 9.0, 900, 0))
    assert largest_unasked(requests, service, 2, 20.0) == unasked


def test_a_client_that_requests_its_share_in_time_lacks_nothing():
    requests = requests_of((0, 2.0, 8.0, 9.0, 200, 50), (1, 3.0, 5.0, 7.0, 300, 0))
    assert largest_unasked(requests, service_of((1, 5.0, 6.0, 300, 0)), 2, 20.0) == 0.0


@pytest.mark.parametrize(
    "summary",
    [
        {"bound_source": None, "clients": [{}, {}]},
        {"bound_source": "DLPM Theorem 4.1", "clients": [{}, {}]},
        {"bound_source": "VTC Theorem 4.4", "clients": [{"weight": 1.0}, {"weight": 2.0}]},
    ],
)
def test_the_theorems_are_about_equal_clients_under_vtc(summary):
    assert extremes_of(SimpleNamespace(summary={"service_gap_bound": 100.0, **summary})) is None


@pytest.mark.parametrize(
    ("judge", "name"),
    [(judge_lead, "lead"), (judge_response, "ahead"), (judge_share, "unasked")],
)
def test_each_bound_holds_up_to_its_value_and_is_reversed_by_one_run_beyond_it(judge, name):
    """With U = 100 and three clients, the bounds are 4U, 2 x 2 x U and 5U."""
    beyond = AT_THE_BOUNDS._replace(**{name: getattr(AT_THE_BOUNDS, name) + 1.0})
    held, *_ = judge([results(AT_THE_BOUNDS)])
    assert held.outcome is Outcome.HOLDS
    broken, *_ = judge([results(AT_THE_BOUNDS), results(AT_THE_BOUNDS, beyond)])
    assert broken.outcome is Outcome.REVERSED
    assert broken.ours.startswith("in 2 of 3 runs; the largest value is ")
    with pytest.raises(KeyError):
        judge([results()])


@pytest.mark.parametrize(("late_s", "outcome"), [(0.9, Outcome.HOLDS), (1.1, Outcome.OFF)])
def test_the_first_client_of_figure_9_may_wait_a_second_longer(late_s, outcome):
    _, unchanged = judge_share([results(AT_THE_BOUNDS, late_s=late_s)])
    assert (unchanged.outcome, unchanged.ours) == (outcome, f"+{late_s:.2f} s")
