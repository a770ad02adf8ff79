"""The interfaces of this package: the methods of a local scheduler and of a router.

A scheduler is a pure state machine: it reads no clock, no random source and no socket. The
program that runs the scheduler (the *host*) passes the time and all data as arguments, and receives
decisions as return values. The same scheduler runs in a simulator, engine, router or gateway.

While a host serves a request, it calls a local scheduler's hooks in this order:

    accepts -> on_arrival -> select ... on_admitted -> on_tokens, on_tokens, ... -> on_finish

After ``on_retract``, the request waits again, and ``select`` may yield it again. ``prepare`` is
called once, before all other methods. If a request is aborted while it waits, ``on_finish`` follows
``on_arrival``. The host calls ``on_admitted`` before it resumes the generator of ``select``. Events
at the same time have an order: steps end (``on_tokens``, then ``on_finish``), requests arrive, and
the engine makes an admission pass.

The program that runs a router (the host) calls ``prepare`` once, and ``route``, ``on_first_token``
and ``on_finish`` for each request. If ``route`` returns None, the host calls ``route`` again later.
If the worker does no work for the request, the host calls ``on_failure`` instead of ``on_finish``.
The host may call ``on_evict`` at any time after ``prepare``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isfunction
from typing import Any, ClassVar, Protocol, cast

from fairbench.core import (
    HEAVIEST,
    LIGHTEST,
    CostModel,
    NoBound,
    Prompt,
    Request,
    Segment,
    ServiceBound,
)
from fairbench.errors import RunFailed, UsageError, unknown_name
from fairbench.schedulers.drive import Preempt, Selection
from fairbench.schedulers.views import (
    FleetView,
    Read,
    Running,
    RunningView,
    Scan,
    SortableQueue,
    Waiting,
    WaitingView,
)
from fairbench.tenants import children_of, lineage


def checked_weights(weights: Mapping[str, Any]) -> dict[str, float]:
    """Return the weights of clients as floats. Raises UsageError if a weight is out of range."""
    for client, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and LIGHTEST <= weight <= HEAVIEST):
            allowed = f"a number from {LIGHTEST:g} to {HEAVIEST:g}"
            raise UsageError(f"weights.{client} = {weight!r}: must be {allowed}")
    return {client: float(weight) for client, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Setup:
    """Facts about an experiment or a server that a scheduler may need.

    ``clients`` is empty on a server whose clients are not known in advance. ``weights`` are the
    clients' shares of service relative to each other, 1 by default. ``pool_tokens`` is the size of
    a worker's KV pool in tokens, or 0 if unknown. ``costs`` predicts the time of iterations.
    ``swap_token_s`` is the time in seconds to copy the KV cache of one token between GPU and CPU
    memory, or None if the engine cannot copy it. ``fleet`` reports the workers' loads, for routers
    and gateways only. ``tenant_paths`` maps a client to its position in the tree of tenants if the
    client's name does not contain the position (``fairbench.tenants``). ``shuffle`` shuffles a
    list, or is None if no random source is available. ``order`` is the local scheduler that orders
    the router's own queue, or None. ``streamed``, for gateways only, returns the number of output
    tokens so far of each unfinished request. ``streamed`` is None if the host learns the number of
    output tokens only at the end of a request.
    """

    clients: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    pool_tokens: int = 0
    costs: CostModel | None = None
    swap_token_s: float | None = None
    fleet: FleetView | None = None
    tenant_paths: Mapping[str, str] = field(default_factory=dict)
    shuffle: Callable[[list[Any]], None] | None = None
    order: object = None
    streamed: Callable[[], Mapping[Request, int]] | None = None

    def lineage(self, client: str) -> tuple[str, ...]:
        """Return a client's tenants, the outermost first, followed by the client itself."""
        return lineage(self.tenant_paths.get(client, client))

    def children_of(self, tenant: str, clients: Iterable[str]) -> dict[str, None]:
        """Return a tenant's child nodes on the paths to the clients, in the clients' order."""
        paths = self.tenant_paths
        return children_of(tenant, (paths.get(client, client) for client in clients))

    def weight(self, client: str) -> float:
        """Return the client's weight for sharing service, 1 by default."""
        return self.weights.get(client, 1)

    def weighted(self, owner: str, weights: Mapping[str, float] | None) -> Setup:
        """Return a setup in which ``weights`` override the weights of some clients.

        Other clients' weights are read from the original setup, so later changes apply. Raises
        UsageError for an unknown client; the message names the scheduler ``owner``.
        """
        if not weights:
            return self
        self.check_clients(owner, weights)
        return replace(self, weights=ChainMap(dict(weights), cast(Any, self.weights)))

    def check_clients(self, owner: str, names: Iterable[str]) -> None:
        """Raise UsageError, naming the setting ``owner``, unless every name is a known client."""
        for client in names:
            if self.clients and client not in self.clients:
                raise unknown_name(f"client in {owner}", client, self.clients)


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
    "SortableQueue",
    "Waiting",
    "WaitingView",
]


class OldFlag:
    """A Boolean attribute that schedulers for older versions set to declare an optional hook."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, scheduler: object, owner: type) -> bool:
        return getattr(scheduler or owner, self._method) is not None

    def __set__(self, scheduler: object, value: bool) -> None:
        raise UsageError(
            f"{type(scheduler).__name__}.{self._name}: this flag no longer has an effect; to turn "
            f"off the method {self._method}, write self.{self._method} = None"
        )


class HasOptionalHooks:
    """The optional hooks of a scheduler, all None by default.

    A scheduler declares an optional hook by defining the method, which ``OptionalHooks`` describes,
    or by setting the hook in its constructor. The host does not call a hook that is None.
    """

    on_steps: Callable[[int, Mapping[str, int]], None] | None = None
    on_request_tokens: Callable[[Request, int], None] | None = None
    on_prompt_time: Callable[[Request, int, bool], None] | None = None
    on_gpu_time: Callable[[str, int], None] | None = None
    on_read: Callable[[Request, Read], None] | None = None
    retraction_order: Callable[[RunningView, float], Sequence[Request]] | None = None
    step_tokens: Callable[[RunningView, float], int] | None = None
    pass_s: Callable[[], float] | None = None
    sort_queue: Callable[[SortableQueue], Sequence[Request] | None] | None = None
    chunk_limit: Callable[[int, int], int | None] | None = None
    decodes_first: Callable[[Request, int, float], bool] | None = None
    on_iteration: Callable[[int, int, int], None] | None = None

    per_request_tokens = OldFlag("on_request_tokens")
    times_steps = OldFlag("on_gpu_time")
    orders_retraction = OldFlag("retraction_order")
    sizes_steps = OldFlag("step_tokens")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for one, other in (("on_prompt_time", "on_gpu_time"), ("on_gpu_time", "on_prompt_time")):
            if getattr(cls, one) is not None and getattr(cls, other) is None:
                raise UsageError(
                    f"class {cls.__name__}: defines {one}, and must also define {other}"
                )


class LocalScheduler(HasOptionalHooks, ABC):
    """A local scheduler: the order of the requests that wait at one worker.

    Subclass this class to write a scheduler.

    The subclass must define ``name`` and a frozen dataclass ``Params``, and take ``Params`` in its
    constructor. ``--set name.field=value`` sets a field of ``Params``. The protocol
    ``OptionalHooks`` describes further hooks.
    """

    name: ClassVar[str]
    cache_aware: bool = False
    # If ``refunds_tokens`` is true, ``on_tokens`` accepts a negative number of tokens: a refund of
    # outputs that were charged in advance.
    refunds_tokens: bool = False
    # If ``wants_costs`` is true, the scheduler uses ``setup.costs``. In a real server,
    # ``setup.costs`` is fitted to the measured times of steps.
    wants_costs: bool = False
    # If ``preempts`` is true, the engine makes admission passes even if the running batch is full.
    preempts: bool = False
    # If ``swaps`` is true, the KV cache of a preempted request may be copied to CPU memory (see
    # ``Preempt``).
    swaps: bool = False
    # If ``preemption_optional`` is true, the scheduler also runs on an engine that cannot preempt
    # or swap.
    preemption_optional: ClassVar[bool] = False
    # If ``reads_clock`` is true, decisions depend on ``now_s``. The clocks of a tensor-parallel
    # server's ranks differ, so the ranks might decide differently.
    reads_clock: ClassVar[bool] = False
    # If ``counts_service`` is true, the scheduler sums the service of programs or clients itself,
    # and a server's data-parallel ranks cannot share these sums.
    counts_service: ClassVar[bool] = False
    # If ``work_conserving`` is false, the scheduler may leave free memory unused while requests
    # wait (see ``wake_s``).
    work_conserving: ClassVar[bool] = True
    # If the scheduler defines ``pass_s``, a pass blocks the worker before each prefill and after
    # every ``steps_per_pass`` decode steps.
    steps_per_pass: ClassVar[int] = 1
    # ``sglang_since`` is the first release of SGLang in which the scheduler's order is a built-in
    # policy.
    sglang_since: ClassVar[str | None] = None
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Receive the facts about clients, weights and costs, once, before the first request.

        Raises UsageError if the parameters contradict the facts, for example if they name an
        unknown client.
        """
        self.setup = setup

    @abstractmethod
    def select(self, view: WaitingView, now_s: float) -> Selection:
        """Run one admission pass: yield candidates, and return when the pass should end.

        The host sends True to the generator if the candidate was admitted (after calling
        ``on_admitted``), and False if the engine's memory was short. SGLang's own schedulers end
        the admission pass at the first candidate that does not fit. Besides candidates, ``select``
        may yield ``Preempt(request)``, which asks the host to free the KV memory of a running
        request. ``now_s`` is in seconds on the host's clock.
        """

    def may_preempt(self, view: WaitingView, now_s: float) -> bool:
        """Return whether an admission pass may preempt a running request when the batch is full.

        Only a real server calls ``may_preempt``, for a scheduler that declares ``preempts``. If
        ``may_preempt`` returns False, the server makes no admission pass while the batch is full.
        """
        return True

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        """Return the time at which the host makes another admission pass, or None for no pass.

        The host calls ``wake_s`` only for a scheduler that is not ``work_conserving``, when the
        worker is idle although requests wait.
        """
        return None

    def accepts(self, request: Request, now_s: float) -> bool:
        """Return True to accept an arriving request, or False to refuse the request.

        A refused request never enters the waiting queue.
        """
        return True

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        """Handle a request that is about to enter the queue.

        ``view`` does not yet contain the new request.
        """

    def forget(self, client: str) -> None:
        """Delete the state of a client without requests, so that memory use stays bounded.

        When more than 10,000 clients are idle, a gateway calls ``forget`` for the clients that have
        been idle longest.
        """

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """Handle a request that the host has just admitted.

        The engine will compute ``extend_tokens`` uncached tokens of the request. ``recompute`` is
        true for a retracted request that is admitted again; its prompt was charged at the first
        admission.
        """

    def on_tokens(self, client: str, tokens: int) -> None:
        """Charge the client for output tokens of its requests; a call may cover several steps.

        If a scheduler declares ``refunds_tokens``, a gateway may call ``on_tokens`` in advance with
        the expected output length. When the request ends, another call of ``on_tokens`` corrects
        the charge, with negative ``tokens`` if the output was shorter than expected.
        """

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        """Handle a running request that lost its KV memory and now waits again."""

    def on_output(self, request: Request, tokens: int) -> None:
        """Record the total output of a request that has ended (0 if the request never ran)."""

    def on_finish(self, request: Request) -> None:
        """Handle a request that produced its last token or was aborted."""

    def balances(self) -> Mapping[str, float]:
        """Return each client's balance for monitoring, such as a credit or a counter."""
        return {}

    def service_bound(self) -> ServiceBound | NoBound:
        """Return the bound on the difference in service between two clients on one worker."""
        return NoBound(f"{self.name} bounds no service difference")


class Router(ABC):
    """A router, which chooses a worker for each request.

    Subclass this class to write a router. The constructor takes ``(params, workers)``, where
    ``workers`` is the number of workers; workers are numbered from 0.
    """

    name: ClassVar[str]
    wants_evictions: ClassVar[bool] = False
    # If ``holds`` is true, ``route`` may return None; the request then waits in the router's queue.
    holds: ClassVar[bool] = False
    # ``cluster_theorems`` maps a local scheduler's theorem to the theorem that bounds service in
    # the whole cluster. The cluster's bound on service differences is the sum of the workers'
    # bounds.
    cluster_theorems: ClassVar[Mapping[str, str]] = {}
    # ``served_params`` gives the parameters whose default differs in ``fairbench serve``.
    served_params: ClassVar[Mapping[str, Any]] = {}
    Params: ClassVar[Any]

    setup: Setup = Setup()
    # ``order`` is the local scheduler that sorts the router's own queue, or None.
    order: LocalScheduler | None = None

    def prepare(self, setup: Setup) -> None:
        """Store the facts in ``setup``; the host calls this method once, before the first request.

        The loads of the workers are in ``setup.fleet``.
        """
        self.setup = setup

    @abstractmethod
    def route(self, request: Request, now_s: float) -> int | None:
        """Return the worker for this request; the simulator or router process sends it at once.

        A router that declares ``holds`` may return None to queue the request. Whenever a request
        starts or finishes, or a worker joins or leaves, the host calls ``route`` again for each
        queued request. Queued requests are tried in order of arrival, or in the order of
        ``order.select`` if the router has an ``order``.
        """

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        """Record the time of a request's first token on the host's clock.

        The host does not call ``on_first_token`` for a request whose first token it did not
        observe.
        """

    @property
    def wants_gpu_time(self) -> bool:
        """Return whether simulated workers must measure GPU time for ``on_gpu_time``."""
        return type(self).on_gpu_time is not Router.on_gpu_time

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        """Record a request's GPU time in seconds, before ``on_finish`` is called."""

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        """Handle a request that finished, or that the worker refused with an empty ``output``."""

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        """Handle a failed request for which its worker did no work.

        The host calls ``on_failure`` instead of ``on_finish``, and may route the request again. The
        router should refund its charge for the request.
        """
        self.on_finish(request, worker, Segment("nothing", 0), now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        """Handle the report that a worker evicted the last ``evicted_tokens`` of ``prefix``.

        The host reports evictions only if ``wants_evictions`` is true. The host does not report
        which prefixes are cached: the router records the prompts that it routes to each worker, and
        the outputs that ``on_finish`` reports.
        """

    def on_weights(self) -> None:
        """Handle a change of weights; the host has already updated the weights in ``setup``."""

    def balance(self, client: str) -> float | None:
        """Return a client's balance for monitoring, such as its credit, or None if unknown."""
        return None

    def on_worker_join(self, worker: int, now_s: float) -> None:
        """Add a worker with an empty cache; the worker may have left the cluster earlier.

        Raises RunFailed if the router does not support joining workers.
        """
        raise RunFailed(f"router {self.name} does not support adding or removing workers")

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        """Remove a worker and its cache; the caller then routes the worker's requests again."""
        raise RunFailed(f"router {self.name} does not support adding or removing workers")


class OptionalHooks(Protocol):
    """The optional hooks of a local scheduler."""

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Charge all clients for decode steps of their running requests.

        ``running`` maps each client to its number of running requests, which changes only after
        ``on_tokens``, ``on_finish`` or ``on_retract`` for the client. If a scheduler has no
        ``on_steps``, ``on_tokens`` is called for each client instead, which takes more time.
        """

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        """Charge the output tokens of a request; the host reports them after each decode step."""

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        """Charge a client for the GPU time of a prompt or a chunk, in picoseconds.

        ``complete`` is true for the prompt's last chunk.
        """

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        """Charge the client for the GPU time of decode steps, in picoseconds.

        A host may combine the GPU time of several steps in one call.

        All clients' charges by ``on_gpu_time`` and ``on_prompt_time`` add up to the worker's busy
        time.
        """

    def on_read(self, request: Request, read: Read) -> None:
        """Correct the charge of a prompt that was charged in full although a part was cached.

        Only a gateway calls ``on_read``, because a gateway charges a prompt before the length of
        the cached part is known. The gateway calls ``on_read`` once for each request, before
        ``on_finish``. The scheduler charges or refunds the difference between the correct charge
        and the charge for the full prompt.
        """

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Return all running requests in the order in which they are retracted if the pool is full.

        A scheduler without ``retraction_order`` leaves the order to the engine.
        """

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        """Return the limit on prompt and output tokens together in the next step.

        Only vLLM, whose steps mix prompts and outputs, calls ``step_tokens``. A step of vLLM also
        obeys vLLM's own limit on its tokens, and every running request gets an output token.
        """

    def pass_s(self) -> float:
        """Return the seconds for which a scheduling pass blocks the worker.

        Only simulated engines call ``pass_s``: before each prefill iteration, and after each
        ``steps_per_pass`` decode steps. The next iteration starts later by the returned number of
        seconds.
        """

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request] | None:
        """Return all waiting requests in a new order, or None to leave the queue unchanged.

        Only the simulated SGLang calls ``sort_queue``, in each admission pass. After a call of
        ``sort_queue``, ``select`` must yield the requests in the returned order.
        """

    def chunk_limit(self, left: int, budget: int) -> int | None:
        """Return the limit on the next chunk of a prompt, in tokens, or None for no limit.

        ``left`` is the number of the prompt's tokens that are not computed yet, and ``budget`` is
        the usual number of tokens in a chunk. ``chunk_limit`` is called after ``sort_queue``.
        """

    def decodes_first(self, oldest: Request, left: int, now_s: float) -> bool:
        """Return whether the batch decodes now, before more prompts are computed.

        Only the simulated SGLang without mixed chunks calls ``decodes_first``, when SGLang could
        either prefill or decode. ``oldest`` is the first request in the queue whose prompt is
        incomplete. ``left`` is the number of prompt tokens of ``oldest`` that are not computed yet,
        some of which may be cached.
        """

    def on_iteration(self, prompt_tokens: int, start_ps: int, end_ps: int) -> None:
        """Record the times of an iteration in picoseconds; ``prompt_tokens`` is 0 for decoding.

        Only simulated engines call ``on_iteration``. A call of ``on_iteration`` may combine several
        decode steps, unless the scheduler defines ``decodes_first``.
        """


OPTIONAL_HOOKS = {
    name: method
    for name, method in vars(OptionalHooks).items()
    if isfunction(method) and name[0] != "_"
}
"""The optional hooks of a local scheduler, by name."""
