"""Workers of the simulated cluster in which SGLang's own classes take every decision.

``sglang_workers`` makes a ``worker_of`` for ``fairbench.sim.run.Simulation``. The simulator
provides the clock, programs, router and records, and iterations take the time of its timing
profile. Queue, order, admission, chunks, new-token ratio, retraction, radix cache and memory are
SGLang's. FCFS and LPM are SGLang's, too. Any other scheduler runs in the plugin, as in a real
server.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from itertools import count
from unittest import mock

from fairbench.core import PS_PER_S
from fairbench.engine.batch import Prefill, shares_of
from fairbench.engine.sequence import NEVER
from fairbench.engine.sglang_variants import SGLangContract
from fairbench.hardware.gpu_time import step_parts
from fairbench_engines.replica.base import RealReplica, prompt_of
from fairbench_engines.replica.inside.token_ids import TokenIds
from fairbench_engines.sglang import hooks as plugin
from fairbench_load.plugin_config import plugin_config
from tests.sim.sglang_seam import VERSION, RealEngine, configured, path, sglang

STOCK = ("fcfs", "lpm")  # policies that SGLang has itself
NO_LIMIT = 10**9  # LPM sorts a queue of any length, as by default in the simulator


class SwitchedHooks:
    """The plugin's hooks for several SGLang schedulers in one process. Those of ``current`` act.

    A real server has a process for each scheduler.
    """

    def __init__(self):
        self.current = None
        self._targets = {}

    def add(self, hooks):
        self._targets[hooks] = hooks.by_target()

    def by_target(self):
        """Return, for each function, a hook that asks the current scheduler's hooks."""
        _, targets = next(iter(self._targets.items()))
        return {target: plugin.Hook(self._asking(target)) for target in targets}

    def _asking(self, target):
        def method(original, *arguments, **named):
            return self._targets[self.current][target].method(original, *arguments, **named)

        return method


@contextmanager
def sglang_workers(spec, longest):
    """Yield a ``worker_of`` for the simulation of ``spec``.

    No request with its output may be longer than ``longest`` tokens.
    """
    stock = spec.local in STOCK
    switch = None if stock else SwitchedHooks()
    tokens, replicas, context = TokenIds(), [], []
    stamps = count(1)
    cache_clock = types.SimpleNamespace(
        monotonic=lambda: next(stamps), perf_counter=lambda: next(stamps)
    )

    def worker_of(parts):
        hooks = None
        if not stock:
            hooks = plugin.Hooks(plugin_config(spec.local, spec.settings), VERSION)
            switch.add(hooks)
            switch.current = hooks
            now = types.SimpleNamespace(monotonic=lambda: parts.clock.now_ps / PS_PER_S)
            context.append(mock.patch.object(plugin, "time", now))
            context[-1].start()
        limits = SGLangContract(spec.settings, parts.profile).limits
        shared = {
            "chunk": limits.chunked_prefill_size,
            "max_prefill": limits.max_prefill_tokens,
            "slots": limits.max_running_requests,
        }
        policy = spec.local if stock else "fcfs"
        if not replicas:
            stack = configured(
                policy,
                switch,
                conservativeness=limits.schedule_conservativeness,
                match_limit=NO_LIMIT,
                **shared,
            )
            stack.enter_context(mock.patch.object(sglang().radix_cache, "time", cache_clock))
            context.append(stack)
        replica = SGLangReplica(parts, limits, tokens, hooks, switch)
        replica.engine = RealEngine(
            policy,
            pool=limits.pool_tokens,
            ignore_eos=limits.full_reservation,
            hooks=hooks,
            longest=longest,
            on_evict=replica.evicted,
            **shared,
        )
        replica.watch_retractions()
        replicas.append(replica)
        return replica

    try:
        yield worker_of
    finally:
        for entered in reversed(context):
            entered.close() if hasattr(entered, "close") else entered.stop()


class SGLangReplica(RealReplica):
    """A replica around one SGLang scheduler."""

    def __init__(self, parts, limits, tokens, hooks, switch):
        super().__init__(parts, limits)
        if hooks:
            self.scheduler = hooks.home.scheduler
        self._tokens, self._hooks, self._switch = tokens, hooks, switch
        self._prefills = []  # requests of the current iteration
        self._numbers = count()
        self._prefilling = set()  # requests between the first and the last chunk of their prompts

    @property
    def cache(self):
        scheduler = self.engine.scheduler
        return types.SimpleNamespace(
            capacity=self.limits.pool_tokens,
            free=scheduler.token_to_kv_pool_allocator.available_size(),
            evictable=scheduler.tree_cache.evictable_size(),
            abandon=lambda: None,  # the engine's own requests
        )

    def fits(self, request):
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def _waiting_count(self):
        return len(self.engine.scheduler.waiting_queue)

    def _produced(self, req):
        return len(req.output_ids)

    def _take_in(self, sequence):
        self._act()
        request = sequence.request
        req = self.engine.submit(
            next(self._numbers),
            self._tokens.of(request.prompt),
            self._tokens.of((sequence.output,)),
            request.max_new_tokens,
            request.client,
        )
        self._sequences[req] = sequence

    def _act(self):
        """Make SGLang's classes act for this worker from now on."""
        if self._switch:
            self._switch.current = self._hooks

    def settle(self):
        super().settle()
        for prefill in self._prefills:  # an unfinished iteration does not count
            if prefill.first:
                prefill.sequence.not_admitted(prefill.cached)

    def _start(self):
        self._act()
        batch = self.engine.plan()
        if batch is None:
            return False
        if batch.forward_mode.is_extend():
            self._start_prefill(batch)
        else:
            contexts = zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True)
            self._await_decode(contexts, lambda: self._completed(batch))
        return True

    def _completed(self, batch):
        self._act()
        return self.engine.complete(batch)

    # prefill

    def _start_prefill(self, batch):
        self._end_stretch()
        prefills = self._prefills = [self._admitted(req) for req in batch.reqs]
        start_ps = self.clock.now_ps

        def complete():
            finished = self._completed(batch)
            self._prefills = []
            for one in prefills:
                if one.last:
                    self._join(one.sequence)
            parts = step_parts(self.costs, self.clock.now_ps - start_ps, chunks, {})
            size, shares = len(prefills), shares_of(prefills, parts.chunks)
            self.log.prefill(self.index, start_ps, self.clock.now_ps, size, shares)
            return finished

        chunks = [(one.cached, one.tokens) for one in prefills]
        self._await_end(self.profile.prefill_ps(chunks), complete)

    def _admitted(self, req):
        """Record what SGLang does with a request in this prefill."""
        sequence = self._sequences[req]
        cached, tokens = req.prefix_len, req.extend_len
        left = len(req.origin_input_ids) + len(req.output_ids) - cached
        first, last = sequence not in self._prefilling, tokens == left
        if first:
            self._book_admission(sequence, cached, left)
        (self._prefilling.discard if last else self._prefilling.add)(sequence)
        return Prefill(sequence, cached, tokens, first, last)

    def _book_admission(self, sequence, cached, extend):
        now_ps = self.clock.now_ps
        if sequence.admitted_ps == NEVER:
            sequence.admitted_ps = now_ps
            sequence.cached_tokens, sequence.extend_tokens = cached, extend
        else:
            sequence.readmitted_ps = now_ps
            sequence.recompute_tokens += extend

    # reports of SGLang

    def watch_retractions(self):
        """Report every request that SGLang puts back into its queue."""
        scheduler = self.engine.scheduler
        enqueue = scheduler._add_request_to_queue

        def watched(req, is_retracted=False):
            if is_retracted:
                self._end_stretch()
                sequence = self._sequences[req]
                sequence.produced = len(req.output_ids)
                self._leave(sequence)
                sequence.retract(self.clock.now_ps)
            return enqueue(req, is_retracted)

        scheduler._add_request_to_queue = watched

    def evicted(self, node):
        if self._tell_evicted is not None:
            self._tell_evicted(prompt_of(self._tokens.prompt(path(node))), len(node.key))
