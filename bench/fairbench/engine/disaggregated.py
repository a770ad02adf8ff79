"""Disaggregated clusters: prefill workers compute prompts, and decode workers produce output."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.engine.batch import Prefill, RunningBatch
from fairbench.engine.clock import ARRIVE, END, Clock
from fairbench.engine.contract import CONTRACTS, EngineContract, KVMemory, Replica, WorkerParts
from fairbench.engine.kv_cache import KVCache, KVNode
from fairbench.engine.loop import EngineLoop
from fairbench.engine.sequence import NEVER, REFUSED, Sequence
from fairbench.engine.sglang_variants import SGLangPrefillOnly
from fairbench.engine.vllm import VLLMPrefillOnly, longest_ps
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.hardware.engine_params import EngineLimits, LoadCapSetting, VLLMLimits
from fairbench.hardware.engines import DEFAULT_ENGINE, DISAGGREGATION, ENGINES, DisaggregationParams
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.schedulers.load_cap import LoadCap, NoCap
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.params import make_params
from fairbench.schedulers.views import CLIP_MAX_NEW_TOKENS, Room

Then = Callable[[], None]


class PrefillEngine(Replica, Protocol):
    """An engine replica that computes prompts, and keeps each KV cache until it is sent."""

    cap: LoadCap

    def free_sent(self, sequence: Sequence) -> None:
        """Free the memory of a request whose KV cache has been sent."""

    def wake_if_waiting(self) -> None:
        """Let an idle worker retry its waiting requests after another worker freed memory."""


class Transfer(NamedTuple):
    """A transfer of a prompt's KV cache; transfers are numbered in the order of their requests."""

    number: int
    sequence: Sequence
    source: int
    target: int
    done: Then


class Transfers:
    """The network links between prefill and decode workers.

    A worker sends or receives the KV cache of one prompt at a time.

    Transfers start in the order of their requests, except that a transfer between two free workers
    overtakes transfers that wait for a busy worker. SGLang 0.5.23 has several queues per sender,
    each with its own thread, and chooses the queue by the receiver (``add_transfer_request`` in
    ``disaggregation/mooncake/conn.py``). In vLLM 0.32, every transfer starts immediately without
    blocking (``start_load_kv`` in ``kv_connector/v1/nixl/pull_worker.py``). The link's latency is
    added after the last byte, when both workers are free again.
    """

    def __init__(
        self, clock: Clock, params: DisaggregationParams, token_bytes: float, workers: int
    ) -> None:
        self.clock = clock
        self._token_ps = token_bytes / (params.bandwidth_gb_s * 10**9) * PS_PER_S
        self._latency_ps = round(params.latency_ms * PS_PER_MS)
        # ``_free_ps`` holds the time at which each worker's last transfer ends.
        self._free_ps = [0] * workers
        # ``_waiting`` maps each pair of source and target to its transfers that have not started.
        self._waiting: dict[tuple[int, int], deque[Transfer]] = {}
        self._requested = 0

    def send(self, sequence: Sequence, source: int, target: int, done: Then) -> None:
        """Transfer the KV cache of a prompt, and then call ``done``."""
        self._requested += 1
        transfer = Transfer(self._requested, sequence, source, target, done)
        self._waiting.setdefault((source, target), deque()).append(transfer)
        self._start_possible()

    def _start_possible(self) -> None:
        while (queue := self._next_possible()) is not None:
            _, sequence, source, target, done = queue.popleft()
            sequence.sent_ps = self.clock.now_ps
            end_ps = sequence.sent_ps + round(sequence.request.input_tokens * self._token_ps)
            self._free_ps[source] = self._free_ps[target] = end_ps
            self.clock.at(end_ps, ARRIVE, source, self._start_possible)
            self.clock.at(end_ps + self._latency_ps, ARRIVE, source, done)

    def _next_possible(self) -> deque[Transfer] | None:
        now_ps, free_ps = self.clock.now_ps, self._free_ps
        possible = [
            queue
            for (source, target), queue in self._waiting.items()
            if queue and free_ps[source] <= now_ps and free_ps[target] <= now_ps
        ]
        return min(possible, key=lambda queue: queue[0].number, default=None)


class PrefillReplica:
    """A ``Replica`` that computes prompts and sends the KV caches to decode workers.

    An arriving request is assigned to the decode worker with the fewest assigned requests. The
    replica ``engine`` runs a copy of the request with one output token. Subclasses define when the
    decode worker reserves memory.
    """

    def __init__(
        self, index: int, engine: PrefillEngine, decodes: list[DecodeWorker], transfers: Transfers
    ) -> None:
        self.index = index
        self.engine = engine
        self.scheduler, self.batch = engine.scheduler, engine.batch
        self._decodes = decodes
        self._transfers = transfers
        # ``_copies`` maps each request that has not reached a decode worker yet to its copy in the
        # engine.
        self._copies: dict[Sequence, Sequence | None] = {}
        self._unreserved = 0

    # Replica interface

    @property
    def on_pass(self) -> Then | None:
        return self.engine.on_pass

    @on_pass.setter
    def on_pass(self, heard: Then | None) -> None:
        self.engine.on_pass = heard

    @property
    def cache(self) -> KVMemory:
        return self.engine.cache

    @property
    def queued_count(self) -> int:
        return self.engine.queued_count + self._unreserved

    @property
    def running_count(self) -> int:
        return self.engine.running_count

    @property
    def saturated(self) -> bool:
        return self.engine.saturated or self._unreserved > 0

    @property
    def room(self) -> Room | None:
        return self.engine.room

    def sync(self) -> None:
        self.engine.sync()

    def settle(self) -> None:
        self.engine.settle()

    def in_flight(self) -> list[Sequence]:
        for sequence, copy in self._copies.items():
            if copy is not None:
                _take_over(sequence, copy)
        return list(self._copies)

    def submit(self, sequence: Sequence) -> None:
        sequence.worker = self.index
        if not self._decodes[0].fits(sequence.request):
            sequence.refuse()
            return
        self._copies[sequence] = None
        self._unreserved += 1
        self._arrived(sequence)

    # Request path

    def _arrived(self, sequence: Sequence) -> None:
        self._assign(sequence)
        self._compute(sequence)

    def _assign(self, sequence: Sequence) -> DecodeWorker:
        """Assign a request to the decode worker with the fewest assigned requests."""
        decode = min(self._decodes, key=lambda one: (one.assigned, one.index))
        decode.assigned += 1
        sequence.decode_worker = decode.index
        return decode

    def _decode_of(self, sequence: Sequence) -> DecodeWorker:
        return self._decodes[sequence.decode_worker - self._decodes[0].index]

    def _compute(self, sequence: Sequence) -> None:
        request, output = sequence.request, sequence.output
        copy = Sequence(
            replace(request, max_new_tokens=1),
            Segment(output.key, min(1, output.length)),
            sequence.arrival_ps,
            partial(self._computed, sequence),
        )
        self._unreserved -= 1
        self._copies[sequence] = copy
        self.engine.submit(copy)

    def _computed(self, sequence: Sequence, copy: Sequence) -> None:
        _take_over(sequence, copy)
        if copy.status == REFUSED:
            del self._copies[sequence]
            self._refused(sequence)
            sequence.refuse()
            return
        sequence.computed_ps = self._transfers.clock.now_ps
        self._ready(sequence)

    def _refused(self, sequence: Sequence) -> None:
        """Undo the assignment of a request that the engine's scheduler has refused."""
        self._decode_of(sequence).cancel(sequence)

    def _ready(self, sequence: Sequence) -> None:
        self._send(sequence)

    def _send(self, sequence: Sequence) -> None:
        target = sequence.decode_worker
        self._transfers.send(sequence, self.index, target, partial(self._sent, sequence))

    def _sent(self, sequence: Sequence) -> None:
        copy = self._copies.pop(sequence)
        assert copy is not None
        self.engine.free_sent(copy)
        self._decode_of(sequence).receive(sequence)


class ReservesAtArrival(PrefillReplica):
    """A replica as in SGLang, which reserves memory for decoding before the prefill begins."""

    def _arrived(self, sequence: Sequence) -> None:
        self._assign(sequence).reserve_in_turn(sequence, partial(self._compute, sequence))


class ReservesWhenComputed(PrefillReplica):
    """A replica that reserves decode memory after it has computed the prompt, as vLLM does."""

    def _refused(self, sequence: Sequence) -> None:
        self._decode_of(sequence).assigned -= 1

    def _ready(self, sequence: Sequence) -> None:
        self._decode_of(sequence).reserve_in_turn(sequence, partial(self._send, sequence))


def _take_over(sequence: Sequence, copy: Sequence) -> None:
    sequence.admitted_ps = copy.admitted_ps
    sequence.cached_tokens, sequence.extend_tokens = copy.cached_tokens, copy.extend_tokens
    sequence.gpu_ps = copy.gpu_ps


class DecodeRoom(NoCap):
    """A load cap that admits a request for prefill only if a decode worker has memory for it.

    The prefill engine runs each request with one output token only, but the decode worker needs
    memory for the whole output. ``whole`` maps the id of each waiting request to its sequence with
    the full output.
    """

    def __init__(self, decodes: list[DecodeWorker]) -> None:
        super().__init__()
        self._decodes = decodes
        self.whole: dict[int, Sequence] = {}
        # ``leave`` and ``finish`` do nothing, because decode workers count their own requests.
        self.enter = self._enter

    def _open(self, request: Request) -> DecodeWorker | None:
        """Return the least used decode worker that has memory for the request, or None."""
        whole = self.whole[request.request_id].request
        room = [one for one in self._decodes if one.may_take(whole, whole.input_tokens)]
        return min(room, key=lambda one: (one.assigned, one.index), default=None)

    def has_room(self, request: Request, without: Iterable[Request] = ()) -> bool:
        return self._open(request) is not None

    def _enter(self, request: Request) -> None:
        decode = self._open(request)
        assert decode is not None
        sequence = self.whole.pop(request.request_id)
        sequence.decode_worker = decode.index
        decode.assigned += 1
        decode.reserve(sequence)


class ReservesAtAdmission(PrefillReplica):
    """A prefill worker whose scheduler also decides which requests get memory for decoding."""

    def __init__(
        self,
        room: DecodeRoom,
        index: int,
        engine: PrefillEngine,
        decodes: list[DecodeWorker],
        transfers: Transfers,
    ) -> None:
        super().__init__(index, engine, decodes, transfers)
        self._room = room

    def _arrived(self, sequence: Sequence) -> None:
        self._room.whole[sequence.request.request_id] = sequence
        self._compute(sequence)

    def _refused(self, sequence: Sequence) -> None:
        del self._room.whole[sequence.request.request_id]


class Sides(NamedTuple):
    """An engine's functions to create workers, and the default subclass of ``PrefillReplica``."""

    prefill: Callable[[Any, WorkerParts], PrefillEngine]
    decode: Callable[[Any, WorkerParts, DisaggregationParams], DecodeWorker]
    replica: type[PrefillReplica]


SIDES: Mapping[str, Sides] = {
    DEFAULT_ENGINE: Sides(
        lambda contract, parts: contract.worker_as(SGLangPrefillOnly, parts),
        lambda contract, parts, params: SGLangDecode(
            parts, contract.limits, params.reserved_decode_tokens
        ),
        ReservesAtArrival,
    ),
    "vllm": Sides(
        lambda contract, parts: contract.worker_as(VLLMPrefillOnly, parts),
        lambda contract, parts, params: VLLMDecode(parts, contract.limits),
        ReservesWhenComputed,
    ),
}


def disaggregated(
    settings: Mapping[str, Any],
    engine: str,
    contract: EngineContract,
    prefills: list[WorkerParts],
    decode_count: int,
) -> list[Replica]:
    """Create a disaggregated cluster; return the prefill workers, then the decode workers.

    Args:
        settings: The experiment's settings, by ``NAME.PARAM``.
        engine: Name of the engine, such as ``sglang``.
        contract: The parameters of the engine, which the decode workers use.
        prefills: The components of each prefill worker.
        decode_count: Number of decode workers.
    """
    params = make_params(DISAGGREGATION, DisaggregationParams, settings)
    sides, first = SIDES[engine], prefills[0]
    uncapped = {**settings, f"{ENGINES[engine].part}.load_cap": None}
    prompts = CONTRACTS[engine](uncapped, first.profile)
    engines = [sides.prefill(prompts, parts) for parts in prefills]
    decodes = [
        sides.decode(contract, replace(first, index=index), params)
        for index in range(len(prefills), len(prefills) + decode_count)
    ]
    token_bytes = first.profile.pool.kv_bytes_per_token
    transfers = Transfers(first.clock, params, token_bytes, len(prefills) + decode_count)
    room = DecodeRoom(decodes) if params.reserve == "admission" else None
    replicas: list[Replica] = []
    for index, one in enumerate(engines):
        if room is None:
            replicas.append(sides.replica(index, one, decodes, transfers))
        else:
            one.cap = room
            replicas.append(ReservesAtAdmission(room, index, one, decodes, transfers))
    for decode in decodes:
        decode.on_release = partial(
            _released, engines, charges=params.charge_outputs, wakes=room is not None
        )
    return [*replicas, *decodes]


def _released(
    engines: list[PrefillEngine], sequence: Sequence, *, charges: bool, wakes: bool
) -> None:
    """Tell the prefill workers that a decode worker has freed a request's memory."""
    if charges and sequence.produced > 1:
        scheduler = engines[sequence.worker].scheduler
        scheduler.on_tokens(sequence.request.client, sequence.produced - 1)
    if wakes:
        for engine in engines:
            engine.wake_if_waiting()


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """The limits on a decode worker's memory and numbers of requests."""

    pool_tokens: int
    most_running: int
    most_members: int
    load_cap: LoadCapSetting = None
    host_tokens: int = 0
    step_by_step: bool = False


class DecodeWorker(EngineLoop[KVNode]):
    """A worker that decodes requests whose prompts prefill workers have computed.

    ``reserve_in_turn`` reserves memory for a prompt, first come, first served. ``reserve`` reserves
    memory immediately, if ``may_take`` has returned True. ``receive`` adds a request whose KV cache
    has arrived, and the request runs from the next step on. ``assigned`` counts the requests that
    run or will run on the worker, and ``members`` counts the requests with memory. The worker calls
    ``on_release`` each time one of its requests ends.

    Requests on decode workers share no prefixes. SGLang has no prefix cache on a decode worker, and
    the simulated vLLM has none either. Memory is counted in tokens.
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
        """Return whether ``tokens`` tokens of a request fit into the free memory."""

    # Prefill workers' calls

    def may_take(self, request: Request, tokens: int) -> bool:
        """Return whether memory, slots and the load cap allow a request of ``tokens`` tokens.

        While a retracted request waits, no other request may take memory.
        """
        self.sync()
        return not self.retracted and self._has_room(request, tokens)

    def reserve_in_turn(self, sequence: Sequence, granted: Callable[[], None]) -> None:
        """Reserve memory for a prompt in FCFS order, and then call ``granted``."""
        self._asking.append((sequence, granted))
        run, request = self._run, sequence.request
        first = run is not None and len(self._asking) == 1
        if run is not None and first and self.may_take(request, request.input_tokens):
            self._stop_run(run)
        self.wake()

    def reserve(self, sequence: Sequence) -> None:
        """Reserve memory for a prompt. Precondition: ``may_take`` returned True.

        The current series of decode steps ends early, because it was planned with memory that the
        prompt now takes.
        """
        sequence.reserved_ps = self._clock.now_ps
        self._hold(sequence, sequence.request.input_tokens)
        if self._run is not None:
            self._stop_run(self._run)

    def cancel(self, sequence: Sequence) -> None:
        """Free the reserved memory of a request that will not be sent."""
        self._give_back(sequence.private)
        self.cap.leave(sequence.request)
        self._end(sequence)
        self.wake()

    def receive(self, sequence: Sequence) -> None:
        """Add a request whose KV cache has been transferred."""
        sequence.received_ps = self._clock.now_ps
        self._received.append(sequence)
        if self._run is not None:
            self._stop_run(self._run)
        self.wake()

    # Replica interface

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

    # Decode steps

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
            # No step can start: the batch is empty, or all free memory is reserved for KV caches in
            # transfer.
            return False
        steps = min(batch.steps_to_finish(), cache.free // batch.size, self._most_steps())
        self._start_run(steps, -self._extra_ps())
        return True

    def _most_steps(self) -> int:
        """Return the maximum number of decode steps before the scheduler must decide again."""
        retracted = self.retracted[0] if self.retracted else None
        returns = retracted is not None and self._has_room(retracted.request, retracted.total)
        return 1 if returns or self.limits.step_by_step else 2**62

    def _extra_ps(self) -> int:
        """Return the part (ps) of a decode step's time that the timing profile omits."""
        return 0

    def _recompute(self) -> bool:
        """Start to recompute retracted requests; return False if no request is retracted."""
        return False

    def _provide(self, steps: int) -> None:
        batch = self.batch
        self.cache.grow(steps, batch.per_client, batch.size)

    def _release(self, sequence: Sequence) -> None:
        self._give_back(sequence.private + self.batch.remove_sequence(sequence))
        self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        sequence.private = 0
        self.assigned -= 1
        self.on_release(sequence)

    # Memory

    def _has_room(self, request: Request, tokens: int) -> bool:
        """Return whether a request may take memory; an empty worker accepts any request."""
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
        return self.cache.free - self.batch.size

    def _retract(self) -> None:
        """Retract requests, except the last one, until memory suffices for the next decode step."""
        self._end_stretch()
        order = self._retraction_order()
        while self.batch.size > self.cache.free and len(order) > 1:
            sequence = order.pop()
            tokens = sequence.private + self.batch.remove_sequence(sequence)
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
        """Return the running sequences; the last sequence is retracted first."""

    @abstractmethod
    def _store(self, sequence: Sequence, tokens: int) -> None:
        """Retract a sequence and free the memory of its ``tokens`` tokens."""

    @abstractmethod
    def _load(self, sequence: Sequence) -> None:
        """Return a retracted sequence to the batch after memory was reserved for it."""


# If the running limit is at most ``FEW_RUNNING``, SGLang reserves memory for up to three times as
# many requests as may run.
FEW_RUNNING = 32


class SGLangDecode(DecodeWorker):
    """SGLang's decode worker, which keeps ``reserved`` tokens per request free for outputs.

    A request gets memory if its prompt and ``reserved`` further tokens fit. The request's prompt
    and output must also fit into the sum of free memory and all running requests' memory
    (``DecodePreallocQueue``, SGLang 0.5). Retracted KV cache is copied to CPU memory and back.
    """

    def __init__(self, parts: WorkerParts, limits: EngineLimits, reserved: int) -> None:
        running = limits.max_running_requests
        members = 3 * running if running <= FEW_RUNNING else running
        own = DecodeLimits(
            *(limits.pool_tokens, running, members, limits.load_cap, limits.host_tokens),
            step_by_step=limits.step_by_step,
        )
        super().__init__(parts, own)
        self._reserved = reserved

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def _fits_beside(self, request: Request, tokens: int) -> bool:
        allocatable = self._free - self._reserved * self.members
        whole = request.input_tokens + min(request.max_new_tokens, CLIP_MAX_NEW_TOKENS)
        return max(tokens + self._reserved, whole - self.batch.context_tokens) <= allocatable

    def _join(self, sequence: Sequence) -> None:
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self._clock.now_ps
            sequence.produced = 1
        super()._join(sequence)

    def _retraction_order(self) -> list[Sequence]:
        return self.batch.retraction_order()

    def _store(self, sequence: Sequence, tokens: int) -> None:
        self.host.store(sequence, tokens)

    def _load(self, sequence: Sequence) -> None:
        self.host.load(sequence, 0)
        self._join(sequence)


UNLIMITED = 2**62


class VLLMDecode(DecodeWorker):
    """vLLM's decode worker, whose first step for a request produces its first token.

    A request may take memory if a slot and enough blocks for the whole prompt are free. The request
    that joined last is preempted first, and is later recomputed on the decode worker. The simulator
    recomputes preempted requests in a separate iteration, whereas vLLM mixes the recomputation with
    decoding.
    """

    def __init__(self, parts: WorkerParts, limits: VLLMLimits) -> None:
        pool, size = limits.blocks * limits.block_size, limits.max_num_seqs
        step_by_step = limits.step_by_step
        own = DecodeLimits(pool, size, UNLIMITED, limits.load_cap, step_by_step=step_by_step)
        super().__init__(parts, own)
        self._block_size, self._watermark = limits.block_size, limits.watermark_blocks
        self._fresh: dict[Sequence, None] = {}
        self._again: list[Prefill] = []

    def in_flight(self) -> list[Sequence]:
        return [*super().in_flight(), *(prefill.sequence for prefill in self._again)]

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens - 1 <= self.limits.pool_tokens

    def _fits_beside(self, request: Request, tokens: int) -> bool:
        blocks = -(-tokens // self._block_size) + self._watermark
        return (
            self.batch.size < self.limits.most_running and blocks * self._block_size <= self._free
        )

    def _join(self, sequence: Sequence) -> None:
        if not sequence.produced:
            self._fresh[sequence] = None
        super()._join(sequence)

    def _most_steps(self) -> int:
        fresh = not self._fresh.keys().isdisjoint(self.batch.sequences)
        return 1 if fresh else super()._most_steps()

    def _extra_ps(self) -> int:
        return longest_ps(self._profile, self.batch)

    def _end_iteration(self) -> None:
        batch = self.batch
        for sequence in [one for one in self._fresh if one in batch.sequences]:
            if batch.produced(sequence):
                sequence.first_token_ps = self._clock.now_ps
                del self._fresh[sequence]
        super()._end_iteration()

    def _retraction_order(self) -> list[Sequence]:
        return self._running()

    def _store(self, sequence: Sequence, tokens: int) -> None:
        self._fresh.pop(sequence, None)

    def _load(self, sequence: Sequence) -> None:
        sequence.recompute_tokens += sequence.total
        self._again.append(Prefill(sequence, 0, sequence.total, first=True, last=True))

    def _recompute(self) -> bool:
        if not self._again:
            return False
        self._end_stretch()
        chunks = [prefill.chunk for prefill in self._again]
        start_ps = self._clock.now_ps
        end_ps = start_ps + self._profile.prefill_ps(chunks)
        self._computes_prompts = True
        self._clock.at(end_ps, END, self.index, partial(self._end_recompute, start_ps))
        return True

    def _end_recompute(self, start_ps: int) -> None:
        self._computes_prompts = False
        again, self._again = self._again, []
        self._end_prompts(again, start_ps)
