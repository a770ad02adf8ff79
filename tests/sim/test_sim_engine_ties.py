"""Test that a step that ends at the instant of an arrival is charged as in single steps."""

import pytest

from fairbench.core import Request, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.logs import ServiceLog
from fairbench.engine.sequence import Sequence
from fairbench.engine.sglang import SGLangReplica
from fairbench.hardware.engine_params import EngineLimits
from fairbench.sim.front import SimFleet
from tests.sim.sim_helpers import PLAIN, US, Spy
from tests.worker_invariants import watch


class Listener(Spy):
    """A scheduler that records its tokens at every arrival, and the times of its passes."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.heard = []
        self.asked_us = []

    def on_arrival(self, request, view, now_s):
        self.heard.append((request.request_id, self.tokens))

    def select(self, view, now_s):
        self.asked_us.append(self.clock.now_ps // US)
        return super().select(view, now_s)


def pair(step_by_step, slots=2048):
    """Return two workers, and a function that sends one of them a request now."""
    clock, log = Clock(), ServiceLog(["x"])
    limits = EngineLimits(1000, 8192, 16384, slots, step_by_step=step_by_step)
    workers = [
        SGLangReplica(WorkerParts(index, clock, Listener(clock), PLAIN, log), limits, KVCache(1000))
        for index in range(2)
    ]
    watch(clock, workers)

    def send(worker, number, output, then=lambda: None):
        request = Request(number, "x", 0, 0, (Segment(f"in-{number}", 10),), 10, output)
        made = Segment(f"out-{number}", output)
        workers[worker].submit(Sequence(request, made, clock.now_ps, lambda _: then()))

    return clock, workers, send


@pytest.mark.parametrize("step_by_step", [False, True])
@pytest.mark.parametrize(("finishing", "deciding"), [(1, 0), (0, 1)])
def test_a_boundary_at_the_instant_of_an_arrival_is_booked_as_in_single_steps(
    step_by_step, finishing, deciding
):
    """A step ends on both workers when the third request arrives.

    Both workers prefill until 1,100 us (one token) and then step every 1,010 us. The fourth step
    ends at the arrival. The deciding worker's end may be charged before the arrival (if it is
    worker 0) or after it. In both cases, the request is known then and has a pass immediately.
    """
    clock, workers, send = pair(step_by_step)
    clock.at(0, ARRIVE, 0, lambda: send(deciding, 0, 5 + 15))
    clock.at(0, ARRIVE, 0, lambda: send(finishing, 1, 5, then=lambda: send(deciding, 2, 3)))
    while clock.next_ps() is not None:
        clock.step()
    scheduler = workers[deciding].scheduler
    assert scheduler.heard == [(0, 0), (2, 1 + 4)]
    assert scheduler.asked_us == [0, 1100 + 4 * 1010]
    assert scheduler.tokens == 20 + 3


@pytest.mark.parametrize("step_by_step", [False, True])
@pytest.mark.parametrize(("finishing", "deciding"), [(1, 0), (0, 1)])
def test_a_full_batch_continues_but_reads_arrivals_at_that_boundary(
    step_by_step, finishing, deciding
):
    """Request 3 waits for the only slot since the first prefill, so no pass is made."""
    clock, workers, send = pair(step_by_step, slots=1)
    clock.at(0, ARRIVE, 0, lambda: send(deciding, 0, 5 + 15))
    clock.at(500 * US, ARRIVE, 0, lambda: send(deciding, 3, 1))
    clock.at(0, ARRIVE, 0, lambda: send(finishing, 1, 5, then=lambda: send(deciding, 2, 3)))
    while clock.next_ps() is not None:
        clock.step()
    scheduler = workers[deciding].scheduler
    assert scheduler.heard == [(0, 0), (3, 1), (2, 1 + 4)]
    assert scheduler.asked_us[:2] == [0, 1100 + 19 * 1010]


def test_an_arrival_at_the_end_of_an_iteration_is_routed_before_the_ends():
    clock, workers, send = pair(step_by_step=False)
    end_ps, loads = 1100 * US, []
    clock.at(0, ARRIVE, 0, lambda: send(0, 0, 1))
    clock.at(end_ps, ARRIVE, 0, lambda: loads.append(SimFleet(workers).load(0).running))
    while clock.next_ps() is not None:
        clock.step()
    assert (loads, clock.now_ps) == ([1], end_ps)


@pytest.mark.parametrize("step_by_step", [False, True])
@pytest.mark.parametrize("left", [1, 2])
def test_an_arrival_at_a_boundary_shortly_before_the_end_of_a_run(step_by_step, left):
    clock, workers, send = pair(step_by_step)
    clock.at(0, ARRIVE, 0, lambda: send(0, 0, 5 + left))
    clock.at(0, ARRIVE, 0, lambda: send(1, 1, 5, then=lambda: send(0, 2, 3)))
    while clock.next_ps() is not None:
        clock.step()
    assert workers[0].scheduler.asked_us == [0, 1100 + 4 * 1010]


@pytest.mark.parametrize("step_by_step", [False, True])
def test_a_run_cut_off_at_a_boundary_has_booked_its_step(step_by_step):
    clock, workers, send = pair(step_by_step)
    clock.at(0, ARRIVE, 0, lambda: send(0, 0, 10))
    limit_ps = (1100 + 3 * 1010) * US
    clock.at(limit_ps - 1, ARRIVE, 0, lambda: None)
    while clock.next_ps() <= limit_ps:
        clock.step()
    clock.stop_at(limit_ps)
    workers[0].sync()
    assert workers[0].scheduler.tokens == 1 + 3
