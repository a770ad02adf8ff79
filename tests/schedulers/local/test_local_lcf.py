"""Test LCF, a VTC without lift that owes a returning client all that it missed ([VTC] §5.1)."""

from __future__ import annotations

import pytest

from fairbench.core import NoBound
from fairbench.errors import UsageError
from fairbench.schedulers.local.lcf import LCF
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.registry import build_local
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls


def counters_after_an_absence(scheduler):
    """Return counters after a gets 100 tokens while b is away, and b returns while a waits."""
    at, call = Desk(scheduler), Calls()
    at.arrive(call("a", tail=100), call("a", tail=1))
    at.run_pass(at_most=1)
    at.arrive(call("b", tail=30), call("b", tail=30), call("b", tail=30), call("b", tail=30))
    return at


def test_a_returning_client_is_not_lifted():
    at = counters_after_an_absence(LCF(LCF.Params()))
    assert at.scheduler.counters == {"a": 100, "b": 0}
    # b catches up, 30 at a time, until it has had more than a's 100 tokens
    assert [request.client for request in at.run_pass()] == ["b", "b", "b", "b", "a"]


def test_vtc_would_have_lifted():
    at = counters_after_an_absence(VTC(VTC.Params()))
    assert at.scheduler.counters == {"a": 100, "b": 100}
    assert [request.client for request in at.run_pass()][:3] == ["b", "a", "b"]


def test_no_lift_without_waiting_clients_either():
    at, call = Desk(LCF(LCF.Params())), Calls()
    at.arrive(call("a", tail=100))
    at.run_pass()
    at.arrive(call("b"))
    assert at.scheduler.counters == {"a": 100, "b": 0}


def test_lcf_has_no_bound_and_its_lift_cannot_be_set():
    assert isinstance(build_local("lcf", {}).service_bound(), NoBound)
    with pytest.raises(UsageError, match="lift"):
        build_local("lcf", {"lcf.lift": "paper"})
