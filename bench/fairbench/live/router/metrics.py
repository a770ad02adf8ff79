"""Metrics of the router, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from fairbench.core import ServiceWeights
from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.router.charges import Charge
from fairbench.live.router.dispatcher import Dispatcher

MAX_CLIENTS = 1000  # with a label of their own: a name may be anything, so there may be many
OTHERS = "(others)"
WEIGHTS = ServiceWeights()


class RouterMetrics:
    """The counters of one router process; gauges are read when they are scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._labels: set[str] = set()
        self._requests = self._counter(
            "requests",
            "Requests sent to a worker, by how that ended: ok, error (the worker's), left (the "
            "client did), lost (the worker, during its answer), retried (the worker, before)",
            "client",
            "outcome",
        )
        self._refused = self._counter("refused", "Requests answered by the router itself", "status")
        self._input = self._counter("input_tokens", "Prompt tokens, cached included", "client")
        self._cached = self._counter("cached_tokens", "Prompt tokens found in a cache", "client")
        self._output = self._counter("output_tokens", "Tokens produced", "client")
        self._service = self._counter("service", "Input + 2 x output tokens", "client")

    def finished(self, client: str, outcome: str, charge: Charge) -> None:
        """A request has ended, and is booked with so much."""
        client = self._label(client)
        read, produced, cached = charge
        self._requests.labels(client, outcome).inc()
        self._input.labels(client).inc(read)
        self._cached.labels(client).inc(cached)
        self._output.labels(client).inc(produced)
        self._service.labels(client).inc(WEIGHTS.extend * read + WEIGHTS.output * produced)

    def refused(self, status: int) -> None:
        """The router itself said no."""
        self._refused.labels(status).inc()

    def describe(self, router: str, token_count_method: str) -> None:
        """What does not change."""
        info = Info("fairbench_router", "What routes, and how it counts", registry=self.registry)
        info.info({"router": router, "token_count_method": token_count_method})

    def watch(self, dispatcher: Dispatcher, subscribers: Mapping[int, Subscriber]) -> None:
        """The gauges of every worker; subscribers by worker."""
        for name, text, value in (
            ("under_way", "Requests sent and not finished", lambda w: len(dispatcher.flights[w])),
            ("worker_up", "1 while the worker is in rotation", lambda w: w in dispatcher.up),
        ):
            self._gauge(name, text, range(len(dispatcher.flights)), value)
        for name, text, value in (
            ("kv_event_gaps", "Gaps in a worker's KV events", lambda w: subscribers[w].gaps),
            ("kv_event_losses", "Gaps not repaired", lambda w: subscribers[w].losses),
        ):
            self._gauge(name, text, subscribers, value)

    def _label(self, client: str) -> str:
        if client not in self._labels:
            if len(self._labels) == MAX_CLIENTS:
                return OTHERS
            self._labels.add(client)
        return client

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fairbench_{name}", text, labels, registry=self.registry)

    def _gauge(
        self, name: str, text: str, workers: Iterable[int], value: Callable[[int], float]
    ) -> None:
        gauge = Gauge(f"fairbench_{name}", text, ["worker"], registry=self.registry)
        for worker in workers:
            gauge.labels(worker).set_function(partial(value, worker))
