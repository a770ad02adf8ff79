"""Metrics of the router for Prometheus, with totals for a bounded number of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Info, Metric
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from fairbench.core import ServiceWeights
from fairbench.live.headers import OTHERS
from fairbench.live.kv_events.subscriber import Subscriber
from fairbench.live.plugins.ledger import MAX_CLIENTS, Ledger
from fairbench.live.router.charges import Charge
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.exchange import OUTCOMES
from fairbench.live.router.ingress import Ingress

WEIGHTS = ServiceWeights()
REQUESTS = (
    "Requests sent to a worker, by outcome: ok, error (the worker failed), left (the "
    "client disconnected), evicted (to make room for another client), lost (the worker "
    "was lost, no retry), retried (the worker was lost, sent to another one)"
)


class TotalsByClient(Collector):
    """The clients that were served last have separate totals; all others share one."""

    def __init__(self) -> None:
        self._ledger = Ledger()

    def finished(self, client: str, outcome: str, charge: Charge) -> None:
        totals = self._ledger.of(client)
        totals[outcome] += 1
        for name, tokens in charge._asdict().items():
            totals[name] += tokens
        weighted = WEIGHTS.extend * charge.input_tokens + WEIGHTS.output * charge.output_tokens
        totals["service"] += weighted

    def held(self, client: str, held_s: float) -> None:
        """Record how long a request was queued before it was sent or given up."""
        if held_s:
            self._ledger.of(client)["held_seconds"] += held_s

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("fairbench_requests", REQUESTS, labels=["client", "outcome"])
        for client, totals in self._ledger.items():
            for outcome in filter(totals.__contains__, OUTCOMES):
                requests.add_metric([client, outcome], totals[outcome])
        yield requests
        for name, text in (
            ("input_tokens", "Prompt tokens, including cached tokens"),
            ("cached_tokens", "Prompt tokens that were cached"),
            ("output_tokens", "Tokens produced"),
            ("service", "Input + 2 x output tokens"),
            ("held_seconds", "Seconds that requests were queued before they were sent to a worker"),
        ):
            family = CounterMetricFamily(f"fairbench_{name}", text, labels=["client"])
            for client, totals in self._ledger.items():
                family.add_metric([client], totals[name])
            yield family


class Held(Collector):
    """The requests queued before the workers, by client; limited to the largest clients."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    def collect(self) -> Iterator[Metric]:
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
    """The gauges of every current worker; subscribers are given by worker."""

    def __init__(self, dispatcher: Dispatcher, subscribers: Mapping[int, Subscriber]) -> None:
        self._dispatcher = dispatcher
        self._subscribers = subscribers

    def collect(self) -> Iterator[Metric]:
        up, flights = self._dispatcher.up, self._dispatcher.flights
        sent = {worker: len(those) for worker, those in flights.items()}
        yield _gauge("under_way", "Unfinished requests at the worker", sent)
        rotation = {worker: worker in up for worker in flights}
        yield _gauge("worker_up", "1 while the worker is in rotation", rotation)
        for name, text, attribute in (
            ("kv_event_gaps", "Gaps in a worker's KV events", "gaps"),
            ("kv_event_losses", "Gaps not repaired", "losses"),
            ("kv_event_unreadable", "Messages not decoded", "unreadable"),
            ("kv_events_followed", "1 while the KV events are followed", "follows"),
        ):
            found = {worker: getattr(one, attribute) for worker, one in self._subscribers.items()}
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
        self.totals = TotalsByClient()
        self.registry.register(self.totals)
        text = "Requests answered by the router itself"
        self._refused = CounterMetric("fairbench_refused", text, ["status"], registry=self.registry)

    def refused(self, status: int) -> None:
        self._refused.labels(status).inc()

    def describe(self, router: str, token_count_method: str) -> None:
        """Set the labels that do not change."""
        info = Info("fairbench_router", "The router and its token counter", registry=self.registry)
        info.info({"router": router, "token_count_method": token_count_method})

    def watch(self, dispatcher: Dispatcher, subscribers: Mapping[int, Subscriber]) -> None:
        """Register the gauges of every worker; subscribers are given by worker."""
        self.registry.register(WorkerGauges(dispatcher, subscribers))
        if dispatcher.ingress is not None:
            self.registry.register(Held(dispatcher.ingress))
