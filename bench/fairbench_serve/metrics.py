"""Prometheus metrics of the router, with totals per client for a limited number of clients."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Info, Metric
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from fairbench.schedulers.gateway.queue import Gateway
from fairbench_load.client_metrics import (
    BALANCE,
    BOUNDS_S,
    MAX_CLIENTS,
    MAX_HISTOGRAMS,
    QUEUE_TIME,
    SECONDS,
    SHARE,
    SHARE_TEXT,
    Ledger,
    RecentShares,
    service_of,
)
from fairbench_load.headers import OTHERS
from fairbench_serve.answers import Charge
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.ingress import OUTCOMES, RouterIngress
from fairbench_serve.kv_events import Subscriber

REQUESTS = (
    "Requests sent to a worker, by outcome: ok, error (the worker failed), left (the "
    "client disconnected), evicted (to make room for another client), lost (the worker "
    "was lost, no retry), retried (the worker was lost, sent to another one)"
)


class TotalsByClient(Collector):
    """Sums of tokens and events by client.

    Each recent client has its own sums of tokens and events, and all other clients share an entry.
    At most ``MAX_HISTOGRAMS`` clients have their own histograms, because a histogram has many
    values.
    """

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._times = Ledger(most=MAX_HISTOGRAMS)

    def count_finished(self, client: str, outcome: str, charge: Charge) -> None:
        totals = self._ledger.totals_of(client)
        totals[outcome] += 1
        for name, tokens in charge._asdict().items():
            totals[name] += tokens
        totals["service"] += service_of(charge.input_tokens, charge.output_tokens)

    def count_refused(self, client: str, status: int) -> None:
        """Record that the router itself refused a client's request with this HTTP status."""
        self._ledger.totals_of(client)[f"status {int(status)}"] += 1

    def count_held(self, client: str, held_s: float) -> None:
        """Record the seconds for which a request was queued until it was sent or withdrawn."""
        if held_s:
            self._ledger.totals_of(client)["held_seconds"] += held_s
        self.waited(QUEUE_TIME, client, held_s)

    def waited(self, what: str, client: str, seconds: float) -> None:
        """Add a time to a client's histogram of waiting times; ``what`` is a key of ``SECONDS``."""
        totals = self._times.totals_of(client)
        totals[what] += seconds
        totals[f"{what} {bisect_left(BOUNDS_S, seconds)}"] += 1

    def service(self) -> dict[str, float]:
        """Return the service (weighted tokens) of each recent client."""
        return {client: totals["service"] for client, totals in self._ledger.items()}

    def latest(self) -> list[str]:
        """Return the names of the clients that have their own histograms."""
        return [client for client, _ in self._times.items() if client != OTHERS]

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("fairbench_requests", REQUESTS, labels=["client", "outcome"])
        for client, totals in self._ledger.items():
            for outcome in filter(totals.__contains__, OUTCOMES):
                requests.add_metric([client, outcome], totals[outcome])
        yield requests
        for name, text in (
            ("input_tokens", "Prompt tokens, including cached tokens"),
            ("cached_tokens", "Prompt tokens that were cached"),
            ("output_tokens", "Output tokens"),
            ("service", "Input + 2 x output tokens"),
            ("held_seconds", "Seconds that requests were queued before they were sent to a worker"),
        ):
            family = CounterMetricFamily(f"fairbench_{name}", text, labels=["client"])
            for client, totals in self._ledger.items():
                family.add_metric([client], totals[name])
            yield family
        yield self._refusals()
        for what, text in SECONDS.items():
            yield self._histogram(what, text)

    def _refusals(self) -> Metric:
        text = "Requests answered by the router itself"
        name, labels = "fairbench_client_refusals", ["client", "status"]
        family = CounterMetricFamily(name, text, labels=labels)
        for client, totals in self._ledger.items():
            for key in totals:
                if key.startswith("status "):
                    family.add_metric([client, key.removeprefix("status ")], totals[key])
        return family

    def _histogram(self, what: str, text: str) -> Metric:
        family = HistogramMetricFamily(f"fairbench_client_{what}", text, labels=["client"])
        for client, totals in self._times.items():
            counts = accumulate(totals.get(f"{what} {n}", 0) for n in range(len(BOUNDS_S) + 1))
            buckets = list(zip([*map(str, BOUNDS_S), "+Inf"], counts, strict=True))
            if buckets[-1][1]:
                family.add_metric([client], buckets, totals[what])
        return family


class FairnessGauges(Collector):
    """Gauges of the share, weight and balance of recent clients, computed at each scrape."""

    def __init__(
        self, dispatcher: Dispatcher, totals: TotalsByClient, weights: Mapping[str, float]
    ) -> None:
        self._dispatcher, self._totals, self._weights = dispatcher, totals, weights
        self._shares = RecentShares(time.monotonic())

    def collect(self) -> Iterator[Metric]:
        service = self._totals.service()
        waiting = {request.client for request in self._dispatcher.ingress or ()}
        for flights in self._dispatcher.flights.values():
            waiting.update(one.request.client for one in flights if one.first_token_s is None)
        ratios = self._shares.ratios(time.monotonic(), service, waiting, self._weights)
        shown = {client: ratios[client] for client in ratios if client in service}
        yield _by_client(SHARE, SHARE_TEXT, shown)
        weights = {one: self._weights.get(one, 1.0) for one in service if one != OTHERS}
        yield _by_client("fairbench_client_weight", "Weight of the client", weights)
        text = "Balance of the client in the gateway or the router (DLPM, D2LPM: credit)"
        yield _by_client(BALANCE, text, self._balances())

    def _balances(self) -> dict[str, float]:
        ingress, router, found = self._dispatcher.ingress, self._dispatcher.router, {}
        queue = None if ingress is None else ingress.queue
        bands = list(queue.balances.values()) if isinstance(queue, Gateway) else []
        for client in self._totals.latest():
            balances = [band[client] for band in bands if client in band]
            balance = sum(balances) if balances else router.balance(client)
            if balance is not None:
                found[client] = balance
        return found


class HeldRequests(Collector):
    """A gauge of queued requests per client, for the clients with the most queued requests."""

    def __init__(self, ingress: RouterIngress) -> None:
        self._ingress = ingress

    def collect(self) -> Iterator[Metric]:
        held = self._ingress.held_by_client()
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
    """Prometheus gauges of each worker: its requests, availability and KV events."""

    def __init__(self, dispatcher: Dispatcher, subscribers: Mapping[int, Subscriber]) -> None:
        self._dispatcher = dispatcher
        self._subscribers = subscribers

    def collect(self) -> Iterator[Metric]:
        up, flights = self._dispatcher.up, self._dispatcher.flights
        sent = {worker: len(those) for worker, those in flights.items()}
        yield _gauge("under_way", "Unfinished requests at the worker", sent)
        rotation = {worker: worker in up for worker in flights}
        yield _gauge("worker_up", "1 while the worker receives requests", rotation)
        for name, text, attribute in (
            ("kv_event_gaps", "Gaps in a worker's KV events", "gaps"),
            ("kv_event_losses", "Gaps in a worker's KV events that no replay repaired", "losses"),
            ("kv_event_unreadable", "KV event messages that could not be decoded", "unreadable"),
            ("kv_events_followed", "1 while the KV events are followed", "follows"),
        ):
            found = {worker: getattr(one, attribute) for worker, one in self._subscribers.items()}
            yield _gauge(name, text, found)


def _by_client(name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["client"])
    for client, value in values.items():
        family.add_metric([client], value)
    return family


def _gauge(name: str, text: str, values: Mapping[int, float]) -> Metric:
    family = GaugeMetricFamily(f"fairbench_{name}", text, labels=["worker"])
    for worker, value in values.items():
        family.add_metric([str(worker)], value)
    return family


class RouterMetrics:
    """The metrics that a router process publishes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.totals = TotalsByClient()
        self.registry.register(self.totals)
        text = "Requests answered by the router itself"
        self._refused = CounterMetric("fairbench_refused", text, ["status"], registry=self.registry)

    def count_refusal(self, status: int) -> None:
        self._refused.labels(status).inc()

    def describe(self, router: str, token_count_method: str) -> None:
        """Set the labels that do not change while the router runs."""
        info = Info("fairbench_router", "The router and its token counter", registry=self.registry)
        info.info({"router": router, "token_count_method": token_count_method})

    def watch_router(
        self,
        dispatcher: Dispatcher,
        subscribers: Mapping[int, Subscriber],
        weights: Mapping[str, float],
    ) -> None:
        """Register the gauges of all workers and clients."""
        self.registry.register(WorkerGauges(dispatcher, subscribers))
        self.registry.register(FairnessGauges(dispatcher, self.totals, weights))
        if dispatcher.ingress is not None:
            self.registry.register(HeldRequests(dispatcher.ingress))
