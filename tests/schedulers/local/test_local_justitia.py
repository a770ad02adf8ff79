"""Test Justitia: virtual finishes by hand, and against a server that really shares its time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import NoBound
from fairbench.schedulers.base import Setup
from fairbench_rivals.local.justitia import FluidShares, Justitia
from tests.schedulers.local.local_server import Server, call

PROGRAMS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 50), st.sampled_from([0.5, 1.0, 2.0])),
    min_size=1,
    max_size=8,
).map(sorted)


def test_virtual_time_passes_at_the_rate_of_the_sharing_programs():
    shares = FluidShares()
    assert (shares.add_program(100, 1), shares.add_program(50, 1)) == (100, 50)
    shares.advance_to(4.0, 10.0)
    assert shares.virtual == 20  # 5 a second each
    assert shares.add_program(15, 1) == 35
    shares.advance_to(8.5, 10.0)
    assert shares.virtual == 35  # a third of 10 each, for 4.5 s
    shares.advance_to(14.5, 10.0)
    assert shares.virtual == 80  # 3 s to 50 at 5 a second, then 3 s at 10
    shares.advance_to(1000.0, 10.0)
    assert shares.virtual == 100, "nobody is left, and virtual time stands still"
    assert shares.add_program(7, 1) == 107


def fluid_ends(programs, rate):
    """Return the ends of programs on a server shared by weight, in very small steps of work."""
    left = [float(cost) for _, cost, _ in programs]
    ends = [0.0] * len(programs)
    now = 0.0
    while any(work > 1e-9 for work in left):
        active = [n for n, (at, _, _) in enumerate(programs) if at <= now and left[n] > 1e-9]
        arrivals = [at for at, _, _ in programs if at > now]
        if not active:
            now = min(arrivals)
            continue
        weight = sum(programs[n][2] for n in active)
        until = min(left[n] * weight / (programs[n][2] * rate) for n in active)
        until = min([until, *(at - now for at in arrivals)])
        for n in active:
            left[n] -= until * rate * programs[n][2] / weight
            ends[n] = now + until
        now += until
    return ends


@given(PROGRAMS)
def test_virtual_finishes_are_in_the_order_in_which_fair_sharing_ends(programs):
    shares, finishes = FluidShares(), []
    for at, cost, weight in programs:
        shares.advance_to(float(at), 3.0)
        finishes.append(shares.add_program(cost, weight))
    ends = fluid_ends(programs, 3.0)
    order = sorted(range(len(programs)), key=finishes.__getitem__)
    for earlier, later in pairwise(order):
        assert ends[earlier] <= ends[later] + 1e-6


@given(PROGRAMS)
def test_in_turn_no_program_ends_later_than_when_shared_by_more_than_the_largest_one(programs):
    """The bound is the worst-case delay of fair queueing, which [Justitia] applies to memory."""
    rate = 3.0
    shares, finishes = FluidShares(), []
    for at, cost, weight in programs:
        shares.advance_to(float(at), rate)
        finishes.append(shares.add_program(cost, weight))
    ends = fluid_ends(programs, rate)
    largest = max(cost for _, cost, _ in programs)
    now, left = 0.0, set(range(len(programs)))
    while left:
        waiting = [n for n in left if programs[n][0] <= now]
        if not waiting:
            now = float(min(programs[n][0] for n in left))
            continue
        chosen = min(waiting, key=finishes.__getitem__)
        left.remove(chosen)
        now += programs[chosen][1] / rate
        assert now <= ends[chosen] + largest / rate + 1e-6


def justitia(**params):
    scheduler = Justitia(Justitia.Params(**params))
    scheduler.prepare(Setup(pool_tokens=30, weights={"gold": 2}))
    return scheduler


def order(scheduler, *calls):
    home = Server(scheduler, slots=99)
    home.arrive(*calls)
    home.run_pass()
    return [request.request_id for request in home.admitted]


def test_a_call_costs_its_prompt_and_half_its_outputs_for_each_output():
    short, long = call(0, "a", 100, new=20), call(1, "b", 10, new=60)
    # 100 x 20 + 200 = 2,200 against 10 x 60 + 1,800 = 2,400; in tokens, 140 against 130
    assert order(justitia(), long, short) == [0, 1]
    assert order(justitia(cost="tokens"), long, short) == [1, 0]


def test_all_calls_of_a_program_have_its_virtual_finish():
    first = call(0, "a", 10, new=10, program=7, left=2)  # 3 calls of 150
    other = call(1, "b", 10, new=20)  # 400
    assert order(justitia(), first, other) == [1, 0]
    second = call(2, "a", 10, new=500, program=7, left=1)
    late = call(3, "b", 10, new=25)  # 562.5
    assert order(justitia(), first, second, late) == [0, 2, 3], "450, whatever the second costs"


def test_a_weight_divides_the_cost():
    assert order(justitia(), call(0, "plain", 10, new=20), call(1, "gold", 10, new=25)) == [1, 0]


def test_the_average_predicts_from_programs_that_have_ended():
    scheduler = justitia(predictor="average")
    home = Server(scheduler, slots=1)
    home.arrive(call(0, "a", 10, new=2))  # 22
    home.run_pass()
    home.run(3)
    assert [request.request_id for request in home.finished] == [0]
    assert order(scheduler, call(1, "b", 10, new=3), call(2, "a", 10, new=500)) == [2, 1]


def test_the_output_states_the_bound():
    assert isinstance(justitia().service_bound(), NoBound)
