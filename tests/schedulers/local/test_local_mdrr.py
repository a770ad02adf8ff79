"""Test deficit round robin on credit: turns by hand, and against a plain queue."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.registry import build_local
from fairbench_rivals.local.mdrr import MDRR
from tests.schedulers.local.local_desk import Desk
from tests.schedulers.local.local_requests import Calls


def desk(pool_tokens=0, weights=None, **params) -> Desk:
    scheduler = MDRR(MDRR.Params(**params))
    scheduler.prepare(Setup(weights=weights or {}, pool_tokens=pool_tokens))
    return Desk(scheduler)


def order(requests) -> str:
    return "".join(request.client for request in requests)


def test_clients_take_turns_of_a_quantum_that_the_last_request_may_overdraw():
    at, call = desk(quantum=10), Calls()
    at.arrive(*(call("a", tail=6) for _ in range(4)), *(call("b", tail=10) for _ in range(2)))
    # a: 10 - 6 - 6 = -2. b: 10 - 10 = 0. a: 8 - 6 - 6 = -4. b: 10 - 10.
    assert order(at.run_pass()) == "aabaab"
    # a paid its debt in a turn in which no other client waited
    assert at.scheduler.credit == {"a": 6, "b": 0}


def test_outputs_are_charged_as_they_are_produced_and_delay_the_next_turn():
    at, call = desk(quantum=10), Calls()
    at.arrive(call("a", tail=4), call("b", tail=4))
    at.run_pass()
    at.scheduler.on_tokens("a", 20)
    assert at.scheduler.credit == {"a": 6 - 40, "b": 6}
    at.arrive(*(call("a", tail=4) for _ in range(2)), *(call("b", tail=4) for _ in range(6)))
    # b is in credit: 6, 2, -2. Three quanta leave a at -4, and a fourth at 6.
    assert order(at.run_pass()) == "bbbbbbaa"


def test_a_client_whose_request_does_not_fit_keeps_its_turn_unless_in_debt():
    at, call = desk(quantum=10), Calls()
    large = call("a", tail=9)
    at.arrive(large, call("b", tail=3))
    assert at.run_pass(lambda request: request is not large) == []
    assert order(at.run_pass(at_most=1)) == "a"
    at.arrive(call("a", tail=3))
    assert at.run_pass(lambda _: False) == []  # a again, because 1 is left of its quantum
    at.scheduler.on_tokens("a", 3)
    assert order(at.run_pass()) == "ba"


def test_a_pass_ended_by_its_host_keeps_the_turn():
    at, call = desk(quantum=10), Calls()
    at.arrive(*(call("a", tail=4) for _ in range(3)), call("b", tail=4))
    assert order(at.run_pass(at_most=2)) == "aa"
    assert order(at.run_pass()) == "ab"


def test_the_usual_quantum_is_a_twentieth_of_the_pool_times_the_weight():
    at, call = desk(pool_tokens=200, weights={"b": 2.0}), Calls()
    at.arrive(*(call("a", tail=10) for _ in range(3)), *(call("b", tail=10) for _ in range(3)))
    assert order(at.run_pass()) == "abbaba"


def test_a_second_prefill_is_not_charged():
    at, call = desk(quantum=10), Calls()
    request = call("a", tail=4)
    at.arrive(request)
    at.run_pass()
    at.retract(request)
    at.run_pass()
    assert at.scheduler.credit == {"a": 6}


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 30)), min_size=1, max_size=25),
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_mdrr_equals_a_plain_implementation(asked, rooms, quantum):
    """A pass has a limited number of tokens. In between, running requests get an output token."""
    at, call = desk(quantum=quantum), Calls()
    queues: dict[str, deque] = {}
    turns: deque[str] = deque()
    owed: Counter[str] = Counter()
    stuck = None
    for client, tail in asked:
        request = call(client, tail=tail)
        at.arrive(request)
        queues.setdefault(client, deque()).append(request)
        if client not in turns:
            turns.append(client)
    for room in rooms:
        left = room
        expected = []
        full = False
        while turns and not full:
            client = turns.popleft()
            if client == stuck and owed[client] > 0:
                turns.append(client)
                stuck = None
                continue
            if owed[client] >= 0:
                owed[client] -= quantum
            while owed[client] < 0 and queues[client] and not full:
                if queues[client][0].input_tokens > left:
                    turns.appendleft(client)
                    stuck, full = client, True
                else:
                    request = queues[client].popleft()
                    left -= request.input_tokens
                    owed[client] += request.input_tokens
                    expected.append(request)
            if not full and (queues[client] or owed[client] > 0):
                turns.append(client)
        space = [room]

        def fits(request, space=space):
            if request.input_tokens > space[0]:
                return False
            space[0] -= request.input_tokens
            return True

        assert at.run_pass(fits) == expected
        for request in expected:
            at.scheduler.on_tokens(request.client, 1)
            owed[request.client] += 2


@pytest.mark.parametrize("setting", [{"mdrr.quantum": -1}, {"mdrr.charge": "output"}])
def test_settings_are_checked(setting):
    with pytest.raises(UsageError, match=next(iter(setting))):
        build_local("mdrr", setting)
