"""Test users in closed loops: their next requests, and a cluster's service."""

from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest

from fairbench.config.resolve import resolve
from fairbench.engine.clock import Clock
from fairbench.errors import UsageError
from fairbench.schedulers.routing.round_robin import RoundRobin
from fairbench.sim.cluster import Cluster, InFlightLimit
from fairbench.sim.run import simulate
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import LEAST_GAP_S, users_of

TABLE = {
    "name": "loops",
    "program": "single",
    "latency": "program",
    "clients": 2,
    "duration_s": 60.0,
    "warmup_s": 0.0,
    "max_drain_s": 60.0,
    "params": {"input_min": 50, "input_max": 150, "output_min": 20, "output_max": 60},
    "scenarios": {"s1": {"rate": 1.0}},
}


def spec(users=3, think_s=2.0, **scenario):
    arrivals = {"kind": "closed", "params": {"users": users, "think_s": think_s}}
    one = {"rate": 1.0, **scenario}
    return WorkloadSpec.model_validate(TABLE | {"arrivals": arrivals, "scenarios": {"s1": one}})


def loops(**changes):
    plan, *_ = plan_clients(spec(**changes), "s1")
    return plan, users_of(plan, seed=5)


def test_each_user_thinks_and_takes_every_nth_program():
    _, users = loops(users=3)
    begun = [[user.next(10.0 * turn) for turn in range(5)] for user in users]
    numbers = [[one.program.program_id for one in each] for each in begun]
    assert numbers == [[0, 3, 6, 9, 12], [1, 4, 7, 10, 13], [2, 5, 8, 11, 14]]
    for each in begun:
        assert all(one.at_s >= 10.0 * turn for turn, one in enumerate(each))
    _, users = loops(users=400)
    assert fmean(user.next(0.0).at_s for user in users) == pytest.approx(2.0, rel=0.2)


def test_requests_of_a_user_do_not_depend_on_time():
    one, two = loops()[1][0], loops()[1][0]
    fast = [one.next(float(turn)).program.demand for turn in range(5)]
    slow = [two.next(9.0 * turn).program.demand for turn in range(5)]
    assert fast == slow


def test_no_user_begins_after_the_end_and_refused_users_retry_rarely():
    _, (user, *_) = loops(think_s=0.0)
    begun = []
    while following := user.next(59.0 if not begun else begun[-1]):
        begun.append(following.at_s)
    assert begun[-1] < 60
    assert [b - a for a, b in pairwise(begun)] == pytest.approx([LEAST_GAP_S] * (len(begun) - 1))


def test_a_loop_without_thinking_lasts_for_hours():
    """Converted to float seconds, a third of all times at ten hours would be 1 ps too early."""
    _, users = loops(users=20, think_s=0.0)
    cluster = Cluster(Clock(), RoundRobin(RoundRobin.Params(), 1), [], ["client-0"])
    for number, user in enumerate(users):
        user._loop = replace(user._loop, until_s=1e9)
        cluster.clock.now_ps = now_ps = 36_000 * 10**12 + number * 1_234_567
        cluster._await_user(0, user)
        assert cluster.clock.next_ps() >= now_ps
        cluster.clock.drop_events()


def test_programs_that_are_refused_immediately_free_the_place_of_the_next():
    began, first = [], []

    def start(program, on_end):
        began.append(program)
        first.append(on_end) if program == 0 else on_end()

    limit = InFlightLimit(1, start)
    for number in range(3000):
        limit.arrive(number)
    assert began == [0]
    first[0]()
    assert began == list(range(3000))


def test_an_absent_user_begins_on_return_and_finally_never():
    _, (user, *_) = loops(think_s=0.0, presence={"windows": [[5.0, 10.0], [20.0, 30.0]]})
    assert [user.next(now).at_s for now in (0.0, 7.0, 12.0, 25.0)] == [5.0, 7.0, 20.0, 25.0]
    assert user.next(30.0) is None


@pytest.fixture(scope="module")
def run():
    return run_of_both()


def run_of_both():
    others = [{"client": 1, "rate": 2.0, "program": "single", "params": TABLE["params"],
               "arrivals": {"kind": "gamma"}}]  # fmt: skip
    workload = spec(users=4, think_s=1.0, others=others)
    return simulate(resolve({"workload": workload, "scheduler": "vtc", "seed": 3}))


def programs_of(run, number):
    table = run.programs
    names, wanted = table["client"].to_pylist(), f"client-{number}"
    times = zip(names, table["arrival_s"], table["finish_s"], strict=True)
    return sorted((start, end) for name, start, end in times if name == wanted)


def test_a_run_never_has_more_in_flight_than_users_and_open_clients_allow(run):
    loop, free = programs_of(run, 0), programs_of(run, 1)
    for start, _ in loop:
        assert sum(begin <= start < end for begin, end in loop) <= 4
    # Little's law: the rate is the number of users divided by the mean duration of a turn,
    # including think time.
    turn_s = fmean(end - start for start, end in loop) + 1.0
    assert len(loop) == pytest.approx(4 / turn_s * 60, rel=0.15)
    assert len(free) == pytest.approx(120, abs=45)
    assert max(start for start, _ in loop + free) < 60


def test_a_run_is_repeatable(run):
    assert run_of_both().summary == run.summary


def test_a_heavy_client_has_a_multiple_of_the_users():
    plans = plan_clients(spec(users=3, misbehaving=[{"client": 1, "rate_multiple": 4.0}]), "s1")
    assert [plan.arrivals.users for plan in plans] == [3, 12]


@pytest.mark.parametrize(
    ("scenario", "flags", "said"),
    [
        ({}, {"num_programs": 5}, "num_programs: not supported for arrivals of kind closed; give"),
        ({}, {"burstiness": 2.0}, "burstiness = 2"),
        (
            {"misbehaving": [{"client": 1, "until_fraction": 0.5}]},
            {},
            (
                r"^heavy client 1: until_fraction = 0\.5: not supported for "
                "arrivals of kind closed; leave until_fraction out$"
            ),
        ),
        (
            {"misbehaving": [{"client": 1, "in_flight": 2}]},
            {},
            (
                "misbehaving: padding_tokens, max_new_multiple, output_multiple, in_flight "
                "and reaction cannot be combined with closed arrivals"
            ),
        ),
    ],
)
def test_settings_impossible_in_a_loop_are_refused(scenario, flags, said):
    with pytest.raises(UsageError, match=said):
        plan_clients(spec(**scenario), "s1", **flags)
