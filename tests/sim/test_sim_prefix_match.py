"""Test that the CPU time of matching a waiting queue delays the iteration after the pass."""

import pytest

from fairbench.schedulers.local.lpm import LPM
from fairbench.sim.run import simulate
from tests.invariants import assert_same_records
from tests.sim.sim_helpers import US, Home, Spy, SpyLPM, small_spec

STEP_US = 1_010  # the time of one sequence, and of the prefill of one token


def finishes(scheduler, **limits):
    """Return the ends (us) of requests of three tokens and of one token, run one at a time."""
    home = Home(scheduler, max_running_requests=1, **limits)
    sent = [home.send(1, 3), home.send(1, 1)]
    home.run()
    return [one.finish_ps // US for one in sent]


def test_each_waiting_request_that_a_pass_matches_delays_the_gpu():
    # Two requests are matched before the first prompt, and one before the second. A full batch
    # makes no pass.
    first = 2 * 100 + 3 * STEP_US
    assert finishes(SpyLPM(), prefix_match_us=100) == [first, first + 100 + STEP_US]


@pytest.mark.parametrize("scheduler", [Spy, SpyLPM])
def test_by_default_matching_costs_nothing(scheduler):
    assert finishes(scheduler()) == [3 * STEP_US, 4 * STEP_US]


def test_a_scheduler_that_matches_nothing_pays_nothing():
    assert finishes(Spy(), prefix_match_us=100) == finishes(Spy())


def test_lpm_pays_nothing_above_its_queue_limit():
    limited = LPM(LPM.Params(queue_limit=1))
    first = 3 * STEP_US
    assert finishes(limited, prefix_match_us=100) == [first, first + 100 + STEP_US]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_closed_form_and_single_steps_give_the_same_records(engine):
    part = "engine" if engine == "sglang" else "vllm"

    def result(step_by_step):
        own = {f"{part}__prefix_match_us": 300.0, f"{part}__step_by_step": step_by_step}
        return simulate(small_spec("dlpm", "chat", flags={"engine": engine}, **own))

    delayed, free = result(False), simulate(small_spec("dlpm", "chat", flags={"engine": engine}))
    assert_same_records(delayed, result(True))
    assert delayed.summary["time_to_100pct_s"] > free.summary["time_to_100pct_s"]
