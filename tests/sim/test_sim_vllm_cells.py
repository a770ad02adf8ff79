"""Test that default cells, cut short, give identical records on vLLM 0.32.0's own classes.

Several replicas run with their router and the workload's own programs (see vllm_replica.py). The
pool is small, so that seconds contain what would otherwise take minutes: evictions and preemptions.
FCFS is vLLM's own; other local schedulers replace its queue. real_cells.py runs all cells, and for
longer.
"""

import pytest

from tests.sim.served import cell, compare, differences, longest_of, serve
from tests.sim.vllm_replica import vllm_workers
from tests.sim.vllm_seam import why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

# workload, scheduler, programs per second, replicas, seconds of arrivals and after them, blocks of
# 16
CELLS = [
    ("tot", "fcfs", 0.44, 4, 10, 5, 2_000),
    ("tot", "d2lpm+fcfs", 0.22, 2, 10, 5, 3_000),
    ("tot", "vtc", 0.44, 4, 10, 5, 2_000),
    ("judge", "fcfs", 0.68, 2, 10, 10, 3_000),
    ("judge", "d2lpm", 0.68, 2, 10, 10, 3_000),
    ("judge", "lpm", 0.68, 2, 10, 10, 3_000),
    ("long-qa", "fcfs", 0.14, 2, 10, 10, 10_000),
    ("long-qa", "vtc", 0.14, 2, 10, 10, 10_000),
    ("chat", "least-loaded+fcfs", 2.5, 2, 8, 4, 2_000),
    ("chat", "vtc", 2.5, 2, 8, 4, 2_000),
]


def short_cell(workload, scheduler, rate, dp, seconds, drain, blocks, **settings):
    settings |= {"dp": dp, "seconds": seconds, "drain": drain, "request_rate": rate}
    settings |= {"engine": "vllm", "vllm__num_gpu_blocks_override": blocks}
    settings["vllm__max_num_seqs"] = 256  # memory is the limit
    return cell(workload, "s1", scheduler, **settings)


@pytest.fixture(scope="module")
def preemptions():
    """Return the preemptions of all compared cells."""
    return []


@pytest.mark.parametrize("which", CELLS, ids=lambda which: f"{which[0]}-{which[1]}")
def test_the_classes_of_vllm_give_the_records_of_the_simulator(which, preemptions):
    ours, theirs, lines = compare(short_cell(*which), vllm_workers)
    assert not lines
    assert ours.unlike(theirs) == 0
    assert ours.facts["iterations"] > 100
    preemptions.append(ours.facts["retractions"])


def test_requests_were_preempted(preemptions):
    assert len(preemptions) < len(CELLS) or sum(preemptions) > 10


def test_another_budget_changes_the_records():
    """The budget differs only in the simulator, so the comparison must fail."""
    which = CELLS[0]
    ours = serve(short_cell(*which, vllm__max_num_batched_tokens=1_024))
    spec = short_cell(*which)
    with vllm_workers(spec, longest_of(ours)) as worker_of:
        theirs = serve(spec, worker_of)
    assert ours.unlike(theirs) > 10
    assert any(line.startswith("service: ") for line in differences(ours, theirs))
