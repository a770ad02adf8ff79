"""Workers of the simulated cluster whose every decision is taken by SGLang's own classes.

``sglang_workers`` makes a ``worker_of`` for ``fairbench.sim.run.Simulation``: clock, programs,
router and records are the simulator's, iterations take the time of its timing profile; queue,
order, admission, chunks, new-token ratio, retraction, radix cache and memory are SGLang's. FCFS and
LPM are SGLang's too; any other scheduler comes in through the plugin, as into a real server.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from itertools import count
from unittest import mock

from sglang_seam import VERSION, RealEngine, configured, path, sglang
from token_ids import TokenIds

from fairbench.core import PS_PER_S
from fairbench.live.plugins.sglang import hooks as plugin
from fairbench.live.plugins.sglang.config import plugin_config
from fairbench.sim.clock import DECIDE, END
from fairbench.sim.engine.sglang.admission import Prefill, shares_of
from fairbench.sim.engine.sglang.contract import SGLangContract
from fairbench.sim.records.service_log import Stretch
from fairbench.sim.sequence import FINISHED, NEVER, REFUSED

STOCK = ("fcfs", "lpm")  # policies that SGLang has itself
NO_LIMIT = 10**9  # LPM sorts a queue of any length, as by default in the simulator


class SwitchedHooks:
    """The plugin's hooks of several SGLang schedulers in one process: those of ``current`` act.

    (A real server has a process for each.)
    """

    def __init__(self):
        self.current = None
        self._targets = {}

    def add(self, hooks):
        self._targets[hooks] = hooks.by_target()

    def by_target(self):
        """A hook for each function that asks the current scheduler's hooks."""
        _, targets = next(iter(self._targets.items()))
        return {target: plugin.Hook(self._asking(target)) for target in targets}

    def _asking(self, target):
        def method(original, *arguments, **named):
            return self._targets[self.current][target].method(original, *arguments, **named)

        return method


@contextmanager
def sglang_workers(spec, longest, *, when_heard="between iterations"):
    """A ``worker_of`` for the simulation of ``spec``, which ends with the context.

    No request with its output may be longer than ``longest`` tokens.
    ``when_heard`` is when SGLang hears of an arrival: "between iterations", as in its event loop
    and in the simulator, or "at once".
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
        replica = Replica(parts, limits, tokens, hooks, switch, when_heard)
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


class Replica:
    """A ``fairbench.sim.engine.replica.Replica`` around one SGLang scheduler."""

    def __init__(self, parts, limits, tokens, hooks, switch, when_heard):
        self.index, self.clock, self.log = parts.index, parts.clock, parts.log
        self.profile, self.limits = parts.profile, limits
        self.scheduler = hooks.home.scheduler if hooks else parts.scheduler
        self.on_pass = None
        self.engine = None
        self._tokens, self._hooks, self._switch = tokens, hooks, switch
        self._tell_evicted = parts.on_evict
        self._at_once = when_heard == "at once"
        self._prefills = []  # of the iteration under way
        self._inbox = []
        self._numbers = count()
        self._sequences = {}  # by SGLang's request, while it is here
        self._per_client = {}  # how many run, in the order in which the clients began to
        self._prefilling = set()  # those between the first and the last chunk of their prompts
        self._stretch = None
        self._idle = True
        self._step = None  # what runs: how to end it

    # What the cluster asks.

    @property
    def cache(self):
        scheduler = self.engine.scheduler
        return types.SimpleNamespace(
            capacity=self.limits.pool_tokens,
            free=scheduler.token_to_kv_pool_allocator.available_size(),
            evictable=scheduler.tree_cache.evictable_size(),
        )

    @property
    def batch(self):
        return types.SimpleNamespace(sequences=())  # ``settle`` has counted their outputs

    @property
    def queued_count(self):
        return len(self._inbox) + len(self.engine.scheduler.waiting_queue)

    @property
    def running_count(self):
        return len(self._sequences) - len(self.engine.scheduler.waiting_queue)

    def submit(self, sequence):
        request = sequence.request
        sequence.worker = self.index
        if request.input_tokens + request.max_new_tokens + 1 >= self.limits.pool_tokens:
            sequence.status = REFUSED
            sequence.on_done(sequence)
            return
        self._inbox.append(sequence)
        if self._at_once:
            self._hear()
        if self._idle:
            self._idle = False
            self.clock.at(self.clock.now_ps, DECIDE, self.index, self._decide)

    def _hear(self):
        """Hand over to SGLang what has arrived."""
        self._act()
        inbox, self._inbox = self._inbox, []
        for sequence in inbox:
            request, number = sequence.request, next(self._numbers)
            req = self.engine.submit(
                number,
                self._tokens.of(request.prompt),
                self._tokens.of((sequence.output,)),
                request.max_new_tokens,
                request.client,
            )
            self._sequences[req] = sequence

    def _act(self):
        """From here on SGLang's classes are those of this worker."""
        if self._switch:
            self._switch.current = self._hooks

    def sync(self):
        """Every step is booked when it ends."""

    def settle(self):
        self._end_stretch()
        for req, sequence in self._sequences.items():
            sequence.produced = len(req.output_ids)
        for prefill in self._prefills:  # an iteration that did not end has not happened
            if prefill.first:
                prefill.sequence.not_admitted(prefill.cached)

    def in_flight(self):
        return [*self._sequences.values(), *self._inbox]

    # The loop.

    def _decide(self):
        self._hear()
        batch = self.engine.plan()
        self._idle = batch is None
        if batch is not None:
            prefill = batch.forward_mode.is_extend()
            (self._start_prefill if prefill else self._start_decode)(batch)
        if self.on_pass is not None:
            self.on_pass()

    def _await_end(self, duration_ps, batch, book):
        start_ps = self.clock.now_ps

        def end():
            self._act()
            size = len(batch.reqs)
            finished = self.engine.complete(batch)
            book(start_ps, size)
            self._finish(finished)
            self.clock.soon(DECIDE, self.index, self._decide)

        self.clock.at(start_ps + duration_ps, END, self.index, end)

    def _finish(self, finished):
        if finished:
            self._end_stretch()
        done = [self._sequences.pop(req) for req in finished]
        for req, sequence in zip(finished, done, strict=True):
            self._leave(sequence)
            sequence.produced = len(req.output_ids)
            sequence.finish_ps = self.clock.now_ps
            sequence.status = FINISHED
        for sequence in done:
            sequence.on_done(sequence)

    # Prefill.

    def _start_prefill(self, batch):
        self._end_stretch()
        prefills = self._prefills = [self._admitted(req) for req in batch.reqs]
        duration_ps = self.profile.prefill_ps([(one.cached, one.tokens) for one in prefills])

        def book(start_ps, size):
            now_ps, self._prefills = self.clock.now_ps, []
            for one in prefills:
                if one.last:
                    if one.sequence.first_token_ps == NEVER:
                        one.sequence.first_token_ps = now_ps
                    client = one.sequence.request.client
                    self._per_client[client] = self._per_client.get(client, 0) + 1
            self.log.prefill(self.index, start_ps, now_ps, size, shares_of(prefills))

        self._await_end(duration_ps, batch, book)

    def _admitted(self, req):
        """What SGLang does with a request in this prefill, and what is written down of it."""
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

    # Decode.

    def _start_decode(self, batch):
        size, context = len(batch.reqs), int(batch.seq_lens_cpu.sum())
        assert size == sum(self._per_client.values())
        growth_ps = self.profile.context_ps * size
        if self._stretch is None:
            self._stretch = Stretch(self.clock.now_ps, growth_ps, context)

        def book(start_ps, size):
            self._stretch.steps += 1
            self._stretch.end_ps = self.clock.now_ps

        self._await_end(self.profile.decode_ps(size, context), batch, book)

    def _end_stretch(self):
        """The batch is about to change."""
        if self._stretch is not None and self._stretch.steps:
            self.log.decode(self.index, self._stretch, self._per_client)
        self._stretch = None

    def _leave(self, sequence):
        client = sequence.request.client
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]

    # What SGLang tells.

    def watch_retractions(self):
        """Hear of every request that SGLang puts back into its queue."""
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
            self._tell_evicted(self._tokens.prompt(path(node)), len(node.key))
