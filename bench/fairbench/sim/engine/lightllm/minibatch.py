"""A minibatch: the requests that the scheduler admits together, within memory and tokens."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.hardware.lightllm_params import LightLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.engine.lightllm.fit import FitTest
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


def fill_minibatch(
    scheduler: LocalScheduler,
    waiting: WaitingQueue[KVNode],
    batch: RunningBatch,
    limits: LightLLMLimits,
    cap: LoadCap,
    now_s: float,
) -> list[Sequence]:
    """Take requests from the queue in the scheduler's order, to run beside ``batch``."""
    fit = FitTest(batch, limits)
    admitted: list[Sequence] = []
    tokens = 0

    def try_admit(request: Request) -> Tried:
        nonlocal tokens
        sequence = waiting.sequence_of(request)
        if not cap.has_room(request):
            return Tried.NO_ROOM
        if tokens + sequence.total > limits.minibatch_tokens or not fit.try_add(sequence):
            return Tried.NO_ROOM
        tokens += sequence.total
        admitted.append(sequence)
        sequence.extend_tokens = sequence.total
        waiting.admit(request)
        cap.enter(request)
        scheduler.on_admitted(request, sequence.total, recompute=False)
        return Tried.ADMITTED

    drive(scheduler.select(waiting, now_s), try_admit)
    waiting.end_pass()
    return admitted
