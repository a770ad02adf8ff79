"""Metrics of the router, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Info

from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.router.books import Books
from fairbench.live.router.charges import Charge
from fairbench.live.router.dispatcher import Dispatcher


class RouterMetrics:
    """The counters of one router process; gauges are read when they are scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._books = Books()
        self.registry.register(self._books)
        self._refused = self._counter("refused", "Requests answered by the router itself", "status")

    def finished(self, client: str, outcome: str, charge: Charge) -> None:
        """A request has ended, and is booked with so much."""
        self._books.finished(client, outcome, charge)

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

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fairbench_{name}", text, labels, registry=self.registry)

    def _gauge(
        self, name: str, text: str, workers: Iterable[int], value: Callable[[int], float]
    ) -> None:
        gauge = Gauge(f"fairbench_{name}", text, ["worker"], registry=self.registry)
        for worker in workers:
            gauge.labels(worker).set_function(partial(value, worker))
