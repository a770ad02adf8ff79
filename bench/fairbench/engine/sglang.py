"""A simulated SGLang replica: admission, prompt chunks, decoding and retraction.

``_start`` begins each iteration; an iteration either computes chunks of prompts or decodes. If a
decode step lacks memory, running requests are retracted first. ``Admission`` decides on each
candidate of an admission pass. Overlap scheduling is not simulated. The simulated rules are
explained in docs/appendix/engine.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from fairbench.core import PS_PER_S, Request, Segment, new_tuple
from fairbench.engine.batch import (
    BatchView,
    DecodeRun,
    Prefill,
    RunningBatch,
    book_admission,
    report_prompts,
    shares_of,
)
from fairbench.engine.clock import END
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache, KVNode
from fairbench.engine.loop import EngineLoop
from fairbench.engine.sequence import UNFINISHED, Sequence
from fairbench.engine.waiting_queue import WaitingQueue, retraction_order
from fairbench.hardware.engine_params import EngineLimits, Splits
from fairbench.hardware.gpu_time import Chunk, prompt_parts
from fairbench.schedulers.drive import ADMITTED, LAST, NO_ROOM, OVER, Preempt, Tried, never
from fairbench.schedulers.prefix_tree import place_at
from fairbench.schedulers.views import CLIP_MAX_NEW_TOKENS, Room


class SGLangReplica(EngineLoop[KVNode]):
    """An SGLang replica."""

    __slots__ = (
        "_admission", "_always_due", "_batch_is_full", "_chunked", "_computed", "_has_tail",
        "_kept", "_passes", "_prefill_start_ps", "_prefills", "_ratio", "cache", "limits",
    )  # fmt: skip

    def __init__(self, parts: WorkerParts, limits: EngineLimits, cache: KVCache) -> None:
        in_batch, match_us = limits.in_batch_prefix_caching, limits.prefix_match_us
        aware, touches = parts.scheduler.cache_aware, limits.rules.touches_waiting
        waiting = WaitingQueue(cache, aware, in_batch=in_batch, match_us=match_us, touches=touches)
        batch = RunningBatch(parts.log.index)
        super().__init__(parts, batch, waiting, limits.load_cap, limits.host_tokens)
        self.limits, self.cache = limits, cache
        self._ratio = NewTokenRatio(limits.schedule_conservativeness, limits.full_reservation)
        self._passes = PassInterval(limits.num_continuous_decode_steps)
        self._has_tail = parts.profile.longest_ps > 0
        self._always_due = limits.num_continuous_decode_steps == 1
        # While ``_batch_is_full`` is true, SGLang admits no request until a running request leaves
        # the batch, unless the scheduler may preempt.
        self._batch_is_full = False
        self._admission: Admission | None = None
        # ``_chunked`` is the admitted request whose prompt needs further chunks.
        self._chunked: Sequence | None = None
        self._prefills: list[Prefill] = []
        self._computed: list[Chunk] = []
        self._prefill_start_ps = 0
        # ``_kept`` holds finished sequences, which SGLang before 0.5.23 keeps in the batch.
        self._kept: list[Sequence] = waiting.ended
        waiting.running = BatchView(
            batch, lambda: cache.free + cache.evictable, self._would_fit_without
        )

    def _start(self) -> bool:
        if not self.batch.size:
            self._batch_is_full = False
        return self._start_prefill() or self._start_decode()

    # Part 1 of the engine: admission. A prompt in progress continues before new requests are
    # admitted.

    def _start_prefill(self) -> bool:
        """Admit requests and start their prompt chunks; return False if no chunk was admitted."""
        batch, waiting = self.batch, self.waiting
        if self.scheduler.decodes_first is not None and self._decodes_first():
            return False
        if not (self._always_due or self._passes.is_due(batch.steps, decoding=batch.size > 0)):
            return False
        most = self._slots()
        if self._chunked is None:
            if not waiting.entries or (self._batch_is_full and not self._preempts):
                return False
            if batch.size >= most and not self._preempts:
                self._batch_is_full = self.limits.marks_full_batch
                return False
        if self.scheduler.sort_queue is not None:
            waiting.sort(self.scheduler)
        elif not self.scheduler.cache_aware:
            waiting.pass_unmatched()
        reserved = self._reserved_tokens() * self._ratio.ratio_after(batch.steps)
        self._admission = admission = Admission(self, reserved, most)
        if self._chunked is not None:
            admission.continue_chunk(self._chunked)
        preempt = admission.preempt if self._preempts else never
        try:
            chunked = () if self._chunked is None else (self._chunked,)
            self._select(chunked, admission.try_admit, preempt)
        finally:
            waiting.end_pass()
        goes_on = admission.prefills or batch.size or self._kept
        if admission.no_slots or (admission.out_of_memory and goes_on):
            self._batch_is_full = self.limits.marks_full_batch
        self._chunked = admission.chunked
        for sequence in admission.preempted:
            self._wait_again(sequence)
        if admission.preempted:
            self._batch_is_full = False
        if not admission.prefills:
            return bool(admission.preempted) and not batch.size and self._start_prefill()
        self._start_chunks(admission.prefills)
        return True

    def _decodes_first(self) -> bool:
        """Return whether the scheduler lets the batch decode before all prompts are complete."""
        assert self.scheduler.decodes_first is not None, "precondition: the scheduler chooses"
        memory, chunked = self.cache.free + self.cache.evictable, self._chunked
        if self.limits.enable_mixed_chunk or not 0 < self.batch.size <= memory:
            return False
        if chunked is None and (self._batch_is_full or not self.waiting.entries):
            return False
        if chunked is not None:
            oldest, left = chunked.request, chunked.total - chunked.filled
        else:
            oldest = next(iter(self.waiting.queue_order()))
            left = self.waiting.sequence_of(oldest).total
        return self.scheduler.decodes_first(oldest, left, self._clock.now_ps / PS_PER_S)

    def _slots(self) -> int:
        twice = self._chunked is not None and not self.limits.rules.counts_chunk_once
        return self.limits.max_running_requests - twice

    def _reserved_tokens(self) -> int:
        return self.batch.reserved_tokens()

    # Part 2 of the engine, prefill: an iteration computes the admitted chunks, and requests with
    # complete prompts join the batch.

    def _start_chunks(self, prefills: list[Prefill]) -> None:
        computed: list[Chunk] = []
        for sequence, cached, tokens, first, _, loaded in prefills:
            taken = loaded + tokens
            sequence.private += taken
            self.cache.allocate_for(sequence.request.client, taken)
            if first and sequence.host_tokens:
                self.host.load(sequence, cached - loaded)
            computed.append((cached, tokens))
            self.waiting.computed_tokens += tokens
        self._prefills, self._computed = prefills, computed
        delay_ps = self._delay_ps(prompts=True)
        start_ps = self._prefill_start_ps = self._clock.now_ps + delay_ps
        duration = self._chunks_ps()
        self._end_stretch()
        self._computes_prompts = True
        self._clock.at(start_ps + duration, END, self.index, self._end_prefill)

    def _chunks_ps(self) -> int:
        return self._profile.prefill_ps(self._computed)

    def _end_prefill(self) -> None:
        now_ps = self._clock.now_ps
        prefills, self._prefills = self._prefills, []
        self._computes_prompts = False
        if self._chunked is not None or not (self.batch.size or self._kept):
            # SGLang clears ``batch_is_full`` when it takes an unfinished prompt out of its batch or
            # replaces an empty batch. With ``batch_is_full`` cleared, the next admission pass runs
            # even if the last pass lacked memory.
            self._batch_is_full = False
        start_ps = self._prefill_start_ps
        if self.scheduler.on_iteration is not None:
            self.scheduler.on_iteration(sum(one.tokens for one in prefills), start_ps, now_ps)
        parts = prompt_parts(self._costs, now_ps - start_ps, self._computed)
        if self.batch.times_requests or self.scheduler.on_prompt_time is not None:
            report_prompts(prefills, parts, self.scheduler)
        for prefill in prefills:
            sequence = prefill.sequence
            store_prompt(self.cache, sequence, prefill.tokens, self.limits.rules.splits)
            if prefill.last:
                self._produce_first(sequence)
        shares = shares_of(prefills, parts)
        self._log.prefill(self.index, start_ps, now_ps, len(prefills), shares)
        self._end_iteration()

    # Part 3 of the engine, decoding: each decode step yields a token for every running request.

    def _start_decode(self) -> bool:
        batch, cache = self.batch, self.cache
        size = batch.size
        if not size:
            return False
        if size > cache.free + cache.evictable:
            self._retract()
            size = batch.size
        if size > cache.free:
            cache.evict(size - cache.free, batch.per_client)
        steps, room = batch.steps_to_finish(), cache.free // size
        if room < steps:
            steps = room
        if self.limits.step_by_step:
            steps = 1
        elif (self.waiting.entries and self._may_admit) or (
            self._chunked is not None and self.scheduler.decodes_first is not None
        ):
            steps = min(steps, self._passes.steps_to_pass(batch.steps))
        saved_ps = 0
        if self._profile.shared_read != 1:
            # A decode step reads a prefix once for all requests of the batch that share it.
            held = cache.capacity - cache.free - cache.evictable + size
            saved_ps = self._profile.saved_ps(max(0, batch.context_tokens - held))
        if self._has_tail:
            # Long sequences slow a step down. ``lengths`` holds each sequence's length when it
            # joined.
            lengths = [one.request.input_tokens + one.produced for one in batch.sequences]
            saved_ps -= self._profile.tail_ps(lengths)
        self._start_run(steps, saved_ps)
        return True

    def _stop_run(self, run: DecodeRun) -> None:
        """End a series of decode steps with the step in progress."""
        now_ps = self._clock.now_ps
        steps, end_ps = run.steps_before(now_ps + self._clock.past(END, self.index))
        if end_ps != now_ps:
            steps += 1
        if steps < run.steps:
            run.steps = steps
            self._await_end(run)

    def _provide(self, steps: int) -> None:
        self.cache.grow(steps, self.batch.per_client, self.batch.size)

    def _release(self, sequence: Sequence) -> None:
        # SGLang removes finished requests before its next pass, and so clears ``batch_is_full``.
        self._batch_is_full = False
        self.batch.remove_sequence(sequence)
        store_outputs(self.cache, sequence, self.limits.rules.splits)

    # Part 4 of the engine, retraction: running requests lose their memory and wait again.

    def _retract(self) -> None:
        """Retract requests until the next decode step has enough memory.

        As in SGLang, unused cached tokens are evicted first. After a retraction, every remaining
        request has memory for 20 more steps.
        """
        self._end_stretch()
        batch, cache = self.batch, self.cache
        if self.scheduler.retraction_order is None:
            order = batch.retraction_order()
        else:
            now_s = self._clock.now_ps / PS_PER_S
            order = retraction_order(self.scheduler, self.waiting, batch.sequences, now_s)[::-1]
        cache.evict(batch.size - cache.free, batch.per_client)
        while batch.size > cache.free + cache.evictable and len(order) > 1:
            sequence = order.pop()
            self._take_back(sequence)
            room = RETRACT_DECODE_STEPS * len(order)
            cache.evict(room - cache.free, batch.per_client)
            self._wait_again(sequence)
        batch.rearrange(order)
        self._ratio.after_retraction(batch)
        self._batch_is_full = False

    def _take_back(self, sequence: Sequence) -> None:
        free_retracted(self.cache, sequence, self.batch.remove_sequence(sequence))
        self.cap.leave(sequence.request)
        sequence.retract(self._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        now_s = self._clock.now_ps / PS_PER_S
        self.scheduler.on_retract(sequence.request, self.waiting, now_s)
        self.waiting.enter(sequence)

    def _would_fit_without(self, request: Request, without: Collection[Sequence]) -> bool:
        assert self._admission is not None, "precondition: a pass has begun"
        return self._admission.would_fit(request, without)

    def output_reservation(self, sequence: Sequence) -> float:
        """Return the tokens that a pass reserves for a running request's future outputs."""
        to_go = sequence.request.max_new_tokens - self.batch.produced(sequence)
        return min(to_go, CLIP_MAX_NEW_TOKENS) * self._ratio.ratio_after(self.batch.steps)

    # Replica interface

    @property
    def _may_admit(self) -> bool:
        return self._preempts or not self._batch_is_full

    @property
    def saturated(self) -> bool:
        """Whether requests wait and ``batch_is_full`` is set, although preemption might help."""
        return len(self.waiting) > 0 and self._batch_is_full

    @property
    def room(self) -> Room:
        batch, cache, chunked = self.batch, self.cache, self._chunked
        if self._batch_is_full and (batch.size or self._prefills):
            return Room(0, 0, 0)
        reserved = self._reserved_tokens()
        prompts = min(self.limits.chunked_prefill_size, self.limits.max_prefill_tokens)
        if chunked is not None:
            prompts -= chunked.total - chunked.filled
        for sequence, _, tokens, _, last, _ in self._prefills:
            if last:
                reserved += min(sequence.request.max_new_tokens, CLIP_MAX_NEW_TOKENS)
            elif sequence is chunked:
                prompts += tokens
        free = cache.free + cache.evictable - reserved * self._ratio.ratio_after(batch.steps)
        slots = self.limits.max_running_requests - self.running_count
        return Room(slots, int(free), prompts)

    @property
    def running_count(self) -> int:
        chunked = self._chunked is not None and all(
            prefill.sequence is not self._chunked for prefill in self._prefills
        )
        return len(self.batch) + len(self._prefills) + chunked

    def _running(self) -> list[Sequence]:
        prefilling = [prefill.sequence for prefill in self._prefills]
        chunked = [self._chunked] if self._chunked and self._chunked not in prefilling else []
        return [*self.batch.sequences, *prefilling, *chunked]

    def _rest(self) -> None:
        super()._rest()
        if not len(self.waiting):
            self._ratio.reset(self.batch.steps)

    def fits(self, request: Request) -> bool:
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def abort(self, sequence: Sequence) -> None:
        """Abort a request.

        If the request waits, it leaves the queue and counts as refused. An aborted running request
        ends after the decode step in progress, and a prefilling request after its first output
        token. A request that is aborted after its admission counts as FINISHED, and its output
        stays cached.
        """
        if sequence.status != UNFINISHED:
            return
        self.sync()
        if self.frontend.withdraw(sequence):
            sequence.refuse()
        elif sequence in self.batch.sequences:
            if self._run is not None:
                self._stop_run(self._run)
            self.batch.shorten_output(sequence, self._steps_under_way())
        elif sequence in self._inbox:
            self._inbox.remove(sequence)
            sequence.refuse()
        elif sequence.request in self.waiting:
            self.waiting.withdraw(sequence.request)
            self.host.free_copy(sequence)
            self.cap.finish(sequence.request, sequence.produced)
            self.scheduler.on_output(sequence.request, sequence.produced)
            self.scheduler.on_finish(sequence.request)
            sequence.refuse()
        else:
            sequence.output = Segment(sequence.output.key, sequence.produced + 1)

    def _steps_under_way(self) -> int:
        """Return the number of decode steps that remain in the current iteration."""
        return 0 if self._run is None else self._run.steps

    def step_end_ps(self, steps: int) -> int | None:
        """Return the time (ps) at which the next ``steps`` decode steps will end.

        If fewer than ``steps`` decode steps are planned, return the end of the last planned step.
        Without planned decode steps, return None. Precondition: ``sync`` was called.
        """
        return None if self._run is None else self._run.end_ps(min(steps, self._run.steps))

    def settle(self) -> None:
        """Write the remaining records, and undo the admissions of an unfinished iteration."""
        super().settle()
        for prefill in self._prefills:
            if prefill.first:
                prefill.sequence.not_admitted(prefill.cached)


class Admission:
    """The budgets of an admission pass, and the decision on each candidate (SGLang's PrefillAdder).

    The page size of the cache is 1. ``reserved_tokens`` is the memory reserved for running
    requests' outputs, and ``most`` is the maximum number of running requests. With mixed chunks,
    each running request decodes one token, which counts against the token budgets and the memory.
    """

    def __init__(self, replica: SGLangReplica, reserved_tokens: float, most: int) -> None:
        limits = replica.limits
        self._replica = replica
        self._cache = replica.cache
        self._most = most
        beside = replica.batch.size if limits.enable_mixed_chunk else 0
        # ``_total_offset`` is the memory in tokens that is reserved for running and admitted
        # requests.
        self._total_offset = reserved_tokens + beside
        self._current_offset = beside
        self._input_left = limits.max_prefill_tokens - beside
        self._chunk_left = limits.chunked_prefill_size - beside
        self._used_up = self._input_left <= 0 or self._chunk_left <= 0
        self._tries_within_budget = limits.rules.tries_within_budget
        self._slotless: Request | None = None
        self._size_then = 0
        self.prefills: list[Prefill] = []
        # ``chunked`` is the request whose prompt continues in the next iteration.
        self.chunked: Sequence | None = None
        self.preempted: list[Sequence] = []
        # ``no_slots`` is true if a lack of free slots or the load cap prevented an admission.
        self.no_slots = False
        self.out_of_memory = False

    def try_admit(self, request: Request) -> Tried:
        """Admit a candidate if the budgets, slots, load cap and memory allow it.

        The admission pass ends when a budget is used up. In older SGLang releases
        (``tries_within_budget`` is False), the pass first tries one more request, without checking
        the load cap.
        """
        replica, cache, batch = self._replica, self._cache, self._replica.batch
        spent = self._used_up and self.spent
        if spent and self._tries_within_budget:
            return OVER
        if batch.size + len(self.prefills) >= self._most:
            made_way = request is self._slotless and batch.size < self._size_then
            if not made_way:
                self.no_slots, self._slotless, self._size_then = True, request, batch.size
                return NO_ROOM if replica.scheduler.preempts else OVER
        if not spent and not replica.cap.has_room(request):
            self.no_slots = True
            return NO_ROOM
        waiting = replica.waiting
        sequence = waiting.entries[request].sequence
        node, place = waiting.match(request)
        # Memory of a locked prefix does not count as evictable.
        cache.lock(node)
        if not self._fits(sequence, node, self._total_offset):
            cache.unlock(node)
            self.out_of_memory = True
            return NO_ROOM
        if self._chunk_left <= 0:
            cache.unlock(node)
            return OVER
        if cache.knows_clients:
            cache.claim(node, request)
        loaded = replica.host.behind(sequence, node.depth) if sequence.host_tokens else 0
        sequence.node, sequence.place, sequence.filled = node, place, node.depth + loaded
        left = sequence.total - sequence.filled
        tokens = left if left < self._chunk_left else self._chunk_left
        over = self._commit(sequence, tokens, loaded, first=True, last=tokens == left)
        waiting.admit(request)
        replica.cap.enter(request)
        book_admission(sequence, replica.scheduler, replica._clock.now_ps)
        return LAST if over else ADMITTED

    def continue_chunk(self, sequence: Sequence) -> None:
        """Add the next chunk of a prompt whose prefill began in an earlier iteration."""
        memory = self._cache.free + self._cache.evictable
        limit = min(self._chunk_left, int(memory - self._total_offset))
        if limit <= 0:
            limit = min(self._chunk_left, memory)
        if limit <= 0:
            # With mixed chunks, decoding may leave no budget or memory for the prompt. SGLang's
            # server then fails; in the simulator, the prompt waits until token budget and memory
            # are free.
            self.chunked = sequence
            return
        left = sequence.total - sequence.filled
        if (chunk_limit := self._replica.scheduler.chunk_limit) is not None:
            most = chunk_limit(left, self._chunk_left)
            limit = limit if most is None else min(limit, most)
        tokens = min(left, limit)
        self._commit(sequence, tokens, 0, first=False, last=tokens == left)
        # The admission pass goes on after this chunk, until a later candidate does not fit into
        # memory.
        self.out_of_memory = False

    def _commit(
        self, sequence: Sequence, tokens: int, loaded: int, *, first: bool, last: bool
    ) -> bool:
        """Subtract a chunk from the budgets; return whether the chunk ends the admission pass."""
        prefill = (sequence, sequence.filled, tokens, first, last, loaded)
        self.prefills.append(new_tuple(Prefill, prefill))
        taken = reserved = loaded + tokens + 1
        if last:
            most = sequence.request.max_new_tokens
            reserved += most if most < CLIP_MAX_NEW_TOKENS else CLIP_MAX_NEW_TOKENS
        else:
            self.chunked = sequence
        self._total_offset += reserved
        self._current_offset += taken
        self._input_left -= tokens
        self._chunk_left -= tokens
        self._used_up = self._input_left <= 0 or self._chunk_left <= 0
        if self._reserved_all():
            # Like SGLang, the simulator also sets ``out_of_memory`` if an admitted request reserves
            # all remaining memory.
            self.out_of_memory = True
            return True
        return self._used_up

    def _fits(self, sequence: Sequence, node: KVNode, offset: float, freed: int = 0) -> bool:
        request = sequence.request
        to_go = min(request.max_new_tokens - sequence.produced, CLIP_MAX_NEW_TOKENS)
        need = sequence.total - node.depth + to_go + 1
        return need < self._cache.free + self._cache.evictable + freed - offset

    def _reserved_all(self) -> bool:
        memory = self._cache.free + self._cache.evictable
        return memory <= self._total_offset or memory <= self._current_offset

    @property
    def spent(self) -> bool:
        """Whether the admission pass must end, because a token budget is used up.

        If both KV memory and a token budget are used up, SGLang tries one more request before the
        admission pass ends.
        """
        return self._used_up and not self._reserved_all()

    # Preemption

    def preempt(self, wish: Preempt) -> bool:
        """Carry out the scheduler's wish to preempt a running request.

        As in SGLang, cached tokens are evicted until each request that keeps running has memory for
        20 more steps. Return False if the request is not running, or if a requested swap of its KV
        cache does not fit into CPU memory.
        """
        replica, request = self._replica, wish.request
        batch, cache = replica.batch, self._cache
        sequence = next((one for one in batch.sequences if one.request is request), None)
        if sequence is None:
            return False
        # The last output token has no KV cache yet.
        held = request.input_tokens + batch.produced(sequence) - 1
        if wish.swap and not replica.host.fits_copy(held):
            return False
        replica._end_stretch()
        self._total_offset -= replica.output_reservation(sequence)
        replica._take_back(sequence)
        room = RETRACT_DECODE_STEPS * (batch.size + len(replica._kept))
        cache.evict(room - cache.free, batch.per_client)
        if wish.swap:
            replica.host.store(sequence, held)
        self.preempted.append(sequence)
        return True

    def would_fit(self, request: Request, without: Collection[Sequence]) -> bool:
        """Return whether a request would fit if the sequences in ``without`` were preempted.

        Reserved tokens are subtracted one request at a time, so that rounding errors are the same
        as in ``preempt``.
        """
        replica, cache = self._replica, self._cache
        if not replica.cap.has_room(request, [sequence.request for sequence in without]):
            return False
        node, _ = replica.waiting.match(request)
        cache.lock(node)
        freed = locked_by([one.node for one in without if one.node is not None])
        offset = self._total_offset
        for sequence in without:
            offset -= replica.output_reservation(sequence)
            freed += replica.batch.private(sequence)
        fits = self._fits(replica.waiting.sequence_of(request), node, offset, freed)
        cache.unlock(node)
        return fits


def store_prompt(
    cache: KVCache, sequence: Sequence, tokens: int, splits: Splits = "prefilled"
) -> None:
    """Store and lock ``tokens`` computed prompt tokens of a sequence in the prefix tree.

    The sequence's copies of tokens that are already in the tree are freed. If ``splits`` is
    "prefilled", outputs that are prefilled again after a retraction get a tree node of their own.
    """
    node, request = sequence.node, sequence.request
    assert node is not None
    sequence.filled += tokens
    end, cached = cache.insert(node, sequence.prompt, sequence.place, sequence.filled, lock=True)
    if cached:
        cache.release_of(request.client, cached)
    if cache.knows_clients:
        cache.claim(end, request)
    sequence.node, sequence.private = end, 0
    complete = sequence.filled == sequence.total
    sequence.place = (
        (len(sequence.prompt), 0) if complete else place_at(sequence.prompt, sequence.filled)
    )
    if sequence.filled > request.input_tokens and splits == "prefilled":
        # ``match`` is called to split the node at the end of the prompt.
        cache.match(request.prompt, request.input_tokens)


def store_outputs(cache: KVCache, sequence: Sequence, splits: Splits = "prefilled") -> None:
    """Store a finished sequence's outputs without the last token, and unlock its path.

    If ``splits`` is "finished", the outputs of a sequence that was retracted get a tree node of
    their own.
    """
    node, request = sequence.node, sequence.request
    assert node is not None
    kept = sequence.produced - 1
    end = node
    if request.input_tokens + kept > node.depth:
        prompt = (*request.prompt, sequence.output)
        place = len(request.prompt), node.depth - request.input_tokens
        end, cached = cache.insert(node, prompt, place, request.input_tokens + kept)
        if cached:
            cache.release_of(request.client, cached)
    if sequence.retractions and kept and splits == "finished":
        cache.match(request.prompt, request.input_tokens)
    if cache.knows_clients:
        cache.retain(end, request)
    cache.unlock(node)
    sequence.node = None


def free_retracted(cache: KVCache, sequence: Sequence, private: int) -> None:
    """Free a retracted sequence's private tokens and unlock its path."""
    assert sequence.node is not None
    cache.release_of(sequence.request.client, private)
    cache.unlock(sequence.node)


def locked_by(ends: Iterable[KVNode]) -> int:
    """Return the number of tokens that are unlocked if each node in ``ends`` loses a lock."""
    tokens, gone = 0, Counter[KVNode]()
    for node in ends:
        while (parent := node.parent) is not None:
            gone[node] += 1
            if gone[node] < node.locks:
                break
            tokens += node.length
            node = parent
    return tokens


INIT, MIN_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
RETRACT_DECODE_STEPS = 20


class NewTokenRatio:
    """SGLang's ``new_token_ratio``: memory is reserved for this fraction of remaining outputs.

    In the first 600 decode steps, the reserved fraction falls from min(0.7 * conservativeness, 1)
    to 14% of this start value. ``ratio_after`` computes ``new_token_ratio`` on demand.
    """

    def __init__(self, conservativeness: float, full_reservation: bool) -> None:
        self._full = full_reservation
        self._init = min(INIT * conservativeness, 1.0)
        self._min = self._init * MIN_FACTOR
        self._decay = (self._init - self._min) / DECAY_STEPS
        self._base, self._since = self._init, 0

    def ratio_after(self, step: int) -> float:
        """Return ``new_token_ratio`` after ``step`` decode steps of the worker."""
        if self._full:
            return 1.0
        since = step - self._since
        ratio = self._base - since * self._decay if since > 0 else self._base
        return ratio if ratio > self._min else self._min

    def reset(self, step: int) -> None:
        self._base, self._since = self._init, step

    def skip_step(self) -> None:
        """Keep ``new_token_ratio`` unchanged in a decode step that also computes prompts."""
        self._since += 1

    def after_retraction(self, batch: RunningBatch) -> None:
        """Set ``new_token_ratio`` after a retraction; the next step does not lower the ratio."""
        decoded = sum(batch.produced(s) for s in batch.sequences)
        allowed = sum(s.request.max_new_tokens for s in batch.sequences)
        ratio = (decoded + RETRACT_DECODE_STEPS * len(batch)) / (allowed + 1)
        self._base, self._since = min(1.0, ratio), batch.steps + 1


class PassInterval:
    """The decode steps between two admission passes (SGLang's ``num_continuous_decode_steps``).

    An admission pass is due after ``every`` decode steps, and whenever no request decodes. Directly
    after a prefill iteration, an admission pass is due again, because no decode step has passed. A
    request that arrives between two admission passes waits for the next pass, even if no other
    request waits.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._last = 0

    def is_due(self, steps: int, *, decoding: bool) -> bool:
        """Return whether an admission pass is due at step ``steps``; if so, store the step."""
        due = not decoding or (steps - self._last) % self._every == 0
        if due:
            self._last = steps
        return due

    def skip_step(self) -> None:
        """Exclude a decode step that also computes prompts from the count of decode steps."""
        self._last += 1

    def steps_to_pass(self, steps: int) -> int:
        """Return the number of decode steps until the next admission pass, at least 1."""
        return self._every - (steps - self._last) % self._every
