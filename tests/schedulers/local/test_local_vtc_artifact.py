"""Test by hand how VTC in the artifact's code differs from the paper ([VTC-artifact])."""

from __future__ import annotations

import pytest

from fairbench.core import NoBound, ServiceBound
from fairbench.schedulers.local.lcf import LCF
from fairbench.schedulers.local.vtc import VTC
from fairbench_studies.validation.slora.forms import ArtifactForm, EarlyArtifactForm, in_form
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls

FORMS = {
    "paper": VTC,
    "artifact": in_form(ArtifactForm, VTC),
    "artifact-2023": in_form(EarlyArtifactForm, VTC),
}


def desk(form: str = "artifact", **params) -> Desk:
    return Desk(FORMS[form](VTC.Params(charge="input", **params)))


def test_the_first_token_of_each_request_is_free():
    at, call = desk(), Calls()
    at.arrive(call("a", tail=30), call("a", tail=30))
    at.run_pass()
    at.scheduler.on_tokens("a", 1)  # the prefill of the first request
    at.scheduler.on_tokens("a", 1)  # and that of the second
    assert at.scheduler.counters == {"a": 60}
    at.scheduler.on_tokens("a", 2)  # one step of both
    assert at.scheduler.counters == {"a": 60 + 2 * 2}


def test_free_tokens_do_not_depend_on_how_calls_are_merged():
    at, call = desk(), Calls()
    at.arrive(call("a", tail=30), call("a", tail=30))
    at.run_pass()
    at.scheduler.on_tokens("a", 7)
    assert at.scheduler.counters == {"a": 60 + 2 * 5}


@pytest.mark.parametrize(("form", "extra"), [("paper", 0), ("artifact", 2), ("artifact-2023", 0)])
def test_a_step_that_ends_requests_charges_the_remaining_ones_once_more(form, extra):
    """Two requests end in one step, so each of b's three running ones is charged a token, once."""
    at, call = desk(form), Calls()
    ended = [call("a", tail=10), call("a", tail=10)]
    at.arrive(*ended, *(call("b", tail=10) for _ in range(3)))
    at.run_pass()
    at.scheduler.on_tokens("a", 2)
    at.scheduler.on_tokens("b", 3)
    before = at.scheduler.counters["b"]
    for request in ended:
        at.scheduler.on_finish(request)
    assert at.scheduler.counters["b"] - before == 3 * extra


def test_the_next_step_that_ends_a_request_charges_again():
    at, call = desk(), Calls()
    ended = [call("a", tail=10), call("a", tail=10)]
    at.arrive(*ended, call("b", tail=10))
    at.run_pass()
    at.scheduler.on_tokens("a", 2)
    at.scheduler.on_tokens("b", 1)
    for request in ended:
        before = at.scheduler.counters["b"]
        at.scheduler.on_tokens("b", 1)
        at.scheduler.on_finish(request)
        assert at.scheduler.counters["b"] - before == 2 + 2


@pytest.mark.parametrize(
    ("form", "lifted_to"), [("paper", 100), ("artifact", 0), ("artifact-2023", 0)]
)
def test_no_lift_without_waiting_clients(form, lifted_to):
    """The artifact omits lines 8-10 of Algorithm 2."""
    at, call = desk(form), Calls()
    at.arrive(call("a", tail=100))
    at.run_pass()
    at.arrive(call("b"))
    assert at.scheduler.counters == {"a": 100, "b": lifted_to}


@pytest.mark.parametrize(("scheduler", "lifted_to"), [(VTC, 100), (LCF, 0)])
def test_the_lift_to_waiting_clients_is_kept_by_vtc_but_not_by_lcf(scheduler, lifted_to):
    at, call = Desk(in_form(ArtifactForm, scheduler)(scheduler.Params())), Calls()
    at.arrive(call("a", tail=100), call("a", tail=1))
    at.run_pass(at_most=1)
    at.arrive(call("b"))
    assert at.scheduler.counters["b"] == lifted_to


def test_the_artifact_form_claims_no_bound():
    assert VTC(VTC.Params()).service_bound() == ServiceBound("actual", 0, "VTC Theorem 4.4")
    assert isinstance(FORMS["artifact"](VTC.Params()).service_bound(), NoBound)
