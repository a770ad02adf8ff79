"""Test the engine of 2024: passes are ten steps apart, and siblings run without a limit."""

from math import ceil

import pytest

from fairbench.config.resolve import resolve
from fairbench.engine.sglang import PassInterval
from fairbench.hardware.engine_params import EngineParams, engine_limits
from fairbench.sim.run import simulate
from tests.invariants import assert_same_records, run_checked
from tests.sim.sim_helpers import PLAIN, US, Home, Spy, SpyLPM, prompt, small_spec

STEP_US = 1_010  # the time of one sequence, and of the prefill of one token


class OneIsEnough(Spy):
    """A scheduler that never admits a second request, even if there is room."""

    def select(self, view, now_s):
        self.passes += 1
        if not self.admissions:
            yield view.oldest("x")


@pytest.mark.parametrize(("every", "step"), [(1, 13), (10, 20), (13, 13), (20, 20)])
def test_arrivals_between_passes_wait_for_the_next_pass(every, step):
    home = Home(num_continuous_decode_steps=every)
    home.send(1, 40)
    late = home.send(1, 1, at_ps=14_000 * US)  # during the 13th step
    home.run()
    assert late.admitted_ps == (step + 1) * STEP_US * US


def test_a_prefill_is_not_a_step_and_an_empty_batch_does_not_wait():
    home = Home(num_continuous_decode_steps=10, chunked_prefill_size=4)
    long = home.send(10, 3)  # three chunks, one after the other
    home.send(1, 1, at_ps=500 * US)
    after = home.send(1, 1, at_ps=9_000 * US)
    home.run()
    assert [(sequences, tokens) for _, sequences, tokens in home.prefills()] == [
        (1, 4), (1, 4), (2, 3), (1, 1),
    ]  # fmt: skip
    assert after.admitted_ps == max(9_000 * US, long.finish_ps)


@pytest.mark.parametrize("every", [1, 10, 30, 31])
def test_passes_are_counted(every):
    home = Home(OneIsEnough(), num_continuous_decode_steps=every)
    home.send(1, 32)  # its prefill, then 31 steps
    home.send(1, 1)
    home.run()
    # The first pass, then passes after 0, every, 2 every ... steps, and when no request runs any
    # more.
    assert home.scheduler.passes == 1 + ceil(31 / every) + 1


def test_steps_are_counted_from_pass_to_pass():
    passes = PassInterval(10)
    assert passes.is_due(0, decoding=False)
    assert [n for n in range(1, 35) if passes.is_due(n, decoding=True)] == [10, 20, 30]
    assert passes.is_due(37, decoding=False)  # all requests have left
    assert [passes.steps_to_pass(n) for n in (37, 38, 46, 47)] == [10, 9, 1, 10]
    assert PassInterval(1).steps_to_pass(5) == 1


@pytest.mark.parametrize(
    ("scheduler", "workload", "mixed"),
    [("d2lpm", "chat", False), ("lpm", "tot", False), ("d2lpm", "tot", True)],
)
def test_step_by_step_gives_the_same_tables(scheduler, workload, mixed):
    settings = {"pool": 9_000, "engine__num_continuous_decode_steps": 10}
    if mixed:
        settings |= {"engine__enable_mixed_chunk": True, "engine__chunked_prefill_size": 512}
    fast = run_checked(small_spec(scheduler, workload, **settings))
    slow = simulate(small_spec(scheduler, workload, engine__step_by_step=True, **settings))
    assert_same_records(fast, slow)


@pytest.mark.parametrize(("in_batch", "order"), [(True, [0, 2, 1]), (False, [0, 1, 2])])
def test_siblings_of_a_cold_request_come_last_only_if_configured(in_batch, order):
    home = Home(SpyLPM(), in_batch_prefix_caching=in_batch)
    for parts in (("doc", 40, "a", 5), ("doc", 40, "b", 5), ("c", 45)):
        home.send(prompt(*parts), 2)
    home.run()
    assert [request for request, *_ in home.scheduler.admissions] == order


def test_a_delayed_sibling_finds_its_prefix_cached():
    computed = {}
    for in_batch in (True, False):
        home = Home(SpyLPM(), max_prefill_tokens=90, in_batch_prefix_caching=in_batch)
        for parts in (("doc", 40, "a", 5), ("doc", 40, "b", 5), ("c", 45)):
            home.send(prompt(*parts), 2)
        home.run()
        computed[in_batch] = {request: extend for request, extend, _ in home.scheduler.admissions}
    assert computed == {True: {0: 45, 2: 45, 1: 5}, False: {0: 45, 1: 45, 2: 45}}


def test_without_the_full_mark_a_request_enters_once_reservations_have_shrunk():
    admitted = {}
    for mark in (True, False):
        home = Home(pool=1_100, marks_full_batch=mark)
        first = home.send(10, 150, max_new=1_000)
        late = home.send(400, 20, at_ps=5_000 * US)
        home.run()
        admitted[mark] = late.admitted_ps, first.finish_ps
    # After n steps, 1,089 - n tokens are free, and (999 - n) x (0.7 - n / 1,000) are reserved.
    # About 390 remain when the second request arrives, which needs 421, and 0.7 more after each
    # step.
    assert admitted[True][0] == admitted[True][1]
    assert 30_000 * US < admitted[False][0] < 80_000 * US


def test_the_mark_is_a_setting_of_the_simulated_engine():
    flags = {"workload": "chat", "scheduler": "fcfs", "num_programs": 1}
    assert engine_limits(EngineParams(), PLAIN).marks_full_batch
    assert not engine_limits(EngineParams(batch_is_full=False), PLAIN).marks_full_batch
    spec = resolve(flags, {"engine.batch_is_full": False})
    assert spec.settings["engine.batch_is_full"] is False


def test_the_preset_of_the_dlpm_paper_has_the_engine_of_2024():
    flags = {"preset": "dlpm-paper", "workload": "chat", "scheduler": "d2lpm", "num_programs": 1}
    spec = resolve(flags)
    assert spec.settings["engine.num_continuous_decode_steps"] == 10
    assert spec.settings["engine.in_batch_prefix_caching"] is False
    assert simulate(spec).summary["pool_tokens"] == 20_000
