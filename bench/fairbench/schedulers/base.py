"""The two interfaces of this package: what a local scheduler and a router must do.

Both are pure state machines. They read no clock, no random source and no socket; time and facts
are passed in and decisions come out, so the very same object runs in the simulator, inside a real
SGLang server (local schedulers), in the router process in front of real servers (routers), and in
a queue before the cluster (``gateway``).

The hooks of a local scheduler, in the life of a request:

    accepts -> on_arrival -> select ... on_admitted -> on_tokens, on_tokens, ... -> on_finish
                  ^                                            |
                  +-- (waits again) <-- on_retract <-----------+

``prepare`` comes before all of them, once. ``accepts`` may end it at once; one that is aborted
while it waits goes from ``on_arrival`` to ``on_finish``. ``on_admitted`` runs before the generator
of ``select`` is resumed. At one instant steps end (``on_tokens``, then ``on_finish``), then
requests arrive, then a pass is made. A router's hooks: ``prepare``, then for each request ``route``
(again whenever it was None), ``on_first_token`` and ``on_finish``, or ``on_failure`` if the worker
did nothing for it; ``on_evict`` comes late, at any time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fairbench.core import NoBound, Prompt, Request, Segment, ServiceBound
from fairbench.errors import RunFailed
from fairbench.schedulers.drive import Preempt, Selection
from fairbench.schedulers.setup import Setup
from fairbench.schedulers.views import FleetView, Read, Running, RunningView, Scan, WaitingView

__all__ = [
    "FleetView",
    "LocalScheduler",
    "Preempt",
    "Read",
    "Router",
    "Running",
    "RunningView",
    "Scan",
    "Selection",
    "Setup",
    "WaitingView",
]


class LocalScheduler(ABC):
    """Orders one worker's waiting queue. Subclass this, one policy per file.

    The class must define ``name`` and a frozen dataclass ``Params`` (its fields are what
    ``--set name.field=value`` reaches), and take ``Params`` in its constructor.
    """

    name: ClassVar[str]
    cache_aware: ClassVar[bool] = False
    per_request_tokens: ClassVar[bool] = False  # wants on_request_tokens, which costs time
    refunds_tokens: bool = False  # on_tokens below 0 gives back what was charged ahead
    wants_costs: bool = False  # asks setup.costs, which a real server has to measure
    times_steps: bool = False  # wants on_prompt_time and on_gpu_time
    preempts: bool = False  # its passes are made even when the batch is full
    swaps: bool = False  # it may preempt to the host's memory, see Preempt
    orders_retraction: ClassVar[bool] = False  # in place of the engine, see retraction_order
    preemption_optional: ClassVar[bool] = False  # its home may do without either
    sizes_steps: bool = False  # says how many tokens a step may have, see step_tokens
    work_conserving: ClassVar[bool] = True  # False: it may leave room unused, see wake_s
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Told once, before the first request, what is known of clients, weights and costs.

        Raises UsageError if the parameters do not fit, such as for a client that is not there.
        """
        self.setup = setup

    @abstractmethod
    def select(self, view: WaitingView, now_s: float) -> Selection:
        """One admission pass. Yield candidates; stop when nothing more should be tried.

        The generator receives True if the candidate was admitted (``on_admitted`` has then run
        already) and False if there was no room for it. SGLang's own schedulers return at the
        first False. ``Preempt(request)`` may be yielded as well. Seconds are on the home's clock,
        the same for every ``now_s``.
        """

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        """When to be asked again although nothing has happened, None for never.

        Only for one that is not ``work_conserving``, when its worker is idle and requests wait.
        """
        return None

    def accepts(self, request: Request, now_s: float) -> bool:
        """Whether an arriving request is taken in at all. A rate limit refuses some for good."""
        return True

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        """The request is about to enter the queue; ``view`` does not hold it yet."""

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """The request was admitted and its uncached ``extend_tokens`` will all be computed.

        ``recompute`` marks the second admission of a retracted request, which has been paid for.
        """

    def on_tokens(self, client: str, tokens: int) -> None:
        """Requests of this client produced so many output tokens (calls may be merged).

        From a queue before the cluster (``gateway``) one that ``refunds_tokens`` may hear of tokens
        that are yet to come, and of fewer than none if less came.
        """

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        """``on_tokens`` of a whole batch: so many requests of each client made that many steps.

        Between two calls a client's number changes only if there was news of it: ``on_tokens``,
        ``on_finish`` or ``on_retract``. To be overridden for speed alone, by whoever then sees to
        it that a subclass which only has an ``on_tokens`` of its own is still told of each client.
        """
        if type(self).on_tokens is LocalScheduler.on_tokens:
            return  # which does nothing, and steps are many
        for client, count in running.items():
            self.on_tokens(client, steps * count)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        """The same request by request, only for a scheduler with ``per_request_tokens``."""

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        """So many picoseconds of an iteration went to this request's prompt, or a chunk of it.

        ``complete``: it was the last. Only for a scheduler with ``times_steps``, as the next.
        """

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        """So many picoseconds of decode steps were this client's (calls may be merged).

        With those of ``on_prompt_time`` the clients' add up to the time that the worker was busy.
        """

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Memory is out: all running requests, the first to lose its memory first.

        Only for a scheduler with ``orders_retraction``; without it the engine's own order holds.
        """
        raise RunFailed(f"{self.name} declares orders_retraction and has no retraction_order")

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        """At most so many tokens in the step that begins, of prompts and outputs together.

        Only for a scheduler with ``sizes_steps``, and only in engines whose steps mix both (vLLM);
        their own limit holds as well, and every running request gets its token.
        """
        raise RunFailed(f"{self.name} declares sizes_steps and has no step_tokens")

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        """A running request lost its memory, or was preempted, and is about to wait again."""

    def on_read(self, request: Request, read: Read) -> None:
        """What was really read of a prompt that was charged whole, with nothing cached.

        Only before real servers, from a queue that must charge before it can know (``gateway``),
        once, before ``on_finish``. The difference is to be charged, or given back.
        """

    def on_output(self, request: Request, tokens: int) -> None:
        """What it has produced in all, 0 if it never ran. Told at its end, before ``on_finish``."""

    def on_finish(self, request: Request) -> None:
        """The request has produced its last token, or was aborted."""

    def balances(self) -> Mapping[str, float]:
        """What is held for or against each client, for monitoring: a credit, a counter."""
        return {}

    def service_bound(self) -> ServiceBound | NoBound:
        """The theorem that bounds service differences on one worker with these settings."""
        return NoBound(f"{self.name} bounds no service difference")


class Router(ABC):
    """Chooses a worker for each request. Subclass this, one policy per file.

    Constructor: ``(params, workers)`` where ``workers`` is the number of workers, numbered from 0.
    """

    name: ClassVar[str]
    wants_evictions: ClassVar[bool] = False
    holds: ClassVar[bool] = False  # ``route`` may answer None
    # By which theorem the workers' bounds, added up, bound the cluster: a local scheduler's
    # theorem -> the cluster's.
    cluster_theorems: ClassVar[Mapping[str, str]] = {}
    served_params: ClassVar[
        Mapping[str, Any]
    ] = {}  # defaults of ``fairbench serve``, not of Params
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Told once, before the first request; ``setup.fleet`` is every worker's load."""
        self.setup = setup

    @abstractmethod
    def route(self, request: Request, now_s: float) -> int | None:
        """The worker for this request, which is dispatched there at once.

        One that declares ``holds`` may answer None: the request is held, and the router asked
        again when something has changed (a request has finished or started to run, a worker has
        come or gone), in order of arrival.
        """

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        """When its first token came, on the home's clock. Told at its end, before ``on_finish``.

        Not told of a request that ended without one, nor where the home did not see it.
        """

    @property
    def wants_gpu_time(self) -> bool:
        """Whether it does anything with ``on_gpu_time``: simulated workers count it only then."""
        return type(self).on_gpu_time is not Router.on_gpu_time

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        """What it took of the worker's time. Told at its end, before ``on_finish``, if known."""

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        """The request finished (or was refused, with 0 tokens) at that worker."""

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        """The worker failed before it did anything for the request, which may be routed again.

        In place of ``on_finish``. What was charged for the dispatch ought to be given back.
        """
        self.on_finish(request, worker, Segment("nothing", 0), now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        """The last ``evicted_tokens`` of ``prefix`` have left that worker's cache. Late news."""

    def on_weights(self) -> None:
        """The weights of the setup have changed, in place."""

    def on_worker_join(self, worker: int, now_s: float) -> None:
        """A worker with an empty cache takes (again) part from now on. RunFailed if it cannot."""
        raise RunFailed(f"router {self.name} cannot change its set of workers")

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        """The worker is gone with its cache; the home re-dispatches its requests."""
        raise RunFailed(f"router {self.name} cannot change its set of workers")
