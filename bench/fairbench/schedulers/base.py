"""The interfaces of this package: the methods of a local scheduler and of a router.

A scheduler is a pure state machine. A scheduler reads no clock, no random source and no socket;
time and facts are arguments, and decisions are results. The same object therefore runs in the
simulator, inside a real SGLang server (local schedulers), in the router process in front of real
servers (routers), and in a queue before the cluster (``gateway``).

The hooks of a local scheduler, in the life of a request:

    accepts -> on_arrival -> select ... on_admitted -> on_tokens, on_tokens, ... -> on_finish
                  ^                                            |
                  +-- (waits again) <-- on_retract <-----------+

``prepare`` is called once, before all other hooks. ``accepts`` may refuse a request at once; a
request that is aborted while it waits goes from ``on_arrival`` to ``on_finish``. ``on_admitted``
runs before the generator of ``select`` is resumed. At one instant, steps end first (``on_tokens``,
then ``on_finish``), then requests arrive, and then the engine makes an admission pass. A router's
hooks: ``prepare``, then for each request ``route`` (again whenever it returned None),
``on_first_token`` and ``on_finish``, or ``on_failure`` if the worker did nothing for the request; a
host may call ``on_evict`` late, at any time.
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
    """Return the weights as floats by client. Raises UsageError for a weight out of range."""
    for client, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and LIGHTEST <= weight <= HEAVIEST):
            allowed = f"a number from {LIGHTEST:g} to {HEAVIEST:g}"
            raise UsageError(f"weights.{client} = {weight!r}: must be {allowed}")
    return {client: float(weight) for client, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts about an experiment or a server; an unknown fact has a default value.

    ``clients`` is empty if clients are not known in advance, as at a server. ``weights`` are the
    clients' entitlements, 1 by default; weights belong to the experiment, not to a scheduler.
    ``pool_tokens`` is the size of a worker's KV pool in tokens (0: unknown), ``costs`` predicts the
    time of iterations, and ``swap_token_s`` is the time in seconds to copy a token's KV cache to
    the host's memory or back (None: the engine cannot copy). ``fleet`` reports the workers' loads,
    for routers and gateways only. ``tenant_paths`` maps clients to their positions in the tree of
    tenants, for clients whose names do not state the position (``fairbench.tenants``). ``shuffle``
    shuffles a list with a random stream of the host (None: the host has no random stream).
    ``order`` is the order of the router's queue, for local schedulers in the router's process.
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

    def lineage(self, client: str) -> tuple[str, ...]:
        """Return a client's tenants from the outermost to the innermost, then the client."""
        return lineage(self.tenant_paths.get(client, client))

    def children_of(self, tenant: str, clients: Iterable[str]) -> dict[str, None]:
        """Return a tenant's child nodes on the paths to the clients, in the clients' order."""
        paths = self.tenant_paths
        return children_of(tenant, (paths.get(client, client) for client in clients))

    def weight(self, client: str) -> float:
        """Return the client's entitlement relative to other clients."""
        return self.weights.get(client, 1)

    def weighted(self, owner: str, weights: Mapping[str, float] | None) -> Setup:
        """Return a setup in which ``weights`` override the weights of some clients.

        Later changes of this setup's weights remain visible in the new setup. Raises UsageError
        that names the setting ``owner`` for an unknown client.
        """
        if not weights:
            return self
        self.check_clients(owner, weights)
        return replace(self, weights=ChainMap(dict(weights), cast(Any, self.weights)))

    def check_clients(self, owner: str, names: Iterable[str]) -> None:
        """Raise UsageError about the setting ``owner`` if ``clients`` lacks a name."""
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
    """A flag of an earlier interface.

    A class with the flag's method may still set the flag to True.
    """

    def __init__(self, method: str) -> None:
        self._method = method

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, scheduler: object, owner: type) -> bool:
        return getattr(scheduler or owner, self._method) is not None

    def __set__(self, scheduler: object, value: bool) -> None:
        raise UsageError(
            f"{type(scheduler).__name__}.{self._name}: is no longer asked for; where the scheduler "
            f"has no such part, write self.{self._method} = None"
        )


class HasParts:
    """The parts that a scheduler may have besides its order: hooks that are None by default.

    A scheduler declares a part by having the part's method (``Parts``). A host asks for the method,
    and works without the part if the method is None. A scheduler whose parts depend on parameters
    sets the methods, or sets them to None, in its constructor.

    | part | methods |
    |---|---|
    | charging of whole batches | ``on_steps`` |
    | charging by request | ``on_request_tokens`` |
    | charging of GPU time | ``on_prompt_time``, ``on_gpu_time`` |
    | correction of charges before real servers | ``on_read`` |
    | choice of the requests that lose memory | ``retraction_order`` |
    | size of a step | ``step_tokens`` |
    | time of a pass | ``pass_s`` |
    | choice between prompts and decoding | ``decodes_first``, ``on_iteration`` |
    | sorting of the engine's own queue | ``sort_queue``, ``chunk_limit`` |
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
        """Refuse a class that has only one of the two methods of a part. Raises UsageError."""
        super().__init_subclass__()
        for one, other in (("on_prompt_time", "on_gpu_time"), ("on_gpu_time", "on_prompt_time")):
            if getattr(cls, one) is not None and getattr(cls, other) is None:
                raise UsageError(f"class {cls.__name__}: has {one}, and needs {other}, too")


class LocalScheduler(HasParts, ABC):
    """The order of one worker's waiting queue. Subclass this class; a file holds one policy.

    The class must define ``name`` and a frozen dataclass ``Params`` (``--set name.field=value``
    sets a field), and take ``Params`` in its constructor. ``Parts`` has further hooks; a host uses
    only the hooks that the scheduler has.
    """

    name: ClassVar[str]
    cache_aware: bool = False
    # a negative number in on_tokens refunds outputs that were charged in advance
    refunds_tokens: bool = False
    wants_costs: bool = False  # the scheduler uses setup.costs, which a real server has to measure
    preempts: bool = False  # the engine makes admission passes even when the batch is full
    swaps: bool = False  # preempted requests may move to the host's memory, see Preempt
    # a host without preemption or swapping may run the scheduler
    preemption_optional: ClassVar[bool] = False
    # decisions depend on now_s, and each rank has its own clock
    reads_clock: ClassVar[bool] = False
    # The scheduler sums the service of programs or clients without an account, so ranks cannot
    # share the sums.
    counts_service: ClassVar[bool] = False
    # False means that the scheduler may leave room unused, see wake_s
    work_conserving: ClassVar[bool] = True
    # a pass with ``pass_s`` blocks the worker before prompts and after so many decode steps
    steps_per_pass: ClassVar[int] = 1
    # The first SGLang release that has this order as a built-in policy.
    sglang_since: ClassVar[str | None] = None
    Params: ClassVar[Any]

    setup: Setup = Setup()

    def prepare(self, setup: Setup) -> None:
        """Receive the facts about clients, weights and costs, once, before the first request.

        Raises UsageError if the parameters contradict the facts, for example by naming an unknown
        client.
        """
        self.setup = setup

    @abstractmethod
    def select(self, view: WaitingView, now_s: float) -> Selection:
        """Run one admission pass: yield candidates, and return when the pass should end.

        The generator receives True if the candidate was admitted (the host has already called
        ``on_admitted``) and False if the engine had no room. SGLang's own schedulers return at the
        first False. The generator may also yield ``Preempt(request)``. ``now_s`` is always in
        seconds on the host's clock.
        """

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        """Return the time of the next call without an event, or None for no call.

        The host calls this method only for a scheduler that is not ``work_conserving``, when the
        scheduler's worker is idle and requests wait.
        """
        return None

    def accepts(self, request: Request, now_s: float) -> bool:
        """Return whether to accept an arriving request.

        A refused request never enters the queue.
        """
        return True

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        """Handle a request that is about to enter the queue.

        ``view`` does not contain the request yet.
        """

    def forget(self, client: str) -> None:
        """Forget the state of a client without requests, so that memory stays bounded.

        A gateway calls this method for the longest idle clients once more than 10,000 clients are
        idle.
        """

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        """Handle an admission of a request.

        The engine will compute the request's ``extend_tokens`` uncached tokens. ``recompute`` marks
        the second admission of a retracted request, whose prompt was charged at the first
        admission.
        """

    def on_tokens(self, client: str, tokens: int) -> None:
        """Charge the client for output tokens of its requests (a host may merge calls).

        A queue before the cluster (``gateway``) may call a scheduler that ``refunds_tokens`` in
        advance, with the expected number of tokens. A later call corrects the number; ``tokens`` is
        negative if the answer was shorter than expected.
        """

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        """Handle a running request that lost its memory or was preempted, and waits again."""

    def on_output(self, request: Request, tokens: int) -> None:
        """Record a request's total output (0 if it never ran) at its end, before ``on_finish``."""

    def on_finish(self, request: Request) -> None:
        """Handle a request that produced its last token, or was aborted."""

    def balances(self) -> Mapping[str, float]:
        """Return each client's balance for monitoring, such as a credit or a counter."""
        return {}

    def service_bound(self) -> ServiceBound | NoBound:
        """Return the theorem that bounds service differences on one worker."""
        return NoBound(f"{self.name} bounds no service difference")


class Router(ABC):
    """The choice of a worker for each request. Subclass this class; a file holds one policy.

    Constructor: ``(params, workers)`` where ``workers`` is the number of workers, numbered from 0.
    """

    name: ClassVar[str]
    wants_evictions: ClassVar[bool] = False
    holds: ClassVar[bool] = False  # ``route`` may return None
    # Name of a local scheduler's theorem -> name of the theorem for the cluster, whose bound is the
    # sum of the workers' bounds.
    cluster_theorems: ClassVar[Mapping[str, str]] = {}
    served_params: ClassVar[
        Mapping[str, Any]
    ] = {}  # defaults of ``fairbench serve``, different from those of Params
    Params: ClassVar[Any]

    setup: Setup = Setup()
    order: LocalScheduler | None = None  # order of the queue of a router that ``holds``, see route

    def prepare(self, setup: Setup) -> None:
        """Receive the facts of the experiment, once, before the first request.

        ``setup.fleet`` reports the workers' loads.
        """
        self.setup = setup

    @abstractmethod
    def route(self, request: Request, now_s: float) -> int | None:
        """Return the worker for this request; the host dispatches the request at once.

        A router that declares ``holds`` may return None to queue the request. The host asks again
        for each queued request, in order of arrival, after a request has finished or started to
        run, and after a worker has joined or left. If the router has an ``order``, the order's
        ``select`` names the requests, as in an engine; the host calls the order's other methods as
        a gateway does.
        """

    def on_first_token(self, request: Request, worker: int, at_s: float) -> None:
        """Record the time of a request's first token on the host's clock, before ``on_finish``.

        The host does not call this method for a request whose first token it did not see.
        """

    @property
    def wants_gpu_time(self) -> bool:
        """Return whether the router uses ``on_gpu_time``.

        Simulated workers measure GPU time only for such routers.
        """
        return type(self).on_gpu_time is not Router.on_gpu_time

    def on_gpu_time(self, request: Request, worker: int, gpu_s: float) -> None:
        """Record a request's GPU time on the worker, in seconds, if known, before ``on_finish``."""

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        """Handle a request that finished at a worker, or was refused with 0 output tokens."""

    def on_failure(self, request: Request, worker: int, now_s: float) -> None:
        """Handle the failure of a worker that did nothing for the request.

        The host calls this method instead of ``on_finish``, and may route the request again. The
        router should refund the charge for the dispatch.
        """
        self.on_finish(request, worker, Segment("nothing", 0), now_s)

    def on_evict(self, prefix: Prompt, evicted_tokens: int, worker: int, now_s: float) -> None:
        """Handle a late report that a worker evicted the last ``evicted_tokens`` of ``prefix``."""

    def on_weights(self) -> None:
        """Handle a change of weights, which the host has already made in ``setup``."""

    def balance(self, client: str) -> float | None:
        """Return a client's balance for monitoring, such as its credit, or None if unknown."""
        return None

    def on_worker_join(self, worker: int, now_s: float) -> None:
        """Add a worker with an empty cache; the worker may have left the cluster earlier.

        Raises RunFailed if the router does not support joining workers.
        """
        raise RunFailed(f"router {self.name} does not support adding or removing workers")

    def on_worker_leave(self, worker: int, now_s: float) -> None:
        """Remove a worker and its cache; the host dispatches its requests again."""
        raise RunFailed(f"router {self.name} does not support adding or removing workers")


class Parts(Protocol):
    """The interface of the parts of a local scheduler, for hosts."""

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Charge ``steps`` decode steps, given each client's number of ``running`` requests.

        Between two calls, a client's number changes only after ``on_tokens``, ``on_finish`` or
        ``on_retract`` for the client. This method is only for speed: the host calls ``on_tokens``
        for each client of a scheduler without ``on_steps``.
        """

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        """Charge a request's output tokens.

        The host calls this method for each request in each step.
        """

    def on_prompt_time(self, request: Request, gpu_ps: int, complete: bool) -> None:
        """Charge a client for the GPU time of a prompt or a chunk, in picoseconds.

        ``complete`` marks the last chunk of a prompt.
        """

    def on_gpu_time(self, client: str, gpu_ps: int) -> None:
        """Charge the client for GPU time in decode steps, in picoseconds. A host may merge calls.

        Together with ``on_prompt_time``, all clients' charges add up to the worker's busy time.
        """

    def on_read(self, request: Request, read: Read) -> None:
        """Correct the charge of a prompt that was charged in full although a part was cached.

        Only a queue before real servers calls this method (``gateway``), because the queue must
        charge before the cached part is known; once for a request, before ``on_finish``. The
        scheduler charges or refunds the difference.
        """

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Return all running requests in the order in which they lose memory in a full pool.

        The engine's own order applies to a scheduler without this method.
        """

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        """Return the token limit of the next step, for prompts and outputs together.

        Only engines whose steps mix prompts and outputs (vLLM) call this method. The engine's own
        limit applies as well, and every running request gets an output token.
        """

    def pass_s(self) -> float:
        """Return the seconds for which a scheduling pass blocks the worker.

        Only simulated engines call this method: before each iteration that computes prompts, and
        after each ``steps_per_pass`` decode steps. The iteration starts so much later.
        """

    def sort_queue(self, queue: SortableQueue) -> Sequence[Request] | None:
        """Return all waiting requests in a new order, which the queue keeps, or None for no change.

        Only the simulated SGLang calls this method, before ``select`` in each pass. The method
        ``select`` of such a scheduler yields the requests in queue order.
        """

    def chunk_limit(self, left: int, budget: int) -> int | None:
        """Return the most tokens for the prompt that this pass continues, or None for no limit.

        ``left`` is the number of prompt tokens not computed yet, ``budget`` the number of tokens in
        a chunk. The host calls this method after ``sort_queue``.
        """

    def decodes_first(self, oldest: Request, left: int, now_s: float) -> bool:
        """Return whether the batch decodes now, before further prompts are computed.

        Only the simulated SGLang calls this method, without mixed chunks, when it could do either.
        ``oldest`` is the request whose prompt is computed next in queue order, and ``left`` the
        number of its prompt tokens not computed yet, including tokens that may be cached.
        """

    def on_iteration(self, prompt_tokens: int, start_ps: int, end_ps: int) -> None:
        """Record the times of an iteration in picoseconds; 0 ``prompt_tokens`` mean decoding.

        Only simulated engines call this method. A call may stand for several decode steps, but not
        after ``decodes_first``.
        """


PARTS = {
    name: method for name, method in vars(Parts).items() if isfunction(method) and name[0] != "_"
}
"""The methods of all parts by name, with their parameters and docstrings."""
