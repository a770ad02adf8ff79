"""The replay of measured serving runs: a simulated engine gets the same prompts and lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from fairbench.core import PS_PER_S, Segment
from fairbench.engine.clock import ARRIVE, Clock
from fairbench.engine.sequence import NEVER, Sequence
from fairbench.errors import DataError
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.hardware.timing import TimingProfile
from fairbench.metrics.records import Floats
from fairbench.sim.front import SimFleet
from fairbench.sim.ingress import Ingress
from fairbench_studies.validation.serving.closed_loop import ClosedLoop, Limit, observed_limit
from fairbench_studies.validation.serving.engines import engine_worker
from fairbench_studies.validation.serving.gateway import GATEWAY_MS, gateway_queue
from fairbench_studies.validation.serving.measured import ServingRun
from fairbench_studies.validation.serving.prompts import output_tokens, requests_of


def replay(run: ServingRun, profile: TimingProfile) -> ServingRun:
    """Simulate a run. Return the run with simulated times in place of the measured times.

    If the run is warm, the simulation sends the run's prompts twice, and times the second pass.

    Raises:
        DataError: the simulated server refuses a request although no gateway limits the rate.
    """
    server = _Server(run, profile)
    if run.warm:
        server.play(run)
    replayed = server.play(run)
    if (run.closed or run.direct) and (lost := int((run.served & ~replayed.served).sum())):
        raise DataError(
            f"{lost} of {len(run)} requests do not fit into the simulated KV pool of "
            f"{server.pool_tokens:,} tokens on {profile.profile_id}"
        )
    return replayed


class _Server:
    """A simulated server with its gateway, which can serve several runs one after another."""

    def __init__(self, run: ServingRun, profile: TimingProfile) -> None:
        self.clock = Clock()
        self._worker = engine_worker(run, profile, self.clock)
        self._ingress: Ingress | None = None
        if run.gateway and not run.direct:
            fleet = SimFleet([self._worker])
            queue = gateway_queue(run.gateway, fleet)
            self._ingress = Ingress(self.clock, [self._worker], queue)

    @property
    def pool_tokens(self) -> int:
        return self._worker.cache.capacity

    def play(self, run: ServingRun) -> ServingRun:
        play = _Play(run, self)
        while self.clock.next_ps() is not None:
            self.clock.step()
        return play.result()

    def enter(self, sequence: Sequence) -> None:
        """Pass a request to the gateway or, if there is no gateway, directly to the worker."""
        if self._ingress is None:
            self._worker.submit(sequence)
            return
        at_ps = self.clock.now_ps + round(GATEWAY_MS * PS_PER_MS)
        self.clock.at(at_ps, ARRIVE, 0, partial(self._ingress.enter, sequence))

    def over(self, sequence: Sequence) -> None:
        if self._ingress is not None:
            self._ingress.finished(sequence)


class _Play:
    """A playback that sends a run's requests to a server and records their times."""

    def __init__(self, run: ServingRun, server: _Server) -> None:
        self._run = run
        self._server = server
        self._requests = requests_of(run)
        self._lengths = [output_tokens(run, index) for index in range(len(run))]
        self._sent: dict[int, Sequence] = {}
        self._start_ps = server.clock.now_ps
        self._open_until = 0
        self._loop: ClosedLoop | None = None
        if run.closed:
            connections = min(run.connection_limit, run.concurrency)
            self._loop = ClosedLoop(
                *(server.clock, len(run), run.concurrency, connections, self._send),
                counted=run.prompt_tokens.tolist() if run.counts_prompts else None,
            )
            return
        limit = observed_limit(run.submit_s, run.latency_s) if run.direct else None
        self._open_until = limit.first if limit is not None else len(run)
        for index in range(self._open_until):
            self._at(index, partial(self._send, index))
        if limit is not None:
            self._at(limit.first, partial(self._hold, limit))

    def _at(self, index: int, act: Callable[[], None]) -> None:
        """Call ``act`` at the time at which the request was sent in the measured run."""
        at_ps = self._start_ps + round(float(self._run.submit_s[index]) * PS_PER_S)
        self._server.clock.at(at_ps, ARRIVE, 0, act)

    def _hold(self, limit: Limit) -> None:
        """Send the remaining requests as answers arrive, up to the client's concurrency limit."""
        in_flight = sum(one.finish_ps == NEVER for one in self._sent.values())
        self._loop = ClosedLoop(
            *(self._server.clock, len(self._run) - limit.first),
            concurrency=max(limit.concurrency - in_flight, 1),
            connections=limit.concurrency,
            send=lambda number: self._send(limit.first + number),
        )

    def _send(self, index: int) -> None:
        output = Segment(f"output-{index}", self._lengths[index])
        sequence = Sequence(self._requests[index], output, self._server.clock.now_ps, self._over)
        self._sent[index] = sequence
        self._server.enter(sequence)

    def _over(self, sequence: Sequence) -> None:
        self._server.over(sequence)
        if self._loop is not None:
            self._loop.over(sequence.request.request_id)

    def result(self) -> ServingRun:
        made_s = self._run.submit_s[: self._open_until]
        if self._loop is not None:
            made_ps = np.array(self._loop.made_ps) - self._start_ps
            made_s = np.concatenate([made_s, made_ps / PS_PER_S])
        first_ps, finish_ps = self._times_ps("first_token_ps"), self._times_ps("finish_ps")
        if self._loop is not None and (thread := self._loop.thread) is not None:
            first_ps = [at if at == NEVER else thread.reads_at(at) for at in first_ps]
            ends_ps = zip(finish_ps, thread.read_ps, strict=True)
            finish_ps = [NEVER if end == NEVER else read for end, read in ends_ps]
        first_s, finish_s = self._seconds(first_ps), self._seconds(finish_ps)
        served = ~np.isnan(finish_s)
        return replace(
            self._run,
            submit_s=made_s,
            output_tokens=np.where(served, self._lengths, 0),
            ttft_s=first_s - made_s,
            latency_s=finish_s - made_s,
        )

    def _times_ps(self, what: str) -> list[int]:
        sent = (self._sent.get(index) for index in range(len(self._run)))
        return [NEVER if one is None else getattr(one, what) for one in sent]

    def _seconds(self, times_ps: list[int]) -> Floats:
        return np.array(
            [np.nan if at == NEVER else (at - self._start_ps) / PS_PER_S for at in times_ps]
        )
