"""A decode worker: it reserves memory for prompts that others compute, and generates answers."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from fairbench.core import Request
from fairbench.hardware.engine_params import LoadCapSetting
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.sim.engine.batch import RunningBatch
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """A decode worker's limits: how many requests may run, and how many more may hold memory."""

    pool_tokens: int
    most_running: int
    most_members: int
    load_cap: LoadCapSetting = None
    host_tokens: int = 0
    step_by_step: bool = False


class DecodeWorker(EngineLoop[KVNode]):
    """A worker that decodes prompts computed elsewhere.

    Call ``ask`` for memory, first come first served, or ``reserve`` it if ``may_take``; call
    ``receive`` when a request's KV cache has arrived. Its requests run from the next step on.
    ``assigned`` counts the requests that will run here, ``members`` those that hold memory;
    ``on_release`` is called for each request that ends.

    Prompts are not shared: SGLang keeps no prefix cache on a decode worker, and this model of
    vLLM's keeps none either. Memory counts in tokens.
    """

    def __init__(self, parts: WorkerParts, limits: DecodeLimits) -> None:
        self.limits = limits
        self.cache = KVCache(limits.pool_tokens)
        self.assigned = self.members = 0
        self.on_release: Callable[[Sequence], None] = lambda _: None
        self._asking: deque[tuple[Sequence, Callable[[], None]]] = deque()
        self._received: list[Sequence] = []
        self.retracted: deque[Sequence] = deque()
        own = replace(parts, scheduler=FCFS(FCFS.Params()))
        batch, waiting = RunningBatch(parts.log.index), WaitingQueue(self.cache, cache_aware=False)
        super().__init__(own, batch, waiting, limits.load_cap, limits.host_tokens)

    @abstractmethod
    def _fits_beside(self, request: Request, tokens: int) -> bool:
        """Return whether ``tokens`` of a request may be held in addition to the members' tokens."""

    # Methods for the prefill workers.

    def may_take(self, request: Request, tokens: int) -> bool:
        """Return whether there is memory, a slot and load to spare; retracted requests go first."""
        self.sync()
        return not self.retracted and self._has_room(request, tokens)

    def ask(self, sequence: Sequence, granted: Callable[[], None]) -> None:
        """Reserve memory for a prompt in its turn, and then call ``granted``."""
        self._asking.append((sequence, granted))
        run, request = self._run, sequence.request
        first = run is not None and len(self._asking) == 1
        if run is not None and first and self.may_take(request, request.input_tokens):
            self._stop_run(run)
        self.wake()

    def reserve(self, sequence: Sequence) -> None:
        """Reserve available memory for a prompt; steps planned in advance had counted on it."""
        sequence.reserved_ps = self._clock.now_ps
        self._hold(sequence, sequence.request.input_tokens)
        if self._run is not None:
            self._stop_run(self._run)

    def cancel(self, sequence: Sequence) -> None:
        """Free the memory of a request that will not come."""
        self._give_back(sequence.private)
        self.cap.leave(sequence.request)
        self._end(sequence)
        self.wake()

    def receive(self, sequence: Sequence) -> None:
        sequence.received_ps = self._clock.now_ps
        self._received.append(sequence)
        if self._run is not None:
            self._stop_run(self._run)
        self.wake()

    # State that an engine reports.

    @property
    def queued_count(self) -> int:
        return len(self._asking) + len(self._received) + len(self.retracted)

    @property
    def saturated(self) -> bool:
        return bool(self._asking)

    def in_flight(self) -> list[Sequence]:
        return [*self._running(), *self.retracted, *self._received]

    @property
    def _may_admit(self) -> bool:
        return False

    # A step.

    def _start(self) -> bool:
        self._readmit()
        while self._asking:
            sequence, granted = self._asking[0]
            if not self.may_take(sequence.request, sequence.request.input_tokens):
                break
            self._asking.popleft()
            self.reserve(sequence)
            granted()
        slots = max(0, self.limits.most_running - self.batch.size)
        joining, self._received = self._received[:slots], self._received[slots:]
        if joining:
            self._end_stretch()
        for sequence in joining:
            self._join(sequence)
        return self._recompute() or self._decode()

    def _decode(self) -> bool:
        batch, cache = self.batch, self.cache
        if batch.size > cache.free:
            self._retract()
        if not 0 < batch.size <= cache.free:
            return False  # the rest of the memory belongs to prompts on their way
        steps = min(batch.steps_to_finish(), cache.free // batch.size, self._most_steps())
        self._start_run(steps, -self._extra_ps())
        return True

    def _most_steps(self) -> int:
        retracted = self.retracted[0] if self.retracted else None
        returns = retracted is not None and self._has_room(retracted.request, retracted.total)
        return 1 if returns or self.limits.step_by_step else 2**62

    def _extra_ps(self) -> int:
        """Return the time of a step in addition to the profile's formula."""
        return 0

    def _recompute(self) -> bool:
        """Start an iteration that computes retracted requests again; False if there are none."""
        return False

    def _provide(self, steps: int) -> None:
        batch = self.batch
        self.cache.grow(steps, batch.per_client, batch.size)

    def _release(self, sequence: Sequence) -> None:
        self._give_back(sequence.private + self.batch.leave(sequence))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.private = 0
        self.assigned -= 1
        self.on_release(sequence)

    # Memory.

    def _has_room(self, request: Request, tokens: int) -> bool:
        """Return whether a request may become a member; the first one always may."""
        if not self.members:
            return True
        within = self.members < self.limits.most_members and self.cap.has_room(request)
        return within and self._fits_beside(request, tokens)

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        self.members += 1
        self.cache.allocate(tokens)
        self.cap.enter(sequence.request)
        sequence.private = tokens

    def _give_back(self, tokens: int) -> None:
        self.members -= 1
        self.cache.release(tokens)

    @property
    def _free(self) -> int:
        """The free tokens after the step in progress has its own tokens."""
        return self.cache.free - self.batch.size

    def _retract(self) -> None:
        """Take memory back until the next step fits. At least one request always stays."""
        self._end_stretch()
        order = self._retraction_order()
        while self.batch.size > self.cache.free and len(order) > 1:
            sequence = order.pop()
            tokens = sequence.private + self.batch.leave(sequence)
            self._give_back(tokens)
            self.cap.leave(sequence.request)
            self._store(sequence, tokens)
            sequence.retract(self._clock.now_ps)
            self.retracted.append(sequence)
        self.batch.rearrange(order)

    def _readmit(self) -> None:
        while self.retracted:
            sequence = self.retracted[0]
            if not self._has_room(sequence.request, sequence.total):
                return
            self.retracted.popleft()
            self._end_stretch()
            self._hold(sequence, sequence.total)
            sequence.readmitted_ps = self._clock.now_ps
            self._load(sequence)

    @abstractmethod
    def _retraction_order(self) -> list[Sequence]:
        """Return the running sequences; the last one loses its memory first."""

    @abstractmethod
    def _store(self, sequence: Sequence, tokens: int) -> None:
        """Handle a sequence that is about to lose its memory of ``tokens`` tokens."""

    @abstractmethod
    def _load(self, sequence: Sequence) -> None:
        """Bring a retracted sequence, whose memory is reserved again, back into the batch."""
