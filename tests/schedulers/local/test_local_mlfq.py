"""Test vllm-ltr's multi-level feedback queue: levels and orders by hand, and its rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.base import Setup
from fairbench.schedulers.drive import Preempt
from fairbench_rivals.local.mlfq import MLFQ
from tests.schedulers.local.local_server import Server, call


def server(slots=1, tokens=10**9, **params):
    """Return a server with steps of 1 s, and quanta of 1, 2, 4, ... seconds."""
    scheduler = MLFQ(MLFQ.Params(**{"quantum_s": 1.0, **params}))
    scheduler.prepare(Setup())
    return Server(scheduler, slots=slots, tokens=tokens)


def numbers(requests):
    return [request.request_id for request in requests]


def level(home, request):
    return home.scheduler._requests[request].level


def levels_at(home, request, times_s):
    found = []
    for time_s in times_s:
        home.run(int(time_s - home.now_s))
        found.append(level(home, request))
    return found


def test_a_request_moves_down_when_it_has_run_for_longer_than_the_quantum():
    home, long = server(), call(0, "a", new=99)
    home.arrive(long)
    home.run_pass()
    # 2 > 1 s at 2 s; then 3 > 2 s at 5 s, and 5 > 4 s at 10 s
    assert levels_at(home, long, [1, 2, 4, 5, 9, 10]) == [0, 1, 1, 2, 2, 3]


def test_the_published_quantum_is_ten_milliseconds():
    assert MLFQ.Params().quantum_s == 0.01
    home, long = server(quantum_s=0.4), call(0, "a", new=99)
    home.arrive(long)
    home.run_pass()
    # steps of 25 ms under a quantum of 10 ms: 25 > 10, 25 > 20, 50 > 40, 100 > 80 ms
    assert levels_at(home, long, [1, 2, 3, 4, 7, 8]) == [1, 2, 2, 3, 3, 4]


def test_steps_between_two_passes_count_as_equally_long():
    home, long = server(), call(0, "a", new=99)
    home.arrive(long)
    home.run_pass()
    for _ in range(10):
        home.step()
    home.run_pass()
    assert level(home, long) == 3


@pytest.mark.parametrize(("after_s", "admitted"), [(1, [0]), (2, [0, 1])])
def test_a_newcomer_preempts_lower_levels_only(after_s, admitted):
    home = server()
    home.arrive(call(0, "a", new=99))
    home.run_pass()
    home.run(after_s)
    home.arrive(call(1, "b", new=5))
    home.run_pass()
    assert numbers(home.admitted) == admitted
    assert numbers(home.preempted) == [0] * (len(admitted) - 1)


def test_two_long_requests_take_turns_that_double():
    home = server()
    first, second = call(0, "a", new=99), call(1, "b", new=99)
    home.arrive(first)
    home.run_pass()
    runs = [(0, 0.0)]
    for time_s in range(1, 32):
        home.run(1)
        if time_s == 1:
            home.arrive(second)
        if len(home.admitted) > len(runs):
            runs.append((home.admitted[-1].request_id, home.now_s))
    # Level 0 ends after 2 s. The second request then runs at levels 0 and 1 for 2 + 3 s, because a
    # request returns to the front of its level. The first runs at levels 1 and 2 for 3 + 5 s, and
    # the second at levels 2 and 3 for 5 + 9 s.
    assert runs == [(0, 0.0), (1, 2.0), (0, 7.0), (1, 15.0), (0, 29.0)]


def test_new_requests_of_a_level_go_in_order_of_arrival_behind_those_that_ran():
    home = server()
    home.arrive(call(0, "a", new=2), call(1, "b", new=1), call(2, "c", new=1))
    home.run_pass()
    home.run(4)
    assert numbers(home.admitted) == numbers(home.finished) == [0, 1, 2]
    assert not home.preempted


def test_the_last_request_of_the_lowest_level_loses_its_memory_first():
    home = server(slots=3)
    for number in range(3):
        home.arrive(call(number, "abc"[number], new=99))
        home.run_pass()
        home.run(2 if number < 2 else 1)
    # 5, 3 and 1 s: levels 2, 1 and 0
    order = home.scheduler.retraction_order(home, home.now_s)
    assert numbers(order) == [0, 1, 2]


def test_requests_of_a_level_return_to_its_front_in_queue_order():
    home = server(slots=3, quantum_s=100.0)
    home.arrive(*(call(number, "a", new=99) for number in range(3)))
    home.run_pass()
    home.run(1)  # each goes to the front in turn, so the first of the queue is now the last
    assert numbers(home.scheduler.retraction_order(home, home.now_s)) == [0, 1, 2]
    home.run(1)
    assert numbers(home.scheduler.retraction_order(home, home.now_s)) == [2, 1, 0]


@pytest.mark.parametrize(("tokens", "preempted"), [(40, [0]), (51, [])])
def test_nothing_is_preempted_if_the_lower_levels_hold_too_little(tokens, preempted):
    home = server(slots=9, tokens=100)
    home.arrive(call(0, "a", 10, new=20))  # 30 tokens, at level 1 after 2 s
    home.run_pass()
    home.run(2)
    home.arrive(call(1, "b", 10, new=30))  # 40 tokens, at level 0: at most 60 tokens can be free
    home.run_pass()
    home.arrive(call(2, "c", tokens, new=10))
    home.run_pass()
    assert numbers(home.preempted) == preempted


def test_only_as_many_requests_are_preempted_as_are_needed():
    home = server(slots=2)
    home.arrive(call(0, "a", new=99))
    home.run_pass()
    home.run(3)
    home.arrive(call(1, "b", new=99))
    home.run_pass()
    home.run(2)  # 5 and 2 s: levels 2 and 1
    home.arrive(call(2, "c", new=1))
    home.run_pass()
    assert numbers(home.preempted) == [0]
    home.run(2)
    assert numbers(home.admitted) == [0, 1, 2, 0]


def test_a_preempted_request_is_copied_to_the_host_if_the_host_has_room():
    scheduler = MLFQ(MLFQ.Params())
    scheduler.prepare(Setup(swap_token_s=1e-6))
    home = Server(scheduler)
    long, newcomer = call(0, "a", new=99), call(1, "b")
    home.arrive(long)
    home.run_pass()
    home.step()
    home.arrive(newcomer)
    selection = scheduler.select(home.view, home.now_s)
    assert next(selection) is newcomer
    assert selection.send(False) == Preempt(long, swap=True)
    assert selection.send(False) == Preempt(long), "recomputed, because the host has no room"
    assert selection.send(True) is newcomer


def flooded(steps, **params):
    """Return when a long request ran while a request of one token arrives in each second."""
    home = server(**params)
    home.arrive(call(0, "a", new=9))
    home.run_pass()
    ran_s = []
    for second in range(steps):
        home.arrive(call(1 + second, "b", new=1))
        home.run_pass()
        if 0 in numbers(home.produced):
            ran_s.append(second)
        home.step()
    return ran_s


def test_a_stream_of_newcomers_starves_a_long_request_without_the_rule():
    assert flooded(300) == [0, 1]


def test_the_starvation_rule_lets_a_long_request_run_after_its_wait():
    # There is a pass at the start and in each second. The request stops at 2 s and starves from 6 s
    # on. Each 5th pass (at 3, 8, 13 s) searches, so it runs at 8 s, alone at level 0, and stops at
    # 10 s after its 2 s. It starves again at 14 s, and is found at 18 s.
    assert flooded(20, starved_s=4.0, starved_every=5) == [0, 1, 8, 9, 18, 19]


def test_the_starvation_rule_leaves_requests_that_ran_lately():
    home = server(starved_s=4.0, starved_every=1)
    long = call(0, "a", new=99)
    home.arrive(long)
    home.run_pass()
    home.run(2)
    home.arrive(call(1, "b", new=99))
    home.run_pass()
    home.run(3)
    assert level(home, long) == 1, "3 s after its last run"
    home.run(1)
    assert level(home, long) == 0


REQUESTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=20
)


@given(REQUESTS, st.integers(1, 3), st.sampled_from([0.0, 3.0]))
def test_every_request_ends_once_and_a_waiting_one_never_outranks_a_running_one(
    requests, slots, starved_s
):
    home = server(slots=slots, tokens=60, starved_s=starved_s, starved_every=2)
    state = home.scheduler._requests
    for number, (gap_s, tokens, new) in enumerate(requests):
        home.run(gap_s)
        home.arrive(call(number, "a", tokens, new=new))
        home.run_pass()
        waiting = [state[one].level for one in home.queue if one in home.view]
        running = [state[one].level for one in home.produced]
        if len(home.produced) == slots and waiting:
            assert min(waiting) >= max(running), "slots go to the highest levels"
        if starved_s:
            last_s = home.now_s - starved_s - 2
            assert all(state[one].level == 0 or state[one].counted_s > last_s for one in state)
    home.run(sum(new for *_, new in requests) + 1)
    assert sorted(numbers(home.finished)) == list(range(len(requests)))
    assert not state
    assert home.scheduler._waiting._entries == {}


def test_a_request_that_the_engine_retracts_waits_at_the_level_that_it_has_reached():
    home = server()
    long, newcomer = call(0, "a", new=99), call(1, "b", new=99)
    home.arrive(long)
    home.run_pass()
    for _ in range(3):
        home.step()
    del home.produced[long]
    home.scheduler.on_retract(long, home.view, home.now_s)
    home.view.enter(long)
    home.arrive(newcomer)
    assert level(home, long) == 1
    home.run_pass()
    assert numbers(home.admitted) == [0, 1]
