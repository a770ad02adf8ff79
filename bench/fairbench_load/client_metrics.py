"""Metrics of a server's clients: sums of tokens, shares of the service, and their export."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from math import inf, nan
from typing import Any, NamedTuple, Protocol, TypeAlias

from fairbench.core import Request, ServiceWeights
from fairbench.schedulers.base import LocalScheduler
from fairbench_load.headers import OTHERS
from fairbench_load.plugin_config import PluginConfig

COUNTED = (
    "arrivals",
    "refusals",
    "admissions",
    "retractions",
    "finished",
    "extend_tokens",
    "recomputed_tokens",
    "output_tokens",
)
MAX_CLIENTS = 1000  # maximum number of clients with separate sums and labels
MAX_HISTOGRAMS = 100  # maximum number of clients with separate histograms
BALANCE_EVERY_S = 1.0
SHARES_EVERY_S = 5.0
WINDOW_S = 60.0  # seconds over which a client's share of the service is measured
SHARE, BALANCE = "fairbench_client_fair_share_ratio", "fairbench_client_balance"
SHARE_TEXT = (
    "Service in the last minute, relative to the client's max-min fair share: above 1, the client "
    "is over its share"
)
QUEUE_TIME, FIRST_TOKEN = "queue_time_seconds", "time_to_first_token_seconds"
SECONDS = {
    QUEUE_TIME: "Seconds between arrival and admission",
    FIRST_TOKEN: "Seconds between arrival and first token",
}
RANK_GAUGES = {
    "charges_sent": "Charges of this data-parallel rank that it has told the other ranks",
    "charges_received": "Charges of the other data-parallel ranks that this rank counts",
    "lag_seconds": "Age of the last charges of another rank when this rank read them",
}
BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
WEIGHTS = ServiceWeights()


def service_of(input_tokens: float, output_tokens: float) -> float:
    """Return the service in weighted tokens: input tokens plus 2 times output tokens."""
    return WEIGHTS.extend * input_tokens + WEIGHTS.output * output_tokens


class Look(NamedTuple):
    """A sample at ``at_s`` seconds: each client's service so far, and the clients that wait."""

    at_s: float
    service: Mapping[str, float]
    waiting: Collection[str]


class RecentShares:
    """Each client's service in the last minute, relative to its fair share.

    Fair shares are max-min fair: no client's fair share exceeds its demand. The demand of a
    client that waited in more than half of the last minute's samples is assumed to be unlimited.
    Without long waits, a client's demand is the service that it received.
    """

    def __init__(self, now_s: float) -> None:
        self._first = Look(now_s, {}, ())
        self._looks: deque[Look] = deque()

    def ratios(
        self,
        now_s: float,
        service: Mapping[str, float],
        waiting: Collection[str],
        weights: Mapping[str, float],
    ) -> dict[str, float]:
        """Return service divided by fair share, for each client that was served or waits.

        Args:
            now_s: The present time in seconds.
            service: Weighted tokens that each client received since the process started.
            waiting: The clients that have waiting requests.
            weights: The weights of clients; a client that is not listed has weight 1.
        """
        while self._looks and self._looks[0].at_s <= now_s - WINDOW_S:
            self._first = self._looks.popleft()
        now = Look(now_s, dict(service), frozenset(waiting))
        waited = Counter(chain.from_iterable(one.waiting for one in (*self._looks, now)))
        before, most = self._first.service, (len(self._looks) + 1) / 2
        gained = {
            name: max(0.0, total - before.get(name, 0.0))
            for name, total in service.items()
            # ``OTHERS`` stands for all clients without their own label, whose shares are unknown.
            if name != OTHERS
        }
        if now_s - (self._looks or [self._first])[-1].at_s >= SHARES_EVERY_S:
            self._looks.append(now)
        demands = {name: gain for name, gain in gained.items() if gain > 0}
        demands |= dict.fromkeys((name for name, looks in waited.items() if looks > most), inf)
        fair = fair_shares(sum(gained.values()), demands, weights)
        return {name: gained.get(name, 0.0) / share for name, share in fair.items() if share > 0}


def fair_shares(
    total: float, demands: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """Divide ``total`` among clients by weighted max-min fairness, up to each client's demand."""
    each = sorted((demand / weights.get(name, 1.0), name) for name, demand in demands.items())
    heavy = sum(weights.get(name, 1.0) for name in demands)
    shares = {}
    for _, name in each:
        weight = weights.get(name, 1.0)
        shares[name] = share = min(demands[name], total * weight / heavy)
        total, heavy = total - share, heavy - weight
    return shares


Totals: TypeAlias = "defaultdict[str, float]"


class Ledger:
    """Sums of tokens and counts of events for each client.

    At most ``MAX_CLIENTS`` clients have their own sums of tokens and events; the sums of clients
    that were inactive longest are added together. ``extend_tokens`` does not count tokens that a
    preempted request computes again.
    """

    def __init__(self, exporter: Exporter | None = None, most: int | None = None) -> None:
        # ``_clients`` has the sums of each client; the most recently active client comes last.
        self._clients: dict[str, Totals] = {}
        self._all: Totals = defaultdict(int)
        self._exporter = exporter
        self._most = most

    def count(self, what: str, client: str, amount: int = 1) -> None:
        """Add ``amount`` to a client's counter ``what``, which is one of ``COUNTED``."""
        self.totals_of(client)[what] += amount
        self._all[what] += amount
        if self._exporter is not None:
            self._exporter.count(what, client, amount)

    def waited(self, what: str, request: Request) -> None:
        """Add a request's waiting time to the histogram ``what``, a key of ``SECONDS``."""
        if self._exporter is not None:
            self._exporter.waited(what, request)

    def totals_of(self, client: str) -> Totals:
        """Return the counters of a client as a dictionary that the caller may change."""
        totals = self._clients.pop(client, None)
        if totals is None:
            totals = defaultdict(int)
            if len(self._clients) - (OTHERS in self._clients) >= (self._most or MAX_CLIENTS):
                others = self._clients.pop(OTHERS, None) or defaultdict(int)
                for what, amount in self._clients.pop(next(iter(self._clients))).items():
                    others[what] += amount
                self._clients[OTHERS] = others
        self._clients[client] = totals
        return totals

    def items(self) -> Iterable[tuple[str, Totals]]:
        return self._clients.items()

    def total(self, what: str) -> float:
        return self._all[what]


class OtherRanks(Protocol):
    """The interface by which a data-parallel rank reads the service of clients at other ranks."""

    rank: int
    lag_s: float

    @property
    def sent(self) -> float: ...

    @property
    def received(self) -> float: ...

    @property
    def waiting(self) -> Collection[str]: ...
    def served(self, service: Mapping[str, float]) -> Mapping[str, float]: ...


class Host(Protocol):
    """The interface through which the exporter reads a scheduler and its engine's requests."""

    scheduler: LocalScheduler
    config: PluginConfig
    ledger: Ledger

    @property
    def ranks(self) -> OtherRanks | None: ...

    @property
    def idle(self) -> bool: ...

    @property
    def waiting(self) -> Collection[str]: ...


class Exporter:
    """The Prometheus metrics ``fairbench_client_*`` of a server, labelled by client."""

    def __init__(self, names: tuple[str, ...]) -> None:
        # prometheus_client is imported late, after SGLang has set PROMETHEUS_MULTIPROC_DIR.
        from prometheus_client import Counter, Gauge, Histogram

        self._counters: dict[str, Any] = {
            name: Counter(f"fairbench_client_{name}", f"{name} of the client", ["client"])
            for name in names
        }
        self._seconds: dict[str, Any] = {
            name: Histogram(f"fairbench_client_{name}", text, ["client"], buckets=BOUNDS_S)
            for name, text in SECONDS.items()
        }
        self._balance: Any = Gauge(
            BALANCE,
            "Balance of the client in the local scheduler (DLPM: credit; VTC: counter, which rises "
            "when an idle client returns)",
            ["client"],
            multiprocess_mode="mostrecent",
        )
        self._share: Any = Gauge(SHARE, SHARE_TEXT, ["client"], multiprocess_mode="mostrecent")
        self._balances_at_s = self._shares_at_s = 0.0
        self._ranks: dict[str, Any] = {
            name: Gauge(f"fairbench_rank_{name}", text, ["rank"], multiprocess_mode="mostrecent")
            for name, text in RANK_GAUGES.items()
        }
        # The first ``MAX_CLIENTS`` clients that the server sees receive their own labels.
        self._labels: dict[str, int] = {}
        self._shares = RecentShares(time.monotonic())
        self._shown: dict[str, float] = {}

    def count(self, what: str, client: str, amount: int) -> None:
        self._counters[what].labels(self._client_label(client)).inc(amount)

    def waited(self, what: str, request: Request) -> None:
        """Add the seconds since a request's arrival to a histogram of its client.

        Engines report arrival times on the monotonic clock.
        """
        client = self._client_label(request.client)
        if self._labels.get(client, MAX_HISTOGRAMS) >= MAX_HISTOGRAMS:
            client = OTHERS
        self._seconds[what].labels(client).observe(time.monotonic() - request.arrival_s)

    def update_gauges(self, home: Host) -> None:
        """Update the gauges of each client's balance and share of the service.

        Clients' balances in the scheduler are updated once a second, and when the engine is idle.
        Clients' shares of the service are updated every 5 s.
        """
        now_s, idle = time.monotonic(), home.idle
        if idle or now_s - self._balances_at_s >= BALANCE_EVERY_S:
            self._balances_at_s = now_s
            for client, balance in home.scheduler.balances().items():
                if self._client_label(client) == client:
                    self._balance.labels(client).set(balance)
            if home.ranks is not None:
                values = {
                    "charges_sent": home.ranks.sent,
                    "charges_received": home.ranks.received,
                    "lag_seconds": home.ranks.lag_s,
                }
                for name, value in values.items():
                    self._ranks[name].labels(home.ranks.rank).set(value)
        if now_s - self._shares_at_s >= SHARES_EVERY_S:
            self._shares_at_s = now_s
            self._show(self._ratios(home, now_s))
        # If no request waits, every client has received the service that it requested.
        elif idle and not (home.ranks and home.ranks.waiting):
            self._show(dict.fromkeys(self._shown, 1.0))

    def _ratios(self, home: Host, now_s: float) -> dict[str, float]:
        service = {
            client: service_of(totals["extend_tokens"], totals["output_tokens"])
            for client, totals in home.ledger.items()
        }
        waiting = home.waiting
        # A client's share refers to the service of the whole server, not of one data-parallel rank.
        if home.ranks is not None:
            service = dict(home.ranks.served(service))
            waiting = {*waiting, *home.ranks.waiting}
        return self._shares.ratios(now_s, service, waiting, home.config.weights)

    def _show(self, ratios: Mapping[str, float]) -> None:
        for client in self._shown.keys() | ratios.keys():
            ratio = ratios.get(client, nan)
            if ratio != self._shown.get(client) and self._client_label(client) == client:
                self._share.labels(client).set(ratio)
        self._shown = dict(ratios)

    def _client_label(self, client: str) -> str:
        """Return the label of a client, or ``OTHERS`` if ``MAX_CLIENTS`` labels are in use.

        A client keeps its label as long as the process runs.
        """
        if client not in self._labels:
            if len(self._labels) >= MAX_CLIENTS:
                return OTHERS
            self._labels[client] = len(self._labels)
        return client
