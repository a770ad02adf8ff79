"""Test properties that every local scheduler in the registry has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.base import Setup
from fairbench.schedulers.registry import build_local, locals_by_name
from tests.schedulers.local.local_server import Server, call
from tests.strategies import examples

# With these settings, client a goes before client b in every case.
UNEQUAL = {"priority.of": {"b": 1}, "sglang-priority.of": {"a": 1}}
# schedulers under which a flood by a may keep b waiting without end, and the reasons
STARVE = {
    "lpm": "what is cached goes first",
    "lpm-client-cap": "the flood's limit is more than the engine's",
    "priority": "the lower number goes first",
    "sglang-priority": "the higher number goes first",
}
SMALL = {
    "rpm.limit": 10**6,
    "fairserve.user_rpm": 0,
    "dlpm.quantum": 100,
    "dlpm-hold.quantum": 100,
    "dlpm-hold.floor": 50,
    "dlpm-upstream.quantum": 100,
    "dlpm-edf.quantum": 100,
    "edf-dlpm.quantum": 100,
}

arrivals = st.tuples(
    st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 6), st.integers(0, 3)
)


def server(name: str, **options) -> Server:
    scheduler = build_local(name, {**UNEQUAL, **SMALL})
    scheduler.prepare(Setup(clients=("a", "b", "c"), pool_tokens=1000))
    return Server(scheduler, **options)


@pytest.mark.parametrize("name", locals_by_name())
@given(steps=st.lists(st.lists(arrivals, max_size=4), max_size=15), slots=st.integers(1, 3))
@examples(15)
def test_all_requests_are_served_once_and_no_slot_is_left_empty(name, steps, slots):
    home = server(name, slots=slots)
    sent = []
    for batch in steps:
        home.step()
        for client, tokens, new, left in batch:
            sent.append(call(len(sent), client, tokens, new=new, left=left, at_s=home.now_s))
            home.arrive(sent[-1])
        home.run_pass()
        assert not home.queue or len(home) == slots or not home.scheduler.work_conserving
    home.run(sum(request.max_new_tokens for request in sent) + 2)
    assert sorted(r.request_id for r in home.finished) == [r.request_id for r in sent]
    once = [request for request in home.admitted if request not in home.preempted]
    assert len(once) == len(set(once))


def waits(name: str, steps: int) -> bool:
    """Tell whether b's long request still waits after a flood by a of ``steps`` steps."""
    home = server(name)
    number = 0
    b = None
    for second in range(steps):
        home.step()
        for _ in range(2):
            flood = call(number, "a", 50, at_s=home.now_s)
            home.matched[flood] = 40
            home.arrive(flood)
            number += 1
        if second == 5:
            b = call(10**6, "b", 200, new=50, at_s=home.now_s)
            home.arrive(b)
        home.run_pass()
        if b in home.admitted:
            return False
    return True


@pytest.mark.parametrize("name", [name for name in locals_by_name() if name not in STARVE])
def test_a_flood_delays_no_client_without_end(name):
    assert not waits(name, 100)


@pytest.mark.parametrize("name", STARVE)
def test_schedulers_that_allow_endless_delays_are_shown(name):
    assert waits(name, 150)
