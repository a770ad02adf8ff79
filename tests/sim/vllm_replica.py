"""Workers of the simulated cluster in which vLLM's own classes take every decision.

``vllm_workers`` makes a ``worker_of`` for ``fairbench.sim.run.Simulation``. The simulator provides
the clock, programs, router and records, and steps take the time of its timing profile. Queue, token
budget, admission, chunks, preemption, block hashes, prefix cache and memory are vLLM's. FCFS is
vLLM's, too. Any other local scheduler replaces vLLM's queue (vllm_queue.py).
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from itertools import count

from fairbench.engine.batch import Prefill
from fairbench.engine.logs import PrefillShare
from fairbench.engine.vllm import VLLMContract
from fairbench.engine.vllm_running import Booking
from fairbench.hardware.gpu_time import step_parts
from fairbench_engines.replica.base import RealReplica, prompt_of
from fairbench_engines.replica.inside.token_ids import TokenIds
from tests.sim.vllm_queue import SchedulerQueue
from tests.sim.vllm_seam import RealEngine, admitted, vllm


@contextmanager
def vllm_workers(spec, longest):
    """Yield a ``worker_of`` for the simulation of ``spec``. vLLM does not need ``longest``."""
    tokens = TokenIds()

    def worker_of(parts):
        limits = VLLMContract(spec.settings, parts.profile).limits
        return VLLMReplica(parts, limits, tokens, stock=spec.local == "fcfs")

    yield worker_of


class VLLMReplica(RealReplica):
    """A replica around one vLLM scheduler."""

    def __init__(self, parts, limits, tokens, *, stock):
        super().__init__(parts, limits)
        self.engine = RealEngine(limits)
        self._tokens = tokens
        self._numbers = count()
        self._prefilling = {}  # requests with incomplete prompts
        self._joined = {}  # request -> its context when it began to decode
        self._chunks = []  # requests of the current step
        self._booking = Booking()
        self._queue = None if stock else self._put_scheduler_in()
        self._watch_preemptions()
        if parts.on_evict is not None:
            self._watch_evictions(self.engine.scheduler.kv_cache_manager.block_pool)

    @property
    def cache(self):
        size = self.limits.block_size
        return types.SimpleNamespace(
            capacity=self.limits.blocks * size,
            free=self.engine.free_blocks * size,
            evictable=0,
            abandon=lambda: None,  # the engine's own requests
        )

    def fits(self, request):
        tokens = request.input_tokens + request.max_new_tokens - 1
        return -(-tokens // self.limits.block_size) <= self.limits.blocks

    def _waiting_count(self):
        return len(self.engine.scheduler.waiting)

    def _produced(self, request):
        return request.num_output_tokens

    def _take_in(self, sequence):
        prompt, output = sequence.request.prompt, sequence.output
        request = self.engine.request(
            next(self._numbers), self._tokens.of(prompt), self._tokens.of((output,))
        )
        self._sequences[request] = sequence
        self.engine.scheduler.add_request(request)

    def settle(self):
        super().settle()
        for chunk in self._chunks:  # a step that did not end does not count
            if chunk.first:
                self._booking.undo_admission(chunk.sequence, chunk.cached)

    # steps

    def _start(self):
        plan = self.engine.plan()
        if self._queue is not None:
            self._queue.end_pass()
        if plan is None:
            return False
        requests, new = self.engine.scheduler.requests, set(admitted(plan))
        chunks, contexts = [], []
        for name, tokens in plan.num_scheduled_tokens.items():
            request = requests[name]
            if name in new or request in self._prefilling:
                chunks.append(self._chunk(request, tokens, first=name in new))
            else:
                assert tokens == 1
                contexts.append((request, request.num_computed_tokens))  # including this step's
        if chunks:
            self._await_mixed(plan, chunks, contexts)
        else:
            self._await_decode(contexts, lambda: self._completed(plan))
        return True

    def _completed(self, plan):
        finished = self.engine.complete(plan)
        for client, number in self._per_client.items():
            self.scheduler.on_tokens(client, number)
        return finished

    def _join(self, sequence):
        super()._join(sequence)
        self.scheduler.on_tokens(sequence.request.client, 1)

    def _over(self, sequence):
        self.scheduler.on_finish(sequence.request)

    def _chunk(self, request, tokens, *, first):
        """Record the part of a prompt that a step computes, and its admission."""
        sequence = self._sequences[request]
        before = request.num_computed_tokens - tokens
        if first:
            if self._queue is None:
                self._admit(sequence, before)
            assert sequence.filled == before
        last = request.num_computed_tokens == request.num_tokens
        (self._prefilling.pop if last else self._prefilling.setdefault)(request, None)
        if last:
            self._joined[request] = request.num_tokens + 1
        return Prefill(sequence, before, tokens, first, last)

    def _admit(self, sequence, cached):
        sequence.filled = cached
        self._booking.admit(sequence, self.scheduler, self.clock.now_ps)

    def _put_scheduler_in(self):
        scheduler, hits = self.engine.scheduler, self.engine.hits
        lookup = scheduler.kv_cache_manager.get_computed_blocks
        queue = scheduler.waiting = SchedulerQueue(
            self.scheduler,
            self.clock,
            self._sequences.__getitem__,
            lambda request: lookup(request)[1],
            lambda request: self._admit(self._sequences[request], hits[request.request_id]),
        )
        return queue

    def _await_mixed(self, plan, chunks, contexts):
        self._end_stretch()
        decoding, context = self._decoding(contexts), sum(tokens for _, tokens in contexts)
        self._chunks, start_ps = chunks, self.clock.now_ps
        decodes = len(plan.num_scheduled_tokens) - len(chunks)
        assert decodes == sum(self._per_client.values())

        def complete():
            finished = self._completed(plan)
            self._chunks = []
            now_ps, size = self.clock.now_ps, len(plan.num_scheduled_tokens)
            parts = step_parts(self.costs, now_ps - start_ps, computed, decoding, -extra_ps)
            shares = self._booking.shares(chunks, parts.chunks)
            for client, number in self._per_client.items():
                share = shares.setdefault(client, PrefillShare())
                share.output_tokens += number
                share.gpu_ps += parts.clients[client]
            self.log.prefill(self.index, start_ps, now_ps, size, shares, context)
            for chunk in chunks:
                chunk.sequence.filled += chunk.tokens
                if chunk.last:
                    self._join(chunk.sequence)
            return finished

        computed = [(chunk.cached, chunk.tokens) for chunk in chunks]
        extra_ps = self.profile.vllm_extra_ps(decodes, context)
        self._await_end(self.profile.step_ps(computed, decodes, context) + extra_ps, complete)

    def _tail_ps(self, contexts):
        longest = max(self._joined[request] for request, _ in contexts)
        context = sum(tokens for _, tokens in contexts)
        return self.profile.vllm_extra_ps(len(contexts), context, longest)

    # reports of vLLM

    def _watch_preemptions(self):
        scheduler = self.engine.scheduler
        preempt = scheduler._preempt_request

        def watched(request, *arguments, **named):
            self._end_stretch()
            sequence = self._sequences[request]
            decoding = request not in self._prefilling
            sequence.produced = request.num_output_tokens
            self._booking.preempt(sequence, decoding)
            if decoding:
                self._leave(sequence)
            self._prefilling.pop(request, None)
            sequence.retract(self.clock.now_ps)
            return preempt(request, *arguments, **named)

        scheduler._preempt_request = watched

    def _watch_evictions(self, pool):
        """Report the tokens of every overwritten block that was the last of its kind."""
        # hash of a block -> a request's tokens, and the number of them up to the block's end
        ended = {}
        store, remove = pool.cache_full_blocks, pool._remove_cached_block_hashes
        bare, size = vllm().kv_cache_utils.get_block_hash, self.limits.block_size

        def stored(request, **named):
            for number in range(named["num_cached_blocks"], named["num_full_blocks"]):
                ended[request.block_hashes[number]] = request.all_token_ids, (number + 1) * size
            return store(request=request, **named)

        def removed(block):
            gone = remove(block)
            for key in gone:
                if pool.cached_block_hash_to_block.get_one_block(key) is None:
                    ids, end = ended[bare(key)]
                    self._tell_evicted(prompt_of(self._tokens.prompt(ids[:end])), size)
            return gone

        pool.cache_full_blocks, pool._remove_cached_block_hashes = stored, removed
