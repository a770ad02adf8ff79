"""A minibatch: the requests that the scheduler admits together, within memory and tokens."""

from __future__ import annotations

from fairbench.core import Prompt, Request
from fairbench.hardware.lightllm_params import LightLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


class Memory:
    """A ``KVMemory`` without a prefix cache.

    A minibatch's memory counts once its prefill has ended.
    """

    evictable = 0

    def __init__(self, capacity: int, batch: RunningBatch) -> None:
        self.capacity = capacity
        self._batch = batch

    @property
    def free(self) -> int:
        return self.capacity - self._batch.context_tokens

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        return 0

    def abandon(self) -> None:
        """Do nothing: this engine caches nothing."""


class FitTest:
    """A test whether the batch plus another request can decode to its end in the pool.

    With requests sorted by remaining outputs, descending, the pool must hold at every finish: max
    over k of (remaining_k * k + sum of the k current lengths) < pool. The last token of a request
    needs no memory. A new request is counted as after its prefill.
    """

    def __init__(self, batch: RunningBatch, limits: LightLLMLimits) -> None:
        self._limits = limits
        self._clients = set(batch.per_client)
        self._lengths: list[tuple[int, int]] = []  # (remaining outputs, current length)
        for sequence in batch.sequences:
            produced = batch.produced(sequence)
            remaining = sequence.output.length - produced - 1
            self._lengths.append((remaining, sequence.total + produced))

    def try_add(self, sequence: Sequence) -> bool:
        """Add a request if it fits; returns whether it did."""
        extended = [*self._lengths, (sequence.output.length - 1, sequence.total + 1)]
        if len(extended) > self._limits.max_running_requests:
            return False
        clients = self._clients | {sequence.request.client}
        extended.sort(key=lambda length: -length[0])
        held = most = 0
        for size, (remaining, length) in enumerate(extended, start=1):
            held += length
            most = max(most, remaining * size + held)
        if most >= self._limits.pool_tokens - self._limits.client_tokens * len(clients):
            return False
        self._lengths, self._clients = extended, clients
        return True


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
