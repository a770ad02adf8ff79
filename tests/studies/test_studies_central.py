"""Test the timed rounds of the central scheduler: real processes whose caches it mirrors."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from fairbench.core import Segment
from fairbench.engine.kv_cache import KVCache
from fairbench.hardware.catalogue import resolve_profile
from fairbench.schedulers.local.dlpm import DLPM
from fairbench_studies.dlpm.central.arrivals import LEVELS, TreeOfThoughtArrivals
from fairbench_studies.dlpm.central.central_dlpm import CentralDLPM
from fairbench_studies.dlpm.central.timing import RoundCost, time_rounds
from fairbench_studies.dlpm.central.workers import CentralWorkers


def cached(cache, request):
    """Return the tokens of the prompt that are in the cache now."""
    node, _ = cache.match(request.prompt, request.input_tokens)
    return node.depth


def store(cache, request):
    node, place = cache.match(request.prompt, request.input_tokens)
    cache.lock(node)
    cache.allocate(request.input_tokens - node.depth)
    cache.insert(node, request.prompt, place, request.input_tokens)
    cache.unlock(node)


def test_the_scheduler_knows_the_cache_of_each_process():
    pool_tokens, arrivals = 4_000, TreeOfThoughtArrivals(Random(1))
    central = CentralDLPM(DLPM.Params(), 2)
    evictions = []
    replicas = [KVCache(pool_tokens, lambda *news: evictions.append(news)) for _ in range(2)]
    with CentralWorkers(2, pool_tokens) as processes:
        for _ in range(12):
            while len(central.queue) < 10:
                central.on_arrival(arrivals.take())
            processes.wait()
            for worker, delta in enumerate(processes.collect()):
                central.update(worker, delta)
                matched = central.match(worker)
                assert matched == {r: cached(replicas[worker], r) for r in central.queue}
                batch = central.dispatch(matched, 1_000)
                processes.send(worker, [r.prompt for r in batch])
                for request in batch:
                    store(replicas[worker], request)
                    central.on_finish(request)
                    arrivals.on_finish(request)
    assert evictions, "the pool was too large to test anything"
    assert not multiprocessing.active_children()


def test_arrivals_continue_finished_requests_down_to_the_last_level():
    arrivals, parents, depths = TreeOfThoughtArrivals(Random(0)), set(), set()
    for _ in range(300):
        request = arrivals.take()
        if request.depth:  # its 288 new tokens may share the parent's last, shorter page
            assert any(request.prompt[: len(p) - 1] == p[:-1] for p in parents)
        assert request.input_tokens == 546 + 288 * request.depth
        parents.add(request.prompt)
        depths.add(request.depth)
        arrivals.on_finish(request)
    assert depths == set(range(LEVELS))


def test_overhead_is_messages_and_algorithm_relative_to_a_decode_step():
    cost = RoundCost(8, 200, 1.0, 50.0, 2.5, 0.5, decode_step_ms=16.0)
    assert cost.overhead_pct == 25.0


def test_every_part_of_a_round_is_timed():
    profile = resolve_profile("a100", "llama-3.1-8b")
    cost = time_rounds(2, 12, profile, rounds=3)
    assert (cost.workers, cost.waiting) == (2, 12)
    assert cost.decode_step_ms == profile.decode_ps(25, 25 * 1_250) / 10**9
    assert min(cost.synchronisation_ms, cost.update_ms, cost.match_ms, cost.dispatch_ms) > 0


PARENT = """
import multiprocessing, sys, time
from fairbench_studies.dlpm.central.workers import CentralWorkers
if __name__ == "__main__":
    workers = CentralWorkers(2, 1000)
    workers.wait()
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(
    not Path("/proc").is_dir(),
    reason="tells the dead from zombies by /proc, which this system does not have (Linux has it)",
)
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
    assert len(children) == 2
    deadline = time.monotonic() + 300
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline, "orphans"
        time.sleep(0.05)


def test_a_fully_cached_prompt_changes_nothing():
    text = (Segment("a", 30),)
    with CentralWorkers(1, 40) as processes:
        for _ in range(3):
            processes.wait()
            (delta,) = processes.collect()
            assert delta.evicted == ()
            processes.send(0, [text])
        processes.wait()
