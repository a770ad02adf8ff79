"""Test that default cells, cut short, give identical records on SGLang 0.5.23's own classes.

Several replicas run with their router and the workload's own programs (see sglang_replica.py). The
pool is small, so that seconds contain what would otherwise take minutes: evictions, full batches,
retractions. real_cells.py runs all cells, and for longer.
"""

import pytest

from fairbench.core import Segment
from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.sglang.release import SUPPORTED
from tests.sim.served import cell, compare, differences, longest_of, serve
from tests.sim.sglang_replica import sglang_workers
from tests.sim.sglang_seam import why_absent

NEWEST = SUPPORTED[-1:]  # the class whose requests sglang_replica.py reads
WITH_SGLANG = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent(NEWEST)), reason=why_absent(NEWEST) or "present"),
]

# workload, scheduler, programs per second, replicas, seconds of arrivals and after them, pool
CELLS = [
    ("tot", "fcfs", 0.44, 4, 12, 8, 60_000),
    ("tot", "vtc", 0.44, 4, 12, 8, 60_000),
    ("judge", "vtc", 0.68, 2, 15, 10, 60_000),
    ("judge", "dlpm", 0.68, 2, 15, 10, 60_000),
    ("judge", "d2lpm", 0.68, 2, 15, 10, 60_000),
    ("long-qa", "preble", 0.14, 2, 15, 15, None),
    ("chat", "lpm", 2.5, 2, 10, 5, 40_000),
]


def short_cell(workload, scheduler, rate, dp, seconds, drain, pool, **settings):
    settings |= {"dp": dp, "seconds": seconds, "drain": drain, "request_rate": rate}
    settings.setdefault("engine__max_running_requests", 2_048)  # memory is the limit
    if pool is not None:
        settings["engine__max_total_tokens"] = pool
    return cell(workload, "s1", scheduler, **settings)


@pytest.fixture(scope="module")
def retractions():
    """Return the retractions of all compared cells."""
    return []


class TestCells:
    pytestmark = WITH_SGLANG

    @pytest.mark.parametrize("which", CELLS, ids=lambda which: f"{which[0]}-{which[1]}")
    def test_the_classes_of_sglang_give_the_records_of_the_simulator(self, which, retractions):
        ours, theirs, lines = compare(short_cell(*which), sglang_workers)
        assert not lines
        assert ours.unlike(theirs) == 0
        assert ours.facts["iterations"] > 500
        retractions.append(ours.facts["retractions"])

    def test_requests_were_retracted(self, retractions):
        assert len(retractions) < len(CELLS) or sum(retractions) > 10

    def test_another_scheduler_changes_the_records(self):
        """The simulator alone charges the whole input here, so the comparison must fail."""
        which, queue = CELLS[2], {"engine__max_running_requests": 8}
        ours = serve(short_cell(*which, vtc__charge="input", **queue))
        spec = short_cell(*which, **queue)
        with sglang_workers(spec, longest_of(ours)) as worker_of:
            theirs = serve(spec, worker_of)
        assert ours.unlike(theirs) > 10
        assert any(line.startswith("service: ") for line in differences(ours, theirs))


def test_token_ids_belong_to_one_segment_and_identify_it():
    tokens = TokenIds()
    system, question = Segment("system", 5), Segment("question", 3)
    first = tokens.of((system, question))
    assert len(set(first)) == 8
    longer = tokens.of((Segment("system", 9), question))
    assert longer[:5] == first[:5]
    assert longer[9:] == first[5:]
    assert len(set(longer)) == 12
    for prompt in ((system, question), (Segment("system", 9), question), (Segment("system", 2),)):
        assert tokens.prompt(tokens.of(prompt)) == prompt
