"""Test Equinox, FairServe and Autellix on hand-computed examples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.base import Setup
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.prefix_tree import Node
from fairbench.schedulers.program_states import IDLE_PROGRAMS, ProgramStates
from fairbench.schedulers.views import Waiting
from fairbench_rivals.local.autellix import Autellix
from fairbench_rivals.local.equinox import Equinox
from fairbench_rivals.local.fairserve import FairServe
from fairbench_rivals.local.hrrn import HRRN
from fairbench_rivals.local.shortest_prefill_first import ShortestPrefillFirst
from tests.schedulers.local.local_server import Server, call


def at_home(scheduler, slots=1, **setup):
    scheduler.prepare(Setup(**setup))
    return Server(scheduler, slots=slots)


def numbers(requests):
    return [request.request_id for request in requests]


# Equinox


def equinox(**params):
    params = {"step_s": 1.0, "prefill_token_s": 0.1, "predictor": "oracle"} | params
    return Equinox(Equinox.Params(**params))


def test_equinox_charges_slow_waiting_clients_less():
    scheduler = equinox(latency_weight=0.5)
    home = at_home(scheduler, slots=2)
    home.arrive(call(0, "a", 20, new=8, at_s=-10.0), call(1, "b", 20, new=8))
    home.run_pass()
    # 20 + 2 x 8 over 1 + (waited + 20 x 0.1 + 8) / 2; 28 tokens in 10 s on a full pool
    assert scheduler.user == {"a": 36 / 11, "b": 36 / 6}
    assert scheduler.resource == {"a": 2.8, "b": 2.8}
    assert scheduler.balances()["a"] == pytest.approx(0.7 * 6 / 11 + 0.3)


def test_equinox_corrects_both_counters_by_the_true_output():
    scheduler = equinox()
    home = at_home(scheduler)
    cut_short = call(0, "a", 20, new=8)
    home.arrive(cut_short)
    home.run_pass()
    for _ in range(3):
        scheduler.on_request_tokens(cut_short, 1)
    scheduler.on_finish(cut_short)
    assert scheduler.user["a"] == pytest.approx((20 + 2 * 3) / (1 + 0.1 * (2 + 3)))
    assert scheduler.resource["a"] == pytest.approx(23 / 5)


def test_equinox_predicts_by_a_moving_average():
    scheduler = equinox(predictor="average", latency_weight=0.0)
    home = at_home(scheduler)
    for number, made in enumerate([10, 20]):
        home.arrive(call(number, "a", 5, new=made))
        home.run_pass()
        home.run(made + 1)
    before = scheduler.user["a"]
    home.arrive(call(2, "a", 5, new=99))
    home.run_pass()
    assert scheduler.user["a"] - before == 5 + 2 * round((4 * 10 + 20) / 5)


def test_equinox_weighs_the_two_counters():
    for share, expected in ((1.0, "a"), (0.0, "b")):
        scheduler = equinox(user_share=share)
        home = at_home(scheduler)
        home.arrive(call(0, "a"), call(1, "b"))
        scheduler.user.update(a=1.0, b=2.0)
        scheduler.resource.update(a=2.0, b=1.0)
        home.run_pass()
        assert home.admitted[0].client == expected


# highest response ratio next


ROOT = Node(None, (), 0)


class Matched(list):
    """A queue of (number, prompt tokens, cached tokens, tokens waited for, duplicate)."""

    def matches(self):
        return [
            Waiting(call(number, "a", tokens), tokens, cached, duplicate, waited, number, ROOT)
            for number, tokens, cached, waited, duplicate in self
        ]


@pytest.mark.parametrize(
    ("queue", "order"),
    [
        # waits of 300 and 150 tokens over work of 100 and 25
        ([(1, 100, 0, 300, False), (2, 100, 75, 150, False)], [2, 1]),
        # equal ratios go by the text of their ids, as in SGLang
        ([(9, 50, 0, 100, False), (10, 50, 0, 100, False)], [10, 9]),
        ([(1, 50, 0, 900, True), (2, 50, 0, 0, False), (3, 50, 50, 0, False)], [3, 2, 1]),
    ],
)
def test_hrrn_equals_a_hand_computed_order(queue, order):
    scheduler = HRRN(HRRN.Params(queue_limit=3))
    assert numbers(scheduler.sort_queue(Matched(queue))) == order


def test_hrrn_leaves_a_queue_above_its_limit_as_it_is():
    queue = Matched([(number, 50, 0, number, False) for number in range(4)])
    assert HRRN(HRRN.Params(queue_limit=3)).sort_queue(queue) is None
    assert numbers(HRRN(HRRN.Params(queue_limit=4)).sort_queue(queue)) == [3, 2, 1, 0]
    assert numbers(HRRN(HRRN.Params(queue_limit=0)).sort_queue(queue)) == [3, 2, 1, 0]


# shortest prefill first


def test_shortest_prefill_first_goes_by_uncached_tokens_and_defers_duplicates():
    scheduler = ShortestPrefillFirst(ShortestPrefillFirst.Params())
    queue = [(1, 100, 0), (2, 300, 260), (5, 40, 0), (4, 70, 70), (3, 9, 8)]
    queue = [(*one, 0, False) for one in queue] + [(0, 20, 15, 0, True)]
    # works of 1, 1, 40, 40 and 100 tokens, and 5 tokens of a prefix that another request computes
    assert numbers(scheduler.sort_queue(Matched(queue))) == [3, 4, 2, 5, 1, 0]


@pytest.mark.parametrize(
    ("left", "budget", "limit"),
    [
        (100, 64, 64 - 10 - 20),  # the third request would need 40 of the other 34 tokens
        (100, 71, 1),
        (100, 70, 70 - 10 - 20),  # not even one token would be left
        (20, 64, 64 - 10),  # the second request is not shorter
        (21, 64, 64 - 10 - 20),
        (10, 64, None),
        (100, 10, None),
    ],
)
def test_a_chunk_leaves_room_for_shorter_waiting_prompts(left, budget, limit):
    scheduler = ShortestPrefillFirst(ShortestPrefillFirst.Params())
    works = [(1, 10), (2, 20), (3, 40)]
    scheduler.sort_queue(Matched((number, work, 0, 0, False) for number, work in works))
    assert scheduler.chunk_limit(left, budget) == limit


# FairServe


def fairserve(**params):
    return FairServe(FairServe.Params(**params))


def test_fairserve_counts_in_typical_requests_of_the_application():
    scheduler = fairserve(applications={"a": "writing", "b": "chat", "c": "chat"})
    home = at_home(scheduler, slots=9)
    home.arrive(call(0, "a", 100, new=450), call(1, "b", 10, new=45))
    home.run_pass()
    # Two requests each: a start with 1,000 and 100 tokens, then 100 and 10 more.
    assert scheduler.counters == {"a": pytest.approx(100 / 550), "b": pytest.approx(10 / 55)}
    plain = fairserve(normalise=False)
    home = at_home(plain, slots=9)
    home.arrive(call(0, "a", 100, new=450), call(1, "b", 10, new=45))
    home.run_pass()
    assert plain.counters == {"a": 100, "b": 10}


def test_fairserve_throttles_only_under_overload_and_between_interactions():
    scheduler = fairserve(user_rpm=3, overload_waiting=2)
    home = at_home(scheduler)
    home.arrive(*(call(n, "a", new=99) for n in range(5)))
    # When the third request comes, two wait, which is within the limit. The fourth exceeds it.
    assert numbers(home.refused) == [3, 4]
    home.arrive(call(5, "a", depth=1))
    assert numbers(home.refused) == [3, 4], "in the middle of an interaction"
    home.arrive(call(6, "b"))
    assert numbers(home.refused) == [3, 4], "another user"
    home.now_s = 60.0
    home.arrive(call(7, "a"))
    assert numbers(home.refused) == [3, 4], "a minute later"
    calm = at_home(fairserve(user_rpm=3, overload_waiting=99))
    calm.arrive(*(call(n, "a") for n in range(50)))
    assert calm.refused == []


def test_fairserve_limits_applications_too():
    scheduler = fairserve(
        applications={"a": "chat", "b": "chat"}, application_rpm=2, overload_waiting=1
    )
    home = at_home(scheduler)
    home.arrive(call(0, "a"), call(1, "b"), call(2, "a"), call(3, "c"))
    assert numbers(home.refused) == [2]


@pytest.mark.parametrize("make", [equinox, fairserve])
def test_a_returning_client_is_owed_nothing(make):
    scheduler = make()
    home = at_home(scheduler)
    home.arrive(*(call(n, "a", new=5) for n in range(40)))
    home.run_pass()
    home.run(100)
    home.arrive(*(call(100 + n, "b", new=5) for n in range(20)))
    done = len(home.admitted)
    home.run(60)
    served = [request.client for request in home.admitted[done:]]
    assert abs(served.count("a") - served.count("b")) <= 2


# Autellix


def autellix(**params):
    params = {"step_s": 1.0, "prefill_token_s": 0.0, "first_s": 4.0, "queues": 3} | params
    return Autellix(Autellix.Params(**params))


def test_a_program_with_more_service_waits():
    scheduler = autellix(beta=0.0)
    home = at_home(scheduler)
    home.arrive(call(0, "a", new=5, program=1, left=1))
    home.run_pass()
    home.run(5)
    home.arrive(call(1, "a", program=1, left=0), call(2, "b", program=2, left=0))
    home.run_pass()
    assert numbers(home.admitted) == [0, 2], "5 s of service are the second queue"


PROGRAMS = {"A": [4, 3, 1, 1], "B": [3, 3, 4], "C": [1, 2], "D": [4]}  # steps of each call


def units_waited(scheduler):
    """Return the total wait (steps) of four programs that arrive together, if two run.

    The programs are those of [Autellix] Fig. 2.
    """
    home = Server(scheduler, slots=2)
    number, made, waited = 0, dict.fromkeys(PROGRAMS, 0), 0
    ended = list(PROGRAMS)
    while True:
        for name in ended:
            if (which := made[name]) == len(PROGRAMS[name]):
                waited += home.now_s - sum(PROGRAMS[name])
                continue
            left = len(PROGRAMS[name]) - which - 1
            new = PROGRAMS[name][which]
            home.arrive(call(number, name, 1, new=new, program=ord(name), left=left))
            number, made[name] = number + 1, which + 1
        home.run_pass()
        if not home.produced:
            return waited
        before = len(home.finished)
        home.step()
        ended = [request.client for request in home.finished[before:]]


def test_the_example_of_the_paper_takes_the_time_of_the_paper():
    assert units_waited(FCFS(FCFS.Params())) == 18
    fine = {"policy": "plas", "queues": 9, "first_s": 0.5, "preempt_every_s": 0.0, "beta": 0.0}
    assert units_waited(autellix(**fine)) == 12


@pytest.mark.parametrize(("policy", "queue"), [("plas", 1), ("atlas", 0)])
def test_parallel_calls_add_up_or_count_by_the_longest_one(policy, queue):
    scheduler = autellix(policy=policy)
    home = at_home(scheduler, slots=2)
    home.arrive(*(call(n, "a", new=3, program=1, left=2 - n) for n in range(2)))
    home.run_pass()
    home.run(3)
    third = call(2, "a", program=1, left=0)
    home.arrive(third)
    assert scheduler._calls[third].queue == queue  # 3 + 3, or 3


def test_a_call_is_demoted_when_its_quantum_is_over_and_preempted_by_a_newcomer():
    for preempt, expected in ((True, [0, 1]), (False, [0])):
        scheduler = autellix(preempt=preempt, preempt_every_s=0.0)
        home = at_home(scheduler)
        long = call(0, "a", new=50)
        home.arrive(long)
        home.run_pass()
        home.run(3)
        assert scheduler._calls[long].queue == 0
        home.run(1)
        assert scheduler._calls[long].queue == 1
        home.arrive(call(1, "b", new=2))
        home.run_pass()
        assert numbers(home.admitted) == expected
        assert numbers(home.preempted) == expected[:1][: len(expected) - 1]


def test_waiting_beta_times_the_service_moves_a_program_to_the_first_queue():
    scheduler = autellix(beta=2.0, preempt=False)
    home = at_home(scheduler)
    home.arrive(call(0, "a", new=6, program=1, left=1), call(1, "c", new=20))
    home.run_pass()
    home.run(6)
    waits = call(2, "a", program=1, left=0)
    home.arrive(waits)
    home.run(11)  # the program has waited 11 s for 6 s of service
    assert scheduler._calls[waits].queue == 1
    home.run(1)
    assert scheduler._calls[waits].queue == 0
    never = autellix(beta=0.0)
    home = at_home(never)
    home.arrive(call(0, "a", new=6, program=1, left=1))
    home.run_pass()
    home.run(6)
    starved = call(1, "a", program=1, left=0)
    home.arrive(starved, call(1000, "b"))
    for number in range(300):
        home.arrive(call(2 + number, "b", new=1))
        home.run_pass()
        home.run(1)
    assert starved not in home.admitted, "without promotion short programs starve a long one"


class LooksAtAll(Autellix):
    """An oracle that checks every call in every pass."""

    def _promote(self, now_s):
        promotions = self._promotions
        promotions.heap = [
            (at_s, call.place, 0, request)
            for request, call in self._calls.items()
            if (at_s := promotions.time_s(request, call)) <= now_s
        ]
        promotions.heap.sort()
        super()._promote(now_s)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 9)), min_size=1, max_size=25
    ),
    st.sampled_from(["plas", "atlas"]),
)
def test_promotions_equal_a_check_of_every_call(calls, policy):
    params = {"beta": 0.5, "policy": policy, "first_s": 1.0, "preempt_every_s": 2.0}
    promoted = []
    for kind in (Autellix, LooksAtAll):
        scheduler = kind(Autellix.Params(step_s=1.0, prefill_token_s=0.001, **params))
        home = at_home(scheduler, slots=2)
        seen = []
        for number, (gap, program, new) in enumerate(calls):
            home.run(gap)
            home.arrive(call(number, "a", new=new, program=program, left=1))
            home.run_pass()
            seen.append({one.request_id: c.queue == 0 for one, c in scheduler._calls.items()})
        home.run(20)
        promoted.append(seen)
    assert promoted[0] == promoted[1]


def test_programs_are_forgotten_when_they_end():
    programs = ProgramStates(list)
    first, second, last = (call(n, "a", program=1, left=2 - n) for n in range(3))
    state, new = programs.begin_call(first)
    assert new
    assert not programs.end_call(first), "two calls are to come"
    assert programs.begin_call(second) == (state, False)
    assert programs.begin_call(last) == (state, False)
    assert not programs.end_call(last), "the previous call is in flight"
    assert programs.end_call(second)
    assert len(programs) == 0
    for number in range(IDLE_PROGRAMS + 5):  # programs whose end is unknown
        unknown = call(number, "a", program=number + 1, left=None)
        programs.begin_call(unknown)
        programs.end_call(unknown)
    assert len(programs) == IDLE_PROGRAMS
    single = call(0, "a", program=0, left=None)
    programs.begin_call(single)
    programs.end_call(single)
    assert len(programs) == IDLE_PROGRAMS, "one without a program is over with its call"
