"""Metrics of the router, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Info, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fairbench.live.headers import OTHERS
from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.router.charges import Charge
from fairbench.live.router.client_totals import MAX_CLIENTS, TotalsByClient
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.ingress import Ingress


class Held(Collector):
    """The requests queued before the workers, by client; limited to the largest clients."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        held = self._ingress.held()
        family = GaugeMetricFamily(
            "fairbench_held_requests", "Requests queued before the workers", labels=["client"]
        )
        most = held.most_common(MAX_CLIENTS)
        for client, count in most:
            family.add_metric([client], count)
        if len(most) < len(held):
            family.add_metric([OTHERS], held.total() - sum(count for _, count in most))
        yield family


class WorkerGauges(Collector):
    """The gauges of every current worker; subscribers are by worker."""

    def __init__(self, dispatcher: Dispatcher, subscribers: Mapping[int, Subscriber]) -> None:
        self._dispatcher = dispatcher
        self._subscribers = subscribers

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        up, flights = self._dispatcher.up, self._dispatcher.flights
        sent = {worker: len(those) for worker, those in flights.items()}
        yield _gauge("under_way", "Unfinished requests at the worker", sent)
        rotation = {worker: worker in up for worker in flights}
        yield _gauge("worker_up", "1 while the worker is in rotation", rotation)
        for name, text, field in (
            ("kv_event_gaps", "Gaps in a worker's KV events", "gaps"),
            ("kv_event_losses", "Gaps not repaired", "losses"),
            ("kv_event_unreadable", "Messages not decoded", "unreadable"),
            ("kv_events_followed", "1 while the KV events are followed", "follows"),
        ):
            found = {worker: getattr(one, field) for worker, one in self._subscribers.items()}
            yield _gauge(name, text, found)


def _gauge(name: str, text: str, values: Mapping[int, float]) -> Metric:
    family = GaugeMetricFamily(f"fairbench_{name}", text, labels=["worker"])
    for worker, value in values.items():
        family.add_metric([str(worker)], value)
    return family


class RouterMetrics:
    """The counters of one router process; gauges are read when they are scraped."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._client_totals = TotalsByClient()
        self.registry.register(self._client_totals)
        self._refused = self._counter("refused", "Requests answered by the router itself", "status")

    def finished(self, client: str, outcome: str, charge: Charge) -> None:
        """Record the end of a request and its charge.

        Args:
            client: Name of the client.
            outcome: Outcome of the request.
            charge: Tokens booked for the request.
        """
        self._client_totals.finished(client, outcome, charge)

    def held(self, client: str, held_s: float) -> None:
        """Record how long a request was queued before it was sent or given up."""
        self._client_totals.held(client, held_s)

    def refused(self, status: int) -> None:
        """Count a refusal by the router itself."""
        self._refused.labels(status).inc()

    def describe(self, router: str, token_count_method: str) -> None:
        """Set the labels that do not change."""
        info = Info("fairbench_router", "The router and its token counter", registry=self.registry)
        info.info({"router": router, "token_count_method": token_count_method})

    def watch(self, dispatcher: Dispatcher, subscribers: Mapping[int, Subscriber]) -> None:
        """Register the gauges of every worker; subscribers are by worker."""
        self.registry.register(WorkerGauges(dispatcher, subscribers))
        if dispatcher.ingress is not None:
            self.registry.register(Held(dispatcher.ingress))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"fairbench_{name}", text, labels, registry=self.registry)
