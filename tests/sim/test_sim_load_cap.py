"""Test the load cap in the simulated engines."""

from dataclasses import replace

import pytest

from fairbench.config.resolve import resolve
from fairbench.config.spec import to_toml
from fairbench.core import Request
from fairbench.errors import UsageError
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.run import Simulation, simulate
from tests.invariants import assert_same_records, check_all
from tests.sim.sim_helpers import PLAIN, Home, prompt, small_spec

# A step takes 1,000 us, 10 us per request and 1 us per token of context, so a request costs 10
# tokens.
COEFFICIENTS = PLAIN.coefficients_ms | {"c0": 0.5, "c_w": 0.5, "c_K": 0.001}
READS = replace(PLAIN, coefficients_ms=COEFFICIENTS)
ENGINES = {"sglang": "engine", "vllm": "vllm", "lightllm": "lightllm"}


def capped_spec(engine, cap, scheduler="dlpm", **more):
    flags = {"engine": engine, "num_programs": 4, "request_rate": 8.0}
    more[f"{ENGINES[engine]}__load_cap"] = cap
    return small_spec(scheduler, "chat", flags=flags, **more)


def test_two_requests_run_and_the_third_waits_for_one_of_them():
    """A prompt of 100 tokens counts 100 + 64 + 10 = 174, with half of 128 expected outputs."""
    home = Home(profile=READS, load_cap=2 * 174)
    first, second, third = (home.send(100, output) for output in (5, 9, 2))
    home.run()
    assert first.admitted_ps == second.admitted_ps == 0
    assert third.admitted_ps == first.finish_ps
    assert home.worker.cap.tokens == 0


def test_a_full_batch_makes_no_pass_before_it_shrinks():
    home = Home(profile=READS, load_cap=200)
    home.send(100, 50)
    home.send(100, 1)
    home.run()
    assert home.scheduler.passes == 3  # once per request, and when the first has finished


def test_a_request_above_the_cap_runs_alone():
    home = Home(profile=READS, load_cap=1)
    sent = [home.send(100, 3, at_ps=at_ps) for at_ps in (0, 1, 2)]
    home.run()
    assert [one.admitted_ps for one in sent[1:]] == [one.finish_ps for one in sent[:-1]]


def test_learned_outputs_admit_more():
    home = Home(profile=READS, load_cap=2 * 174)
    home.send(100, 2)  # from then on, 2 outputs are expected, so a request costs 111
    later = [home.send(100, 4, at_ps=10**11) for _ in range(4)]
    home.run()
    assert [one.admitted_ps for one in later[:3]] == [10**11] * 3
    assert later[3].admitted_ps == later[0].finish_ps


def test_a_cap_that_forgets_expects_128_outputs_again():
    cap = LoadCap(1_000)
    first, second, third = (Request(n, "x", n, 0, prompt("p", 100), 100, 9, 0.0) for n in range(3))
    cap.enter(first)
    cap.finish(first, 2)
    cap.enter(second)
    assert cap.tokens == 100 + 2 / 2
    cap.forget()
    cap.enter(third)
    assert cap.tokens == 100 + 2 / 2 + 100 + 128 / 2


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_exceeds_the_cap_and_only_running_requests_count(engine):
    spec = capped_spec(engine, most := 6_000)
    simulation = Simulation(spec, spec.client_plans(), None)
    step, worker = simulation.clock.step, simulation.cluster.workers[0]
    full = 0

    def checked():
        nonlocal full
        step()
        cap = worker.cap
        assert len(cap) == worker.running_count
        assert cap.tokens <= most or len(cap) == 1
        full += most - cap.tokens < 1_500

    simulation.clock.step = checked
    simulation.run()
    result = simulation.result(True, None)
    if engine == "sglang":
        check_all(result)
    assert full > 20, "the cap was never in the way"
    assert worker.cap.tokens == 0
    assert result.summary["completed"] == result.summary["num_requests"]


@pytest.mark.parametrize("scheduler", ["lpm", "d2lpm"])
def test_step_by_step_gives_the_same_tables_also_with_retractions(scheduler):
    small = {"pool": 2_500, "engine__load_cap": 12_000}
    fast = simulate(small_spec(scheduler, "tot", **small))
    slow = simulate(small_spec(scheduler, "tot", engine__step_by_step=True, **small))
    assert_same_records(fast, slow)
    assert fast.requests["retractions"].sum() > 0


def test_without_a_cap_an_experiment_has_no_trace_of_it():
    assert "load_cap" not in to_toml(resolve({}))
    named, huge = (simulate(capped_spec("sglang", cap)) for cap in ("none", 10**9))
    assert_same_records(named, huge)


@pytest.mark.parametrize("wrong", ["many", 0, -5, 1.5, True])
def test_invalid_caps_are_refused(wrong):
    with pytest.raises(UsageError, match=r"engine.load_cap = .*: the load cap must be auto, none"):
        resolve({}, {"engine.load_cap": wrong})
