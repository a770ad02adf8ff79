"""SGLang's prefill admission (PrefillAdder) on one worker. See docs/appendix/engine.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from fairbench.core import PS_PER_S, Request, new_tuple
from fairbench.hardware.engine_params import EngineLimits
from fairbench.hardware.gpu_time import Chunk
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import ADMITTED, LAST, NO_ROOM, OVER, Preempt, Tried, drive, never
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS, RunningBatch
from fairbench.sim.engine.host_memory import HostMemory
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.prefill import Prefill, book_admission
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


class PrefillPass:
    """The budgets of one pass, and the admitted requests. The page size is 1."""

    def __init__(
        self, cache: KVCache, host: HostMemory, reserved_tokens: float, limits: EngineLimits
    ) -> None:
        self._cache = cache
        self._host = host
        self._total_offset = reserved_tokens
        self._current_offset = 0
        self._input_left = limits.max_prefill_tokens
        self._chunk_left = limits.chunked_prefill_size
        self.within_budget = limits.rules.tries_within_budget  # used by ``spent``
        self.admitted: list[Prefill] = []
        self.chunked: Sequence | None = None  # a request that has more chunks to come
        self.out_of_memory = False
        self.over = False  # nothing more is tried after the last admission
        self.refused = False  # whether a candidate had memory but no chunk budget
        self.used_up = (
            self._input_left <= 0 or self._chunk_left <= 0
        )  # a used-up budget ends the pass

    def _reserved_all(self) -> bool:
        memory = self._cache.free + self._cache.evictable
        return memory <= self._total_offset or memory <= self._current_offset

    @property
    def spent(self) -> bool:
        """Return whether the input or chunk budget is used up, which ends the pass.

        If memory is used up too, return False: the next candidate is tried, and does not fit.
        Without ``within_budget``, one more candidate is tried in any case, without the load cap.
        """
        return self.used_up and not self._reserved_all()

    def give_back(self, reserved_tokens: float) -> None:
        """Release the tokens reserved for the outputs of a preempted request."""
        self._total_offset -= reserved_tokens

    def continue_chunk(self, sequence: Sequence) -> None:
        """Continue the chunked request first, regardless of the policy."""
        remaining_total = self._cache.free + self._cache.evictable - self._total_offset
        limit = min(self._chunk_left, int(remaining_total))
        if limit <= 0:
            limit = self._chunk_left
        left = sequence.total - sequence.filled
        tokens = min(left, limit)
        self._commit(sequence, tokens, 0, first=False, last=tokens == left)
        self.out_of_memory = False  # the next candidate's own test of fit decides

    def would_fit(
        self,
        sequence: Sequence,
        waiting: WaitingQueue[KVNode],
        without: Collection[tuple[KVNode, int, float]],
    ) -> bool:
        """Return whether ``try_admit`` would pass if some running requests were preempted.

        Each entry of ``without`` has the end of a running request's locked path, its private tokens
        and its reserved tokens. They are subtracted one by one, as in ``give_back``, because a
        rounded sum may fall on another side of the limit.
        """
        cache = self._cache
        node, _ = waiting.match(sequence.request)
        cache.lock(node)
        offset, freed = self._total_offset, locked_by([end for end, _, _ in without])
        for _, private, reserved in without:
            offset -= reserved
            freed += private
        fits = self._fits(sequence, node, offset, freed)
        cache.unlock(node)
        return fits

    def _fits(self, sequence: Sequence, node: KVNode, offset: float, freed: int = 0) -> bool:
        request = sequence.request
        to_go = min(request.max_new_tokens - sequence.produced, CLIP_MAX_NEW_TOKENS)
        need = sequence.total - node.depth + to_go + 1
        return need < self._cache.free + self._cache.evictable + freed - offset

    def try_admit(self, sequence: Sequence, waiting: WaitingQueue[KVNode]) -> bool:
        """Run the test of fit, and admit the request if it passes.

        The prefix is locked before the test.
        """
        cache = self._cache
        node, place = waiting.match(sequence.request)
        extend = sequence.total - node.depth
        cache.lock(node)
        if not self._fits(sequence, node, self._total_offset):
            cache.unlock(node)
            self.out_of_memory = True
            return False
        if self._chunk_left <= 0:
            cache.unlock(node)
            self.refused = True
            return False
        if cache.knows_clients:
            cache.claim(node, sequence.request)
        loaded = self._host.behind(sequence, node.depth) if sequence.host_tokens else 0
        sequence.node, sequence.place, sequence.filled = node, place, node.depth + loaded
        left = extend - loaded
        tokens = left if left < self._chunk_left else self._chunk_left
        self._commit(sequence, tokens, loaded, first=True, last=tokens == left)
        return True

    def take_memory(self) -> list[Chunk]:
        """Allocate memory for admitted requests, and return the computed chunks."""
        computed: list[Chunk] = []
        for sequence, cached, tokens, first, _, loaded in self.admitted:
            taken = loaded + tokens
            sequence.private += taken
            self._cache.allocate_for(sequence.request.client, taken)
            if first and sequence.host_tokens:
                self._host.load(sequence, cached - loaded)
            computed.append((cached, tokens))
        return computed

    def _commit(
        self, sequence: Sequence, tokens: int, loaded: int, *, first: bool, last: bool
    ) -> None:
        prefill = (sequence, sequence.filled, tokens, first, last, loaded)
        self.admitted.append(new_tuple(Prefill, prefill))
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
        self.over = self.used_up = self._input_left <= 0 or self._chunk_left <= 0
        if self._reserved_all():
            self.over = self.out_of_memory = True  # although this request was admitted


def run_selection(
    attempt: PrefillPass,
    scheduler: LocalScheduler,
    waiting: WaitingQueue[KVNode],
    batch: RunningBatch,
    most: int,
    cap: LoadCap,
    now_ps: int,
    preempt: Callable[[Preempt], bool] = never,
) -> bool:
    """Fill the pass to ``most`` running requests; return whether slots or load cap kept one out."""
    no_slots = False
    slotless: Request | None = None  # the last request that got no slot
    running = 0  # requests in the batch at that time

    def try_admit(request: Request) -> Tried:
        nonlocal no_slots, slotless, running
        spent = attempt.used_up and attempt.spent
        if spent and attempt.within_budget:
            return OVER
        if batch.size + len(attempt.admitted) >= most:
            made_way = request is slotless and batch.size < running
            if not made_way:
                no_slots, slotless, running = True, request, batch.size
                return NO_ROOM if scheduler.preempts else OVER
        if not spent and not cap.has_room(request):
            no_slots = True
            return NO_ROOM
        sequence = waiting.entries[request].sequence
        if not attempt.try_admit(sequence, waiting):
            return OVER if attempt.refused else NO_ROOM
        waiting.admit(request)
        cap.enter(request)
        book_admission(sequence, scheduler, now_ps)
        return LAST if attempt.over else ADMITTED

    try:
        drive(scheduler.select(waiting, now_ps / PS_PER_S), try_admit, preempt)
    finally:
        waiting.end_pass()
    return no_slots


def locked_by(ends: Iterable[KVNode]) -> int:
    """Return the tokens that only these locks protect, with a ``lock`` per end."""
    tokens, gone = 0, Counter[KVNode]()
    for node in ends:
        while (parent := node.parent) is not None:
            gone[node] += 1
            if gone[node] < node.locks:
                break
            tokens += node.length
            node = parent
    return tokens


class PassInterval:
    """A pass is due if no request decodes, and ``every`` steps after the last due pass.

    The interval is SGLang's ``num_continuous_decode_steps``; 1 means after each step. A prefill is
    followed by a pass immediately, because a prefill is not a decode step. Waiting requests have no
    effect: steps are counted from pass to pass, so a request may arrive in between and has to wait
    for the next pass.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._last = 0

    def is_due(self, steps: int, *, decoding: bool) -> bool:
        """Return whether a pass is due after ``steps`` steps in total; count it if it is due."""
        due = not decoding or (steps - self._last) % self._every == 0
        if due:
            self._last = steps
        return due

    def left(self, steps: int) -> int:
        """Return the decode steps until the next pass, at least 1."""
        return self._every - (steps - self._last) % self._every
