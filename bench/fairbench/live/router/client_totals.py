"""Totals: what each client has had, for a bounded number of clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from fairbench.core import ServiceWeights
from fairbench.live.headers import OTHERS
from fairbench.live.router.charges import Charge

MAX_CLIENTS = 1000  # with a label of their own: a name may be anything, so there may be many
WEIGHTS = ServiceWeights()
REQUESTS = (
    "Requests sent to a worker, by outcome: ok, error (the worker failed), left (the "
    "client disconnected), evicted (to make room for another client), lost (the worker "
    "was lost, no retry), retried (the worker was lost, sent to another one)"
)


@dataclass(slots=True)
class ClientTotals:
    """The totals of one client."""

    requests: Counter[str] = field(default_factory=Counter)
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    held_seconds: float = 0.0

    def add(self, other: ClientTotals) -> None:
        """Add the totals of another book."""
        self.requests += other.requests
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.held_seconds += other.held_seconds

    @property
    def service(self) -> float:
        """Input + 2 x output tokens."""
        return WEIGHTS.extend * self.input_tokens + WEIGHTS.output * self.output_tokens


class TotalsByClient(Collector):
    """The clients that were served last have totals each, all others share theirs."""

    def __init__(self) -> None:
        self._totals: dict[str, ClientTotals] = {}  # the longest unused first
        self._others = ClientTotals()

    def finished(self, client: str, outcome: str, charge: Charge) -> None:
        """Record the end of a request and its charge.

        Args:
            client: Name of the client.
            outcome: Outcome of the request.
            charge: Tokens booked for the request.
        """
        totals = self._totals_of(client)
        totals.requests[outcome] += 1
        totals.input_tokens += charge.input_tokens
        totals.cached_tokens += charge.cached_tokens
        totals.output_tokens += charge.output_tokens

    def held(self, client: str, held_s: float) -> None:
        """Record how long a request was queued."""
        if held_s:
            self._totals_of(client).held_seconds += held_s

    def _totals_of(self, client: str) -> ClientTotals:
        totals = self._totals.pop(client, None) or ClientTotals()
        while len(self._totals) >= MAX_CLIENTS:
            self._others.add(self._totals.pop(next(iter(self._totals))))
        self._totals[client] = totals
        return totals

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for Prometheus."""
        by_client = (
            {**self._totals, OTHERS: self._others} if self._others.requests else self._totals
        )
        requests = CounterMetricFamily("fairbench_requests", REQUESTS, labels=["client", "outcome"])
        for client, totals in by_client.items():
            for outcome, count in totals.requests.items():
                requests.add_metric([client, outcome], count)
        yield requests
        for name, text in (
            ("input_tokens", "Prompt tokens, including cached tokens"),
            ("cached_tokens", "Prompt tokens that were cached"),
            ("output_tokens", "Tokens produced"),
            ("service", "Input + 2 x output tokens"),
            ("held_seconds", "Seconds that requests were queued before they were sent to a worker"),
        ):
            family = CounterMetricFamily(f"fairbench_{name}", text, labels=["client"])
            for client, totals in by_client.items():
                family.add_metric([client], getattr(totals, name))
            yield family
