"""Test LPM with a limit on a client's running requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.lpm import LPM
from fairbench.schedulers.local.lpm_client_cap import ClientCappedLPM
from fairbench.schedulers.registry import build_local
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_server import Server, call
from tests.strategies import examples


def make(most=2, weights=None) -> ClientCappedLPM:
    scheduler = ClientCappedLPM(ClientCappedLPM.Params(max_running=most))
    scheduler.prepare(Setup(weights=weights or {}))
    return scheduler


def test_the_longest_prefix_of_a_client_below_its_limit_is_chosen():
    desk = Desk(make())
    requests = [call(n, client, 50) for n, client in enumerate("aaabb")]
    for request, cached in zip(requests, (40, 10, 30, 20, 5), strict=True):
        desk.matched[request] = cached
    desk.arrive(*requests)
    assert [r.request_id for r in desk.run_pass()] == [0, 2, 3, 4]
    assert desk.run_pass() == []
    assert desk.offered == []
    desk.scheduler.on_finish(requests[0])
    assert [r.request_id for r in desk.run_pass()] == [1]


def test_a_retracted_request_frees_its_slot():
    desk = Desk(make(1))
    first, second = call(0, "a"), call(1, "a")
    desk.arrive(first, second)
    assert desk.run_pass() == [first]
    desk.scheduler.on_finish(second)  # aborted while it waited
    desk.queue.remove(second)
    desk.arrive(call(2, "a"))
    assert desk.run_pass() == []
    desk.retract(first)
    assert len(desk.run_pass()) == 1


def test_the_cap_follows_the_weights_and_is_at_least_one_request():
    desk = Desk(make(2, {"heavy": 2.6, "light": 0.1}))
    desk.arrive(*(call(n, client) for n, client in enumerate(["heavy", "light"] * 9)))
    assert Counter(r.client for r in desk.run_pass()) == {"heavy": 5, "light": 1}


arrivals = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 6)), max_size=4), max_size=15
)


@given(arrivals, st.integers(1, 3), st.integers(1, 6))
@examples(40)
def test_no_client_exceeds_its_limit_and_no_slot_is_empty_for_another_reason(arrivals, most, slots):
    capped, free = Server(make(most), slots=slots), Server(make(99), slots=slots)
    plain = Server(LPM(LPM.Params()), slots=slots)
    sent = 0
    for batch in arrivals:
        requests = [call(sent + n, client, new=new) for n, (client, new) in enumerate(batch)]
        sent += len(batch)
        for server in (capped, free, plain):
            server.step()
            server.arrive(*requests)
            server.run_pass()
        running = Counter(request.client for request in capped.produced)
        assert max(running.values(), default=0) <= most
        if len(capped) < slots:
            assert all(running[request.client] == most for request in capped.queue)
    capped.run(6 * sent + 1)
    assert len(capped.finished) == sent
    assert free.admitted == plain.admitted


def test_invalid_limits_are_refused():
    with pytest.raises(UsageError, match=r"lpm-client-cap.max_running = 0"):
        build_local("lpm-client-cap", {"lpm-client-cap.max_running": 0})
