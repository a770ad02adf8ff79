"""Replicas whose decisions an engine's own classes take.

A base ``fairbench.sim.engine.contract.Replica`` with the simulator's clock, frontend and records.
"""

from __future__ import annotations

import types

from fairbench.hardware.gpu_time import Decoding
from fairbench.hardware.timing import ProfileCosts
from fairbench.sim.clock import DECIDE, END
from fairbench.sim.engine.frontend import FrontendQueue
from fairbench.sim.records.stretches import InBatch, Stretch
from fairbench.sim.sequence import FINISHED, NEVER, REFUSED


class RealReplica:
    """A replica around a real engine.

    A subclass has ``engine`` and defines what ``fits``, how it takes a sequence in (``_take_in``),
    how many wait there (``_waiting_count``), how many tokens the engine's request has produced
    (``_produced``), and how an iteration begins (``_start``: False if there is none).
    """

    def __init__(self, parts, limits):
        self.index, self.clock, self.log = parts.index, parts.clock, parts.log
        self.profile, self.limits, self.scheduler = parts.profile, limits, parts.scheduler
        self.costs = ProfileCosts(parts.profile)
        self.frontend = FrontendQueue(
            parts.clock, parts.profile.frontend, parts.index, self._arrive
        )
        self.on_pass = None
        self.engine = None
        self._tell_evicted = parts.on_evict
        self._inbox = []
        self._sequences = {}  # counted by the engine's request while it is here
        self._per_client = {}  # number of decoding requests
        self._stretch = None
        self._first = {}  # each client's part of the first step
        self._idle = True

    @property
    def batch(self):
        return types.SimpleNamespace(sequences=())  # requests whose outputs ``settle`` has counted

    @property
    def queued_count(self):
        return len(self.frontend) + len(self._inbox) + self._waiting_count()

    @property
    def saturated(self):
        return self._waiting_count() > 0 and self.running_count > 0

    @property
    def running_count(self):
        return len(self._sequences) - self._waiting_count()

    def submit(self, sequence):
        sequence.worker = self.index
        self.frontend.enter(sequence)

    def _arrive(self, sequence):
        if not self.fits(sequence.request):
            sequence.status = REFUSED
            sequence.on_done(sequence)
            return
        self._inbox.append(sequence)
        if self._idle:
            self._idle = False
            self.clock.at(self.clock.now_ps, DECIDE, self.index, self._decide)

    def sync(self):
        """Do nothing: every step is booked when it ends."""

    def settle(self):
        self._end_stretch()
        for request, sequence in self._sequences.items():
            sequence.produced = self._produced(request)

    def in_flight(self):
        return [*self._sequences.values(), *self._inbox, *self.frontend]

    # The loop. Arrivals take effect between iterations, as in the engines.

    def _decide(self):
        inbox, self._inbox = self._inbox, []
        for sequence in inbox:
            self._take_in(sequence)
        self._idle = not self._start()
        if self.on_pass is not None:
            self.on_pass()

    def _await_end(self, duration_ps, complete):
        """End the iteration with ``complete()``, which returns the engine's finished requests."""

        def end():
            self._finish(complete())
            self.clock.soon(DECIDE, self.index, self._decide)

        self.clock.at(self.clock.now_ps + duration_ps, END, self.index, end)

    def _finish(self, finished):
        if finished:
            self._end_stretch()
        done = [self._sequences.pop(request) for request in finished]
        for request, sequence in zip(finished, done, strict=True):
            self._leave(sequence)
            sequence.produced = self._produced(request)
            sequence.finish_ps = max(self.clock.now_ps, sequence.first_token_ps)
            sequence.status = FINISHED
            self._over(sequence)
        for sequence in done:
            sequence.on_done(sequence)

    def _over(self, sequence):
        """Report a finished request; a hook for subclasses."""

    def _join(self, sequence):
        """Book a computed prompt, which yields a token."""
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self.frontend.out_ps(self.clock.now_ps)
        client = sequence.request.client
        self._per_client[client] = self._per_client.get(client, 0) + 1

    def _leave(self, sequence):
        client = sequence.request.client
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]

    # Decode.

    def _decoding(self, contexts):
        """Return each client's part of a step, from (engine's request, its tokens) that decode."""
        sums = {}
        for request, tokens in contexts:
            client = self._sequences[request].request.client
            number, before = sums.get(client, (0, 0))
            sums[client] = Decoding(number + 1, before + tokens)
        return {client: sums[client] for client in self._per_client}

    def _await_decode(self, contexts, complete):
        """Book a step in which all running requests decode the given number of tokens."""
        first = self._decoding(contexts)
        size, context = map(sum, zip(*first.values(), strict=True))
        assert size == sum(self._per_client.values())
        if self._stretch is None:
            growth_ps, fixed_ps = self.profile.context_ps * size, self.profile.decode_ps(size, 0)
            self._stretch = Stretch(self.clock.now_ps, growth_ps, context, fixed_ps)
            self._first = first

        def book():
            finished = complete()
            self._stretch.steps += 1
            self._stretch.end_ps = self.clock.now_ps
            return finished

        took_ps = self.profile.decode_ps(size, context) + self._tail_ps(contexts)
        self._await_end(took_ps, book)

    def _tail_ps(self, contexts):
        """Return the time of the engine's attention beyond the profile's formula."""
        return 0

    def _end_stretch(self):
        """Close the stretch, because the batch is about to change."""
        if self._stretch is not None and self._stretch.steps:
            batch = InBatch(self.log.index)
            for client, (requests, context) in self._first.items():
                for tokens in (context, *[0] * (requests - 1)):
                    batch.add(client, tokens)
            self.log.decode(self.index, self._stretch, batch)
        self._stretch = None
