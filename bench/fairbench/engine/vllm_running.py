"""Data structures of a simulated vLLM replica: running requests, KV blocks and engine steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from fairbench.core import Prompt, Request
from fairbench.engine.batch import Prefill, RunningBatch, book_admission, shares_of
from fairbench.engine.logs import PrefillShare
from fairbench.engine.sequence import NEVER, Sequence
from fairbench.engine.vllm_blocks import BlockCache, BlockNode, RunCopy, held_by
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.hardware.engine_params import VLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.load_cap import LoadCap
from fairbench.schedulers.prefix_tree import Place
from fairbench.schedulers.views import ClientLoad, Running, client_load


@dataclass(slots=True)
class BlockTable:
    """The KV blocks that a sequence uses; ``node`` is the tree node of its last cached block.

    ``prompt`` holds the request's input and its whole output, even if not computed yet. ``node``
    ends at position ``place`` of ``prompt``. The sequence uses ``blocks`` blocks.
    """

    prompt: Prompt
    node: BlockNode
    place: Place
    blocks: int


class BlockTables:
    """The block tables of all running requests.

    As in vLLM, a block is cached when the step that will fill it is scheduled, so other requests
    may find the block in the same step.
    """

    def __init__(self, cache: BlockCache, *, reserve_full: bool, watermark_blocks: int) -> None:
        self._cache = cache
        self._size = cache.block_size
        self._reserve_full = reserve_full
        self._watermark = watermark_blocks
        self._tables: dict[Sequence, BlockTable] = {}

    def admit(
        self, sequence: Sequence, node: BlockNode, place: Place, tokens: int, *, alone: bool
    ) -> bool:
        """Allocate blocks for the first ``tokens`` tokens of a prompt.

        Return False if too few blocks are free. ``alone`` is true if no other request runs.
        """
        cached = [each.copies[0] for each in node.path()]
        whole = sequence.total if self._reserve_full else tokens
        if self._wanted(whole, cached, alone=alone) > self._cache.free_blocks:
            return False
        for copy in cached:
            self._cache.use(copy, sequence)
        if self._cache.knows_clients:
            self._cache.claim(node, sequence.request)
        prompt = (*sequence.request.prompt, sequence.output)
        table = BlockTable(prompt, node, place, node.depth // self._size)
        self._tables[sequence] = table
        self._take(sequence, table, tokens)
        self.store_full(sequence, tokens)
        return True

    def would_fit(
        self, sequence: Sequence, node: BlockNode, without: Iterable[Sequence], *, alone: bool
    ) -> bool:
        """Return whether a prompt would fit if the sequences in ``without`` were preempted.

        ``node`` is the node at which the prompt's cached prefix ends. ``alone`` is True if the
        prompt's request would be the only running request.
        """
        cached = [each.copies[0] for each in node.path()]
        freed, users = 0, Counter[RunCopy]()
        for one in without:
            freed += self._unstored(self._tables[one])
            users.update(self.copies(one))
        for copy in cached:
            # ``sequence`` needs this cached copy of a block, so preempting others does not free it.
            users.pop(copy, None)
        freed += sum(copy.node.blocks for copy, n in users.items() if n == len(copy.users))
        wanted = self._wanted(sequence.total, cached, alone=alone)
        return wanted <= self._cache.free_blocks + freed

    def missing(self, sequence: Sequence, tokens: int) -> int:
        """Return the number of additional blocks that a sequence needs for ``tokens`` tokens."""
        return max(-(-tokens // self._size) - self._tables[sequence].blocks, 0)

    def grow(self, sequence: Sequence, tokens: int, known: int) -> bool:
        """Allocate a sequence's first ``tokens`` tokens; return False if too few blocks are free.

        The full blocks of the first ``known`` tokens are cached.
        """
        if self.missing(sequence, tokens) > self._cache.free_blocks:
            return False
        table = self._tables[sequence]
        self._take(sequence, table, tokens)
        self.store_full(sequence, known)
        return True

    def add_block(self, sequence: Sequence) -> None:
        """Allocate one more KV block to a running sequence. Precondition: a block is free."""
        self._cache.take_blocks(1, sequence)
        self._tables[sequence].blocks += 1

    def store_block(self, sequence: Sequence) -> None:
        if self._cache.prefix_caching:
            self._store(sequence, self._tables[sequence], 1)

    def store_full(self, sequence: Sequence, tokens: int | None = None) -> None:
        """Cache full blocks of the first ``tokens`` tokens; None means all blocks but the last."""
        table = self._tables[sequence]
        full = table.blocks - 1 if tokens is None else tokens // self._size
        more = full - table.node.depth // self._size
        if self._cache.prefix_caching and more > 0:
            self._store(sequence, table, more)

    def retain(self, sequence: Sequence) -> None:
        """Tell the eviction policy that a sequence with blocks has ended."""
        if self._cache.knows_clients:
            self._cache.retain(self._tables[sequence].node, sequence.request)

    def give_back(self, sequence: Sequence) -> None:
        """Free the blocks of an ended or preempted sequence, whose last block is evicted first."""
        table = self._tables.pop(sequence)
        self._cache.give_back(sequence, table.node, self._unstored(table))

    def shared_tokens(self, apart: Iterable[Sequence]) -> int:
        """Return how many tokens of memory are saved because sequences use the same blocks.

        The sequences in ``apart`` do not count as users of blocks.
        """
        shared = self._cache.shared
        others = Counter(copy for sequence in apart for copy in self.copies(sequence))
        for copy, count in others.items():
            shared -= min(count, len(copy.users) - 1) * copy.node.blocks
        return shared * self._size

    def copies(self, sequence: Sequence) -> Iterator[RunCopy]:
        """Yield the cached copies that a running sequence uses, the deepest copy first."""
        return held_by(sequence, self._tables[sequence].node)

    def blocks(self, sequence: Sequence) -> int:
        return self._tables[sequence].blocks

    def __len__(self) -> int:
        return len(self._tables)

    def _wanted(self, tokens: int, cached: Iterable[RunCopy], *, alone: bool) -> int:
        """Return how many free blocks a prompt needs besides the ``cached`` blocks in use."""
        used = sum(copy.node.blocks for copy in cached if copy.users)
        return -(-tokens // self._size) - used + (0 if alone else self._watermark)

    def _unstored(self, table: BlockTable) -> int:
        return table.blocks - table.node.depth // self._size

    def _take(self, sequence: Sequence, table: BlockTable, tokens: int) -> None:
        short = -(-tokens // self._size) - table.blocks
        if short > 0:
            self._cache.take_blocks(short, sequence)
            table.blocks += short

    def _store(self, sequence: Sequence, table: BlockTable, blocks: int) -> None:
        table.node, table.place = self._cache.store(
            sequence, table.node, table.prompt, table.place, blocks
        )


class BlockPhases:
    """The decoding sequences, grouped by the steps in which they begin new blocks."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._groups: list[dict[Sequence, int]] = [{} for _ in range(block_size)]
        self._phase: dict[Sequence, int] = {}

    def join(self, sequence: Sequence, step: int, context: int, seat: int) -> None:
        """Add a sequence that decodes from step ``step`` on.

        ``context`` is the sequence's length at step ``step``, and ``seat`` is its position in the
        running list.
        """
        phase = (step + 1 - context) % self._size
        self._phase[sequence] = phase
        self._groups[phase][sequence] = seat

    def remove_sequence(self, sequence: Sequence) -> None:
        del self._groups[self._phase.pop(sequence)][sequence]

    def at_blocks(self, step: int) -> Iterator[tuple[Sequence, bool, bool]]:
        """Yield the sequences that begin or fill a block in a step, in running order.

        Each item consists of a sequence and two flags: whether the sequence begins a block, and
        whether the sequence fills a block.
        """
        begin, fill = (self._groups[one % self._size] for one in (step, step + 1))
        either = begin | fill
        for sequence in sorted(either, key=either.__getitem__):
            yield sequence, sequence in begin, sequence in fill

    def count(self, step: int) -> int:
        """Return the number of sequences that begin a new block in step ``step``."""
        return len(self._groups[step % self._size])

    def steps_within(self, step: int, blocks: int, most: int) -> int:
        """Return how many decode steps (up to ``most``) need at most ``blocks`` new blocks."""
        each_round = len(self._phase)
        if not each_round:
            return most
        rounds, blocks = divmod(blocks, each_round)
        steps = rounds * self._size
        while steps < most and (needed := self.count(step + steps)) <= blocks:
            blocks -= needed
            steps += 1
        return min(steps, most)


@dataclass(slots=True)
class Step:
    """The work of one vLLM engine step.

    ``budget`` is the number of tokens that the step may still compute, and ``most`` is the maximum
    number of tokens of a prompt. ``decodes`` is the number of sequences that decode. ``preempted``
    is true if a sequence was preempted because blocks ran out. ``wished`` holds the sequences that
    were preempted at the scheduler's request. ``stalled`` holds the decoding sequences that get no
    token in the step. Sequences are stalled if an earlier sequence lacked blocks and was itself
    preempted, or if earlier prompts used up the budget.
    """

    budget: int
    most: int
    chunks: list[Prefill] = field(default_factory=list)
    decodes: int = 0
    preempted: bool = False
    wished: list[Sequence] = field(default_factory=list)
    stalled: list[Sequence] = field(default_factory=list)

    def chunk(self, left: int) -> int:
        """Return how many of a prompt's ``left`` tokens the step may compute."""
        return min(left, self.most, self.budget)


class RunningList:
    """vLLM's list of running and prefilling requests, in order of admission.

    Normally, only the last sequence may be prefilling, because its incomplete prompt takes the rest
    of every step's token budget. With ``long_prefill_token_threshold``, any sequence of the running
    list may be prefilling. ``batch`` contains the decoding sequences.

    With asynchronous scheduling, ``batch`` already reflects the end of the running step. The
    running step gives each sequence in ``pending`` a token, and each sequence in ``ending`` its
    last token.
    """

    def __init__(self, cache: BlockCache, limits: VLLMLimits, index: dict[str, int]) -> None:
        self.sequences: list[Sequence] = []
        self.batch = RunningBatch(index)
        self.tables = BlockTables(
            cache,
            reserve_full=limits.scheduler_reserve_full_isl,
            watermark_blocks=limits.watermark_blocks,
        )
        self._most = limits.max_num_seqs
        self._phases = BlockPhases(cache.block_size)
        self._seats: dict[Sequence, int] = {}
        self._admitted = 0
        # ``provided_steps`` is the number of decode steps whose KV blocks are allocated.
        self.provided_steps = 0
        self._ahead = limits.async_scheduling
        self.pending: set[Sequence] = set()
        self.ending: set[Sequence] = set()

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def is_full(self) -> bool:
        return len(self.sequences) >= self._most

    # Sequences

    def admit(self, sequence: Sequence, node: BlockNode, place: Place, tokens: int) -> bool:
        """Admit a sequence and allocate blocks for its first ``tokens`` tokens.

        The prompt is cached up to ``node``, which ends at ``place``. Return False if too few blocks
        are free.
        """
        alone = not self.sequences
        if not self.tables.admit(sequence, node, place, tokens, alone=alone):
            return False
        self._admitted += 1
        self._seats[sequence] = self._admitted
        self.sequences.append(sequence)
        return True

    def decode(self, sequence: Sequence) -> None:
        batch = self.batch
        batch.join(sequence)
        context = sequence.request.input_tokens + sequence.produced
        self._phases.join(sequence, batch.steps, context, self._seats[sequence])

    def pause(self, sequence: Sequence) -> None:
        """Stop decoding a sequence until the next call of ``decode``."""
        self.batch.remove_sequence(sequence)
        self._phases.remove_sequence(sequence)

    def finished(self) -> list[Sequence]:
        return sorted(self.batch.finished(), key=self._seats.__getitem__)

    def end_ahead(self, sequence: Sequence) -> None:
        """Stop decoding a sequence whose last token the running step produces."""
        self.pause(sequence)
        self.ending.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Remove a finished sequence, and tell the eviction policy that its request has ended."""
        self.tables.retain(sequence)
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished or preempted sequence and free its blocks."""
        self.remove_keeping_blocks(sequence)
        self.tables.give_back(sequence)

    def remove_keeping_blocks(self, sequence: Sequence) -> None:
        """Remove a sequence from the running list without freeing its blocks."""
        if sequence in self.batch.sequences:
            self.pause(sequence)
        self.sequences.remove(sequence)
        self.ending.discard(sequence)
        del self._seats[sequence]

    # Steps

    @property
    def prefilling(self) -> list[Sequence]:
        """The sequences with incomplete prompts, in the order of vLLM's running list."""
        count = len(self.sequences) - len(self.batch) - len(self.ending)
        found: list[Sequence] = []
        for sequence in reversed(self.sequences):
            if len(found) == count:
                break
            if not self.decodes(sequence):
                found.append(sequence)
        return found[::-1]

    def blocks_of_next_step(self, prefilling: Sequence | None, tokens: int) -> int:
        """Return the number of blocks that the next step needs.

        If ``prefilling`` is a sequence, the step computes ``tokens`` more tokens of this sequence.
        """
        steps = self.batch.steps
        # If the step is scheduled a second time, its blocks are already allocated.
        blocks = self._phases.count(steps) if steps == self.provided_steps else 0
        if prefilling is not None:
            blocks += self.tables.missing(prefilling, prefilling.filled + tokens)
        return blocks

    def provide(self, steps: int) -> None:
        """Allocate the blocks that decoding sequences need before step number ``steps``."""
        for step in range(self.provided_steps, steps):
            for sequence, begins, fills in self._phases.at_blocks(step):
                if begins:
                    self.tables.add_block(sequence)
                # When a new block begins, all tokens of the previous block are known.
                if begins and self._ahead:
                    self.tables.store_full(sequence)
                if fills and not self._ahead:
                    self.tables.store_block(sequence)
        self.provided_steps = max(self.provided_steps, steps)

    def steps_ahead(self, blocks: int, most: int) -> int:
        """Return the number of decode steps (at most ``most``) that ``blocks`` blocks allow."""
        return self._phases.steps_within(self.provided_steps, blocks, most)

    def computed_tokens(self, sequence: Sequence) -> int:
        """Return the number of a running sequence's tokens that have a KV cache."""
        if sequence in self.batch.sequences:
            return sequence.request.input_tokens + self.batch.produced(sequence) - 1
        if sequence in self.ending:
            return sequence.request.input_tokens + sequence.produced - 1
        return sequence.filled

    def decodes(self, sequence: Sequence) -> bool:
        """Return whether the prompt of a running sequence is complete."""
        return sequence in self.batch.sequences or sequence in self.ending


class Booking:
    """A record of which prompt tokens are computed for the first time, and which are recomputed.

    A request may be preempted before its prompt is complete. When the prompt is recomputed, tokens
    that were not computed before the preemption count as computed for the first time.
    """

    def __init__(self) -> None:
        # ``_reached`` maps each preempted request to the number of prompt tokens it had computed.
        self._reached: dict[Sequence, int] = {}

    def admit(self, sequence: Sequence, scheduler: LocalScheduler, now_ps: int) -> None:
        """Record and charge an admission, or a readmission after a preemption."""
        fresh = self._fresh(sequence, sequence.filled, sequence.total - sequence.filled)
        book_admission(sequence, scheduler, now_ps, fresh)

    def undo_admission(self, sequence: Sequence, cached_tokens: int) -> None:
        """Undo ``admit`` for a step that had not ended at the end of the run."""
        if not sequence.retractions:
            sequence.not_admitted(cached_tokens)
            return
        extend = sequence.total - cached_tokens
        sequence.readmitted_ps = NEVER
        sequence.recompute_tokens -= extend - self._fresh(sequence, cached_tokens, extend)

    def preempt(self, sequence: Sequence, decoding: bool) -> None:
        """Record a preemption; do not count prompt tokens after ``filled`` as recomputed."""
        left = 0 if decoding else sequence.total - sequence.filled
        sequence.recompute_tokens -= left - self._fresh(sequence, sequence.filled, left)
        reached = sequence.request.input_tokens if decoding else sequence.filled
        self._reached[sequence] = max(reached, self._reached.get(sequence, 0))

    def finish(self, sequence: Sequence) -> None:
        self._reached.pop(sequence, None)

    def shares(self, chunks: list[Prefill], gpu_ps: list[int]) -> dict[str, PrefillShare]:
        """Return each client's share of a step's prefill, given the GPU time (ps) of each chunk."""
        return shares_of(chunks, gpu_ps, self._fresh)

    def _fresh(self, sequence: Sequence, cached: int, tokens: int) -> int:
        """Return how many of ``tokens`` tokens after ``cached`` are computed for the first time."""
        if not sequence.retractions:
            return tokens
        end = min(cached + tokens, sequence.request.input_tokens)
        return max(end - max(cached, self._reached[sequence]), 0)


@dataclass(slots=True)
class RunningListView:
    """The ``RunningView`` of vLLM, which reserves no memory for future outputs."""

    running: RunningList
    waiting: WaitingQueue[BlockNode]
    cache: BlockCache
    cap: LoadCap

    @property
    def free_tokens(self) -> int:
        return self.cache.free + self.cache.evictable

    def __len__(self) -> int:
        return len(self.running)

    def __iter__(self) -> Iterator[Running]:
        running = self.running
        for sequence in list(running.sequences):
            if sequence in running.batch.sequences:
                produced = running.batch.produced(sequence)
                held = sequence.request.input_tokens + produced
            elif sequence in running.sequences:
                produced, held = sequence.produced, sequence.filled
            else:
                # The scheduler preempted this request during the iteration.
                continue
            if sequence in running.pending:
                produced -= 1
                held = sequence.request.input_tokens + produced
            yield Running(sequence.request, produced, held, 0)

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        if not self.cap.has_room(request, without):
            return False
        sequence = self.waiting.sequence_of(request)
        node, _ = self.waiting.match(request)
        gone = [one for one in self.running.sequences if one.request in without]
        alone = len(gone) == len(self.running)
        return self.running.tables.would_fit(sequence, node, gone, alone=alone)
