"""Test that ``vtc-match`` chooses clients like VTC, and then the client's longest match."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.core import ServiceBound
from fairbench.errors import UsageError
from fairbench.schedulers.local.vtc_match import MatchingVTC
from fairbench.schedulers.registry import build_local
from fairbench.sim.run import simulate
from tests.invariants import assert_same_records
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls


def desk():
    return Desk(MatchingVTC(MatchingVTC.Params()))


def test_the_longest_match_of_the_client_served_least_is_next():
    at, call = desk(), Calls()
    a1, a2, a3 = (call("a", tail=10) for _ in range(3))
    b1, b2 = call("b", tail=25), call("b", tail=25)
    at.matched |= {a2: 5, a3: 8, b2: 24}
    at.arrive(a1, b1, a2, b2, a3)
    # a 0, b 0: the longest match of a (10, 0), of b (10, 25), and of a until b is lower again
    assert at.run_pass() == [a3, b2, a2, a1, b1]


def test_cached_tokens_are_charged_because_they_are_sent_to_a_decode_worker():
    at, call = desk(), Calls()
    request = call("a", tail=30)
    at.matched[request] = 10
    at.arrive(request)
    at.run_pass()
    at.scheduler.on_tokens("a", 3)
    assert at.scheduler.counters == {"a": 30 + 2 * 3}


def test_no_request_is_skipped_when_that_of_the_client_served_least_does_not_fit():
    at, call = desk(), Calls()
    large, cached, small = call("a", tail=100), call("a", tail=50), call("b", tail=1)
    at.matched |= {cached: 40}
    at.arrive(large, cached, small)
    assert at.run_pass(lambda request: request is not cached) == []
    assert at.offered == [cached]


def test_the_bound_is_that_of_vtc_on_whole_prompts():
    bound = desk().scheduler.service_bound()
    assert isinstance(bound, ServiceBound)
    assert (bound.view, bound.source) == ("client", "VTC Theorem 4.4")


def test_there_are_no_parameters():
    with pytest.raises(UsageError, match="vtc-match"):
        build_local("vtc-match", {"vtc-match.charge": "extend"})


FORMS = {
    "colocated": {"dp": 2},
    "apart": {"prefill": 2, "decode": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_runs_are_equal_step_by_step(form):
    flags = {"workload": "tot", "scheduler": "fair-finish+vtc-match", "num_programs": 2}
    settings = {"engine.max_total_tokens": 9_000}
    if form == "apart":
        settings |= {"disaggregation.reserve": "admission", "disaggregation.charge_outputs": True}
    fast, slow = (
        simulate(resolve({**flags, **FORMS[form]}, {**settings, "engine.step_by_step": each}))
        for each in (False, True)
    )
    assert_same_records(fast, slow)
