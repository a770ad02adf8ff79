"""The host of a local scheduler in an engine: the common part for SGLang and vLLM.

The scheduler is the same object as in the simulator. The engine keeps queue, cache and memory; the
host reports the events of requests to the scheduler, and counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Any, Protocol

from fairbench.core import Prompt, Request
from fairbench.errors import RunFailed
from fairbench.live.ledger import FIRST_TOKEN, QUEUE_TIME, Ledger
from fairbench.live.plugin_config import PluginConfig
from fairbench.live.request_tag import untagged
from fairbench.live.step_times import FittedCosts, StepTimes
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.token_pages import narrow, segments_of
from fairbench.schedulers.views import WaitingView

Theirs = Any  # an engine's request


@dataclass(slots=True, eq=False)
class Tracked:
    """An engine's request, from its arrival to its end."""

    request: Request
    theirs: Theirs
    prompt: Prompt  # the tokens to prefill; for a request that vLLM preempted, its outputs too
    produced: int = 0  # output tokens that the scheduler has received
    admitted: bool = False  # set, so that the next admission counts as a second one


def request_of(
    tag: str,
    ids: Sequence[int],
    max_new_tokens: int,
    number: int,
    now_s: float,
    priority: int = 0,
    session: str | None = None,
) -> Request:
    """Return the scheduler's view of a request; a session is a program of which no end is known.

    ``tag`` is the name of the client, with the time left to the request's deadlines at ``now_s``.
    """
    client, due = untagged(tag, now_s)
    return Request(
        *(number, client, program_of(client, session), 0),
        *(segments_of(narrow(ids)), len(ids), max_new_tokens),
        arrival_s=now_s,
        deadline_s=due.end_s,
        first_token_by_s=due.first_token_s,
        token_every_s=due.token_every_s,
        priority=priority,
    )


def program_of(client: str, session: str | None) -> int:
    """Return the number of a client's session, at least 1; 0 without a session."""
    if session is None:
        return 0
    return 1 + int.from_bytes(blake2b(f"{client}\0{session}".encode(), digest_size=8).digest())


class EngineView(WaitingView, Protocol):
    """A waiting queue from which requests are removed after their admission or abort."""

    def leave(self, request: Request) -> None: ...

    def end_pass(self) -> None: ...


class EngineHome:
    """A scheduler in an engine, whose requests are called ``name_of``; a subclass adds a view."""

    view: EngineView
    name_of: Callable[[Theirs], Hashable]

    def __init__(self, config: PluginConfig, ledger: Ledger) -> None:
        self.config = config
        self.scheduler = config.build()
        self.ledger = ledger
        self.cap = config.load_cap()
        wanted = self.scheduler.wants_costs or config.has_cap
        self.costs = FittedCosts() if wanted else None
        self.scheduler.prepare(Setup(weights=config.weights, costs=self.costs))
        self._times = None
        if self.costs is not None and self.scheduler.times_steps:
            self._times = StepTimes(self.scheduler, self.costs)
        self._tracked: dict[Hashable, Tracked] = {}
        self._ours: dict[Request, Tracked] = {}
        self._left: list[Request] = []  # the queue and the engine, which views may still read
        self._numbers = count()

    @property
    def idle(self) -> bool:
        return not self._tracked

    @property
    def waiting(self) -> Collection[str]:
        """The clients with waiting requests."""
        return self.view.clients()

    def gone(self, theirs: Theirs) -> None:
        """Handle the end of a request in any state. A second call has no effect."""
        if (tracked := self._tracked.pop(self.name_of(theirs), None)) is None:
            return
        request = tracked.request
        if request in self.view:
            self.view.leave(request)
            self._left.append(request)
        else:
            del self._ours[request]
        self.ledger.count("finished", request.client)
        self.cap.finish(request, tracked.produced)
        self.scheduler.on_output(request, tracked.produced)
        self.scheduler.on_finish(request)

    def end_pass(self) -> None:
        """End an admission pass."""
        self.view.end_pass()
        for request in self._left:
            del self._ours[request]
        self._left.clear()

    def retraction_order(self, running: Iterable[Theirs], now_s: float) -> list[Theirs]:
        """Return all running requests in the order of losing memory; unknown ones go last."""
        wanted = self.scheduler.retraction_order(self.view.running, now_s)
        known: dict[Request, Theirs] = {}
        unknown: list[Theirs] = []
        for theirs in running:
            if (tracked := self._tracked.get(self.name_of(theirs))) is not None:
                known[tracked.request] = theirs
            else:
                unknown.append(theirs)
        if len(wanted) != len(known) or set(wanted) != set(known):
            raise RunFailed(
                f"{self.scheduler.name}: retraction_order must return every running "
                "request exactly once"
            )
        return [*(known[request] for request in wanted), *unknown]

    def _admit(self, tracked: Tracked, extend_tokens: int) -> None:
        """Account an admission; the uncached tokens will all be computed, if in chunks."""
        request, recompute = tracked.request, tracked.admitted
        tracked.admitted = True
        self.ledger.count("admissions", request.client)
        if not recompute:
            self.ledger.waited(QUEUE_TIME, request)
        what = "recomputed_tokens" if recompute else "extend_tokens"
        self.ledger.count(what, request.client, extend_tokens)
        self.cap.enter(request)
        self.scheduler.on_admitted(request, extend_tokens, recompute)

    def _produce(self, tracked: Tracked, output_tokens: int) -> None:
        """Account a request's new output tokens, given its total."""
        request, new = tracked.request, output_tokens - tracked.produced
        tracked.produced = output_tokens
        if new:
            self.ledger.count("output_tokens", request.client, new)
            if new == output_tokens:
                self.ledger.waited(FIRST_TOKEN, request)
            self.scheduler.on_tokens(request.client, new)
            if self.scheduler.per_request_tokens:
                self.scheduler.on_request_tokens(request, new)
