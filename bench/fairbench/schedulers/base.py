"""The two interfaces of this package: the methods of a local scheduler and of a router.

Both are pure state machines. They read no clock, no random source and no socket; time and facts are
passed in and decisions come out. The same object therefore runs in the simulator, inside a real
SGLang server (local schedulers), in the router process in front of real servers (routers), and in a
queue before the cluster (``gateway``).

The hooks of a local scheduler, in the life of a request:

    accepts -> on_arrival -> select ... on_admitted -> on_tokens, on_tokens, ... -> on_finish
                  ^                                            |
                  +-- (waits again) <-- on_retract <-----------+

``prepare`` is called once, before all of them. ``accepts`` may refuse a request at once; a request
that is aborted while it waits goes from ``on_arrival`` to ``on_finish``. ``on_admitted`` runs
before the generator of ``select`` is resumed. At one instant, steps end first (``on_tokens``, then
``on_finish``), then requests arrive, then a pass is made. A router's hooks: ``prepare``, then for
each request ``route`` (again whenever it returned None), ``on_first_token`` and ``on_finish``, or
``on_failure`` if the worker did nothing for the request; ``on_evict`` may be called late, at any
time.
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
    """The order of one worker's waiting queue. Subclass this, one policy per file.

    The class must define ``name`` and a frozen dataclass ``Params`` (``--set name.field=value``
    sets its fields), and take ``Params`` in its constructor.
    """

    name: ClassVar[str]
    cache_aware: ClassVar[bool] = False
    per_request_tokens: ClassVar[bool] = False  # needs on_request_tokens, which costs time
    refunds_tokens: bool = False  # on_tokens below 0 refunds outputs that were charged in advance
    wants_costs: bool = False  # uses setup.costs, which a real server has to measure
    times_steps: bool = False  # needs on_prompt_time and on_gpu_time
    preempts: bool = False  # passes are made even when the batch is full
    swaps: bool = False  # may preempt to the host's memory, see Preempt
    orders_retraction: bool = False  # chooses instead of the engine, see retraction_order
    preemption_optional: ClassVar[bool] = False  # the host need not support preemption or swapping
    sizes_steps: bool = False  # limits the tokens of a step, see step_tokens
    work_conserving: ClassVar[bool] = True  # False: the scheduler may leave room unused, see wake_s
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Receive the facts about clients, weights and costs, once, before the first request.

        Raises UsageError if the parameters do not fit, such as for an unknown client.
        """
        self.setup = setup

    @abstractmethod
    def select(self, view: WaitingView, now_s: float) -> Selection:
        """Run one admission pass: yield candidates, and return when no more should be tried.

        The generator receives True if the candidate was admitted (``on_admitted`` has then run
        already) and False if there was no room. SGLang's own schedulers return at the first False.
        ``Preempt(request)`` may be yielded as well. Seconds are on the host's clock, as for every
        ``now_s``.
        """

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        """Return the time of the next call without an event, or None for no call.

        Only called for a scheduler that is not ``work_conserving``, when its worker is idle and
        requests wait.
        """
        return None

    def accepts(self, request: Request, now_s: float) -> bool:
        """Return whether to accept an arriving request.

        A rate limit refuses some requests for good.
        """
        return True

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        """Handle a request that is about to enter the queue.

        ``view`` does not contain the request yet.
        """

    def forget(self, client: str) -> None:
        """Forget a client without requests, which later starts again, so that memory stays bounded.

        A gateway calls this method for the clients that have been idle for longest, once there are
        more than 10,000.
        """

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """Handle an admission of a request.

        The engine will compute all its uncached ``extend_tokens``. ``recompute`` marks the second
        admission of a retracted request, which was charged before.
        """

    def on_tokens(self, client: str, tokens: int) -> None:
        """Charge the client for output tokens of its requests (calls may be merged).

        If called from a queue before the cluster (``gateway``), a scheduler that ``refunds_tokens``
        may receive expected tokens in advance. The number is negative if fewer tokens came than
        expected.
        """

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Charge a batch whose clients each made ``steps`` steps with their ``running`` requests.

        Between two calls a client's number only changes after ``on_tokens``, ``on_finish`` or
        ``on_retract`` for that client. Override this method only for speed. The override must then
        ensure that a subclass with only its own ``on_tokens`` still receives each client.
        """
        if type(self).on_tokens is LocalScheduler.on_tokens:
            return  # the default does nothing, and steps are many
        for client, count in running.items():
            self.on_tokens(client, steps * count)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        """Charge a request's output tokens, only for a scheduler with ``per_request_tokens``."""

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        """Charge a client for the GPU time of a prompt or of a part of it, in picoseconds.

        ``complete`` marks the last chunk. Only called for a scheduler with ``times_steps``, like
        ``on_gpu_time``.
        """

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        """Charge the client for its GPU time in decode steps, in picoseconds (calls may be merged).

        Together with ``on_prompt_time``, all clients' charges add up to the worker's busy time.
        """

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Return all running requests in the order in which they lose memory when it runs out.

        Only called for a scheduler with ``orders_retraction``; without it, the engine's own order
        applies.
        """
        raise RunFailed(
            f"{self.name} declares orders_retraction, so it must have a method retraction_order"
        )

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        """Return the token limit of the next step, for prompts and outputs together.

        Only called for a scheduler with ``sizes_steps``, and only in engines whose steps mix both
        (vLLM). The engine's own limit applies as well, and every running request gets its token.
        """
        raise RunFailed(f"{self.name} declares sizes_steps, so it must have a method step_tokens")

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        """Handle a running request that lost its memory or was preempted, and now waits again."""

    def on_read(self, request: Request, read: Read) -> None:
        """Correct the charge of a prompt that was charged in full, because a part of it was cached.

        Only called before real servers, by a queue that must charge before it knows the cached part
        (``gateway``); once, before ``on_finish``. The scheduler charges or refunds the difference.
        """

    def on_output(self, request: Request, tokens: int) -> None:
        """Record a request's total output (0 if it never ran) at its end, before ``on_finish``."""

    def on_finish(self, request: Request) -> None:
        """Handle a request that produced its last token, or was aborted."""

    def balances(self) -> Mapping[str, float]:
        """Return each client's balance for monitoring, such as a credit or a counter."""
        return {}

    def service_bound(self) -> ServiceBound | NoBound:
        """Return the theorem that bounds service differences on one worker with these settings."""
        return NoBound(f"{self.name} bounds no service difference")


class Router(ABC):
    """The choice of a worker for each request. Subclass this, one policy per file.

    Constructor: ``(params, workers)`` where ``workers`` is the number of workers, numbered from 0.
    """

    name: ClassVar[str]
    wants_evictions: ClassVar[bool] = False
    holds: ClassVar[bool] = False  # ``route`` may return None
    # The theorem by which the sum of the workers' bounds bounds the cluster: a local scheduler's
    # theorem -> the cluster's.
    cluster_theorems: ClassVar[Mapping[str, str]] = {}
    served_params: ClassVar[
        Mapping[str, Any]
    ] = {}  # defaults of ``fairbench serve``, different from those of Params
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Receive the facts of the experiment, once, before the first request.

        ``setup.fleet`` has loads.
        """
        self.setup = setup

    @abstractmethod
    def route(self, request: Request, now_s: float) -> int | None:
        """Return the worker for this request, which is dispatched there at once.

        A router that declares ``holds`` may return None to queue the request. The router is asked
        again after a change (a request has finished or started to run, a worker has joined or
        left), in order of arrival.
        """

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        """Record the time of a request's first token on the host's clock, before ``on_finish``.

        Not called for a request without a first token, or if the host did not see it.
        """

    @property
    def wants_gpu_time(self) -> bool:
        """Return whether the router uses ``on_gpu_time``.

        Simulated workers measure GPU time only then.
        """
        return type(self).on_gpu_time is not Router.on_gpu_time

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        """Record a request's GPU time on the worker, if known, before ``on_finish``."""

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        """Handle a request that finished at a worker, or was refused with 0 output tokens."""

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        """Handle a worker that failed before it did anything for the request.

        Called instead of ``on_finish``; the request may be routed again. The router should refund
        its charge for the dispatch.
        """
        self.on_finish(request, worker, Segment("nothing", 0), now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        """Handle the eviction of the last ``evicted_tokens`` of ``prefix``, reported later."""

    def on_weights(self) -> None:
        """Handle a change of the setup's weights, which happens in place."""

    def balance(self, client: str) -> float | None:
        """Return a client's balance for monitoring, such as its credit; None if unknown."""
        return None

    def on_worker_join(self, worker: int, now_s: float) -> None:
        """Add a worker with an empty cache; the worker may have left the cluster earlier.

        Raises RunFailed if unsupported.
        """
        raise RunFailed(f"router {self.name} does not support adding or removing workers")

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        """Remove a worker and its cache; the host dispatches its requests again."""
        raise RunFailed(f"router {self.name} does not support adding or removing workers")
