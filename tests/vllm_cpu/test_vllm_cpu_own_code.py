"""Test runs in which an installed vLLM's own code decides everything (replica.inside.vllm_seam)."""

import os
import sys

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench.sim.run import simulate
from tests.sglang_cpu.fork import fork_of
from tests.sglang_cpu.test_sglang_cpu_own_code import (
    EVICTED,
    GATED,
    assert_evicts_as_simulated,
    assert_flags_reach,
    assert_gateway_as_simulated,
    assert_passes_are_charged,
    assert_same,
    assert_sessions_as_simulated,
    assert_shares_as_simulated,
    content,
    gated,
    records,
)
from tests.sim import vllm_seam
from tests.sim.test_sim_vllm_cells import CELLS, short_cell

PYTHON = os.environ.get("FAIRBENCH_VLLM_PYTHON", sys.executable)
WHY_ABSENT = "" if "FAIRBENCH_VLLM_PYTHON" in os.environ else vllm_seam.why_absent()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT or "present"),
]
SCHEDULER = "v1/core/sched/scheduler.py"
CHAT = next(one for one in CELLS if one[1] == "least-loaded+fcfs")
FULL = ("tot", "fcfs", 0.44, 2, 8, 5, 1_200)  # with preemptions
# with preemptions, and with evictions that are reported to the router of d2lpm
INSIDE = [("tot", name, 0.66, 2, 8, 5, 1_200) for name in ("vtc", "dlpm", "d2lpm")]
EVICTING = next(one for one in CELLS if one[1] == "d2lpm+fcfs")


@pytest.mark.parametrize("which", [FULL, EVICTING], ids=lambda which: f"{which[0]}-{which[1]}")
def test_fcfs_gives_the_records_of_the_simulator(which):
    spec = short_cell(*which)
    ours, summary = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": PYTHON}))
    assert_same(ours, theirs)
    assert len(ours[0]["request_id"]) > 100
    code = about.pop("engine_code")
    assert (code["engine"], code["policy"], code["changed"]) == ("vllm", "fcfs", [])
    assert about.keys() == summary.keys()
    assert which is EVICTING or ours[0]["retractions"].sum() > 0


@pytest.mark.parametrize("which", INSIDE, ids=lambda which: f"{which[0]}-{which[1]}")
def test_our_schedulers_inside_vllm_give_the_records_of_the_simulator(which):
    spec = short_cell(*which)
    ours, summary = records(spec)
    theirs, about = records(spec.model_copy(update={"engine_code": PYTHON}))
    assert_same(ours, theirs)
    assert ours[0]["retractions"].sum() > 0
    code = about.pop("engine_code")
    assert (code["policy"], code["policy_of"]) == (spec.local, "fairbench")
    assert about == summary
    other, _ = records(spec.model_copy(update={"local": "fcfs"}))
    assert content(other[0]["admitted_s"]) != content(ours[0]["admitted_s"])


@pytest.mark.parametrize(("name", "settings"), GATED)
def test_a_gateway_gives_the_records_of_the_simulator(name, settings):
    assert_gateway_as_simulated(gated(name, settings, short_cell, 1_000), PYTHON)


def test_a_trace_with_sessions_gives_the_records_of_the_simulator(tmp_path):
    few = {"vllm.num_gpu_blocks_override": 1_300, "vllm.max_num_seqs": 6}
    assert_sessions_as_simulated(tmp_path, "vllm", few, PYTHON)


@pytest.mark.parametrize(("policy", "scheduler"), [*EVICTED, ("lfu", "dlpm")])
def test_an_eviction_policy_of_fairbench_decides_inside_vllm(policy, scheduler):
    load = ("tool-use", scheduler, 2.0, 2, 10, 10, 1_000)
    assert_evicts_as_simulated(short_cell(*load, eviction=policy), PYTHON)


def test_memory_shares_decide_inside_vllm():
    load = ("tool-use", "d2lpm", 2.0, 2, 10, 10, 1_000)
    assert_shares_as_simulated(short_cell(*load, eviction="max-min", memory__share=True), PYTHON)


def test_the_measured_time_of_passes_is_charged():
    assert_passes_are_charged("vllm", PYTHON)


def test_a_scheduler_that_vllm_cannot_run_is_refused_in_one_line():
    spec = short_cell("chat", "dlpm", 2.5, 2, 4, 3, 2_000, dlpm__no_room="skip")
    with pytest.raises(UsageError) as refused:
        simulate(spec.model_copy(update={"engine_code": PYTHON}))
    assert "dlpm tries requests other than the first, which vLLM's own" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flags_of_a_server_reach_the_engine():
    assert_flags_reach("vllm", PYTHON)


SCHEDULE = """    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.current_step += 1
"""
RAISES = f'{SCHEDULE}        raise ValueError("no order today")\n'
OTHER = SCHEDULE.replace("throttle_prefills: bool = False", "quota: int")
NEVER = f"{SCHEDULE}        self.max_num_scheduled_tokens = 0\n"


@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        (RAISES, ["code of vllm: scheduler.py, line ", "in schedule: ValueError: no order today"]),
        (OTHER, ["vllm ", "schedule() missing 1 required positional argument: 'quota'"]),
        (NEVER, ["fcfs of vllm: stopped offering requests"]),
    ],
    ids=["raises", "signature", "never admits"],
)
def test_a_fork_that_fails_ends_the_run_in_one_line(changed, messages, tmp_path):
    changes = {SCHEDULER: [(SCHEDULE, changed)]}
    python = str(fork_of(PYTHON, "vllm", tmp_path / "fork", changes))
    with pytest.raises(RunFailed) as failed:
        simulate(short_cell(*CHAT, engine_code=python).model_copy(update={"local": "fcfs"}))
    assert all(message in str(failed.value) for message in messages)
    assert "\n" not in str(failed.value)


def test_vllms_priority_policy_decides():
    spec = short_cell(*CHAT, engine_code=PYTHON).model_copy(update={"local": "priority"})
    tables, summary = records(spec)
    assert summary["engine_code"]["policy"] == "priority"
    assert (tables[0]["output_tokens"] > 0).any()
