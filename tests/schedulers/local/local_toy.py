"""A toy engine: a step is one admission pass and one output token for every running request.

Memory is counted, not modelled: an admission reserves its uncached input and all its outputs. The
documents (first prompt segments) of the last admitted requests are cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.views import ListScan
from tests.schedulers.local.local_trace import Trace


class ToyView:
    """A waiting queue in plain dicts, fast enough for deep queues."""

    def __init__(self, documents: int) -> None:
        self.waiting: dict[Request, None] = {}
        self.of_client: dict[str, dict[Request, None]] = {}
        self._order: list[Request] = []
        self._cached: OrderedDict[str, int] = OrderedDict()
        self._documents = documents

    def __len__(self) -> int:
        return len(self.waiting)

    def clients(self):
        return self.of_client.keys()

    def oldest(self, client: str) -> Request:
        return next(iter(self.of_client[client]))

    def __contains__(self, request: object) -> bool:
        return request in self.waiting

    def queue_order(self) -> ListScan:
        return ListScan(list(self.waiting), self.waiting)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        self._order = [request for request in self._order if request in self.waiting]
        if refresh:
            self._order.sort(key=lambda request: -self.matched_tokens(request))
        return ListScan(self._order, self.waiting)

    def matched_tokens(self, request: Request) -> int:
        return min(self._cached.get(request.prompt[0].key, 0), request.input_tokens - 1)

    def enter(self, request: Request) -> None:
        self.waiting[request] = None
        self.of_client.setdefault(request.client, {})[request] = None
        self._order.append(request)

    def admit(self, request: Request) -> None:
        del self.waiting[request]
        mine = self.of_client[request.client]
        del mine[request]
        if not mine:
            del self.of_client[request.client]
        document = request.prompt[0]
        self._cached[document.key] = document.length
        self._cached.move_to_end(document.key)
        if len(self._cached) > self._documents:
            self._cached.popitem(last=False)


class ToyEngine:
    """A toy engine with ``memory_tokens`` (M). ``reserve=False`` admits by the memory in use."""

    def __init__(
        self,
        scheduler: LocalScheduler,
        memory_tokens: int,
        clients: str,
        *,
        reserve: bool = True,
        client_view: bool = False,
        documents: int = 2,
    ) -> None:
        self.scheduler = scheduler
        self.trace = Trace(clients)
        self.view = ToyView(documents)
        self.on_instant: Callable[[], None] = lambda: None
        # steps that admitted no request although a waiting one would have fitted
        self.idle_steps = 0
        self.largest_decode = 0  # most tokens of a client after its last admission
        self._memory, self._reserve, self._client_view = memory_tokens, reserve, client_view
        self._running: dict[Request, list[int]] = {}  # request -> [extend, produced, output]
        self._held = 0  # tokens of the running requests
        self._outputs: dict[Request, int] = {}
        self._since_admission: dict[str, int] = {}

    def submit(self, request: Request, output: int | None = None) -> None:
        """Let a request arrive that will produce all of its ``output`` tokens."""
        self._outputs[request] = output or request.max_new_tokens
        self.scheduler.on_arrival(request, self.view, 0.0)
        self.view.enter(request)
        cost = request.input_tokens + 2 * self._outputs[request]
        self.trace.add(arrived={request.client: 1}, asked={request.client: cost})
        self.on_instant()

    def waiting(self, client: str) -> int:
        return len(self.view.of_client.get(client, ()))

    def running(self, client: str) -> int:
        return sum(request.client == client for request in self._running)

    def step(self) -> None:
        admitted = self._pass()
        if not admitted and any(self._fits(request) for request in self.view.waiting):
            self.idle_steps += 1
        self._decode()

    def _pass(self) -> int:
        count = 0

        def try_admit(request: Request) -> Tried:
            nonlocal count
            if not self._fits(request):
                return Tried.NO_ROOM
            self._admit(request)
            count += 1
            return Tried.ADMITTED

        drive(self.scheduler.select(self.view, 0.0), try_admit)
        return count

    def _extend(self, request: Request) -> int:
        return request.input_tokens - self.view.matched_tokens(request)

    def _fits(self, request: Request) -> bool:
        reserved = self._outputs[request] if self._reserve else 0
        return self._held + self._extend(request) + reserved <= self._memory

    def _admit(self, request: Request) -> None:
        client, extend = request.client, self._extend(request)
        self.view.admit(request)
        self._running[request] = [extend, 0, self._outputs[request]]
        self._held += extend + (self._outputs[request] if self._reserve else 0)
        self._since_admission[client] = 0
        self.scheduler.on_admitted(request, extend, False)
        charged = request.input_tokens if self._client_view else extend
        self.trace.add(admitted={client: 1}, service={client: charged})
        self.on_instant()

    def _decode(self) -> None:
        tokens: dict[str, int] = {}
        done: dict[str, int] = {}
        for request, state in list(self._running.items()):
            client = request.client
            state[1] += 1
            tokens[client] = tokens.get(client, 0) + 1
            self._held += not self._reserve
            if state[1] == state[2]:
                done[client] = done.get(client, 0) + 1
        for client, count in tokens.items():
            self.scheduler.on_tokens(client, count)
            self._since_admission[client] += count
            self.largest_decode = max(self.largest_decode, self._since_admission[client])
        for request, state in list(self._running.items()):
            if state[1] == state[2]:
                del self._running[request]
                self._held -= state[0] + state[2]
                self.scheduler.on_output(request, state[1])
                self.scheduler.on_finish(request)
        self.trace.add(finished=done, service={c: 2 * count for c, count in tokens.items()})
        self.on_instant()
