"""Test a client's stream of programs: names, ids, draws, real input, determinism."""

import os
import subprocess
import sys
from copy import copy
from itertools import islice

import pytest

from fairbench.workloads.clients import plan_clients
from fairbench.workloads.items import Item
from fairbench.workloads.plan import MADE_AHEAD, made_ahead, program_stream
from fairbench.workloads.spec import load_workload
from tests.workloads.workload_fakes import calls_of


def plans(workload="tot", scenario="s1", **arguments):
    return plan_clients(load_workload(workload), scenario, **arguments)


def programs(plan, seed=0, **arguments):
    return list(program_stream(plan, seed=seed, **arguments))


def test_program_ids_are_unique_over_clients():
    ids = [p.program_id for plan in plans(num_programs=5) for _, p in programs(plan)]
    assert ids == [*range(5), *range(10**7, 10**7 + 5), *range(2 * 10**7, 2 * 10**7 + 5)]


def test_programs_name_their_client():
    plan = plans(num_programs=2)[1]
    assert {p.client for _, p in programs(plan)} == {"client-1"}


@pytest.mark.parametrize("workload", ["tot", "long-qa"])
def test_a_heavy_client_does_not_change_well_behaved_programs(workload):
    kind = load_workload(workload).program
    for calm, s1 in zip(plans(workload, "none")[1:], plans(workload, "s1")[1:], strict=True):
        first = [(t, p.demand) for t, p in programs(calm, kind)]
        assert first == [(t, p.demand) for t, p in programs(s1, kind)]


def test_shapes_do_not_depend_on_arrivals():
    bursty, smooth = plans(burstiness=0.2)[1], plans(burstiness=5.0)[1]
    pairs = zip(programs(bursty), programs(smooth), strict=False)
    different_times = False
    for (t1, p1), (t2, p2) in pairs:
        assert p1.demand == p2.demand
        different_times |= t1 != t2
    assert different_times


def test_clients_and_seeds_give_different_streams():
    _, one, two = plans()
    assert [t for t, _ in programs(one)] != [t for t, _ in programs(two)]
    assert [t for t, _ in programs(one, seed=0)] != [t for t, _ in programs(one, seed=1)]


def test_clients_of_one_kind_send_their_own_programs():
    calm = plan_clients(load_workload("tot"), "none", num_programs=4)
    first, second, third = ([p.demand for _, p in programs(plan)] for plan in calm)
    assert not any(len({*demands}) == 1 for demands in zip(first, second, third, strict=True))


def test_streams_are_lazy():
    plan = plans(num_programs=10**9)[1]
    assert len(list(islice(program_stream(plan, seed=0), 3))) == 3


@pytest.mark.parametrize("count", [0, 1, MADE_AHEAD, MADE_AHEAD + 1, 3 * MADE_AHEAD - 1])
def test_programs_made_ahead_are_the_same_and_few(count):
    left = iter(range(count))
    ahead = made_ahead(left)
    for number in range(count):
        assert next(ahead) == number
        assert count - len([*copy(left)]) <= number + MADE_AHEAD
    assert next(ahead, None) is None


def test_items_are_distributed_over_the_clients_in_rotation():
    class Numbered:
        def item(self, seed, number):
            return Item(f"item/{number}", 50)

    seen = [
        calls_of(p)[0].prompt[1].key
        for plan in plans(num_programs=2)
        for _, p in programs(plan, source=Numbered())
    ]
    # Client i of 3 gets items i and i + 3.
    numbers = [0, 3, 1, 4, 2, 5]
    assert seen == [f"item/{number}/question" for number in numbers]


@pytest.mark.slow
def test_the_hash_seed_changes_nothing():
    script = (
        "from fairbench.workloads.clients import plan_clients\n"
        "from fairbench.workloads.plan import program_stream\n"
        "from fairbench.workloads.spec import load_workload, workload_names\n"
        "for name in workload_names():\n"
        "    spec = load_workload(name)\n"
        "    for plan in plan_clients(spec, 's1', duration_s=20.0):\n"
        "        for t, p in program_stream(plan, seed=3):\n"
        "            print(t, p.program_id, p.demand)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().splitlines()) > 30
