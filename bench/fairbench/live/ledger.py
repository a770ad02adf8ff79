"""The ledger: the tokens of each client in this process, and their export to Prometheus."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from math import inf, nan
from typing import Any, NamedTuple, Protocol, TypeAlias

from fairbench.core import Request, ServiceWeights
from fairbench.live.headers import OTHERS
from fairbench.live.plugin_config import PluginConfig
from fairbench.schedulers.base import LocalScheduler

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
MAX_CLIENTS = 1000  # number of clients with their own totals or labels
MAX_HISTOGRAMS = 100  # number of clients with their own histograms
BALANCE_EVERY_S = 1.0
SHARES_EVERY_S = 5.0
WINDOW_S = 60.0  # the share of a client is measured over this time
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
BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
WEIGHTS = ServiceWeights()


def service_of(input_tokens: float, output_tokens: float) -> float:
    """Return the weighted tokens of a client."""
    return WEIGHTS.extend * input_tokens + WEIGHTS.output * output_tokens


class Look(NamedTuple):
    """The service of each client up to a time, and the clients that waited then."""

    at_s: float
    service: Mapping[str, float]
    waiting: Collection[str]


class Shares:
    """The service of each client in the last minute, relative to its max-min fair share.

    A client that waits in most samples of the minute asks for more than it gets. Any other client
    asked for what it got.
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
        """Return the ratios of all clients that were served in the window, or that wait in it.

        Args:
            now_s: The time of this call, in seconds.
            service: Each client's weighted tokens since the start.
            waiting: The clients with waiting requests.
            weights: The weights of clients; 1 for clients without one.
        """
        while self._looks and self._looks[0].at_s <= now_s - WINDOW_S:
            self._first = self._looks.popleft()
        now = Look(now_s, dict(service), frozenset(waiting))
        waited = Counter(chain.from_iterable(one.waiting for one in (*self._looks, now)))
        before, most = self._first.service, (len(self._looks) + 1) / 2
        gained = {
            name: max(0.0, total - before.get(name, 0.0))
            for name, total in service.items()
            if name != OTHERS  # any number of clients, of which none is known to be over its share
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
    """Split a total by weighted max-min fairness: nobody gets more than its demand."""
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
    """Totals per client; beyond a limit, the longest inactive clients share one entry.

    ``extend_tokens`` leaves out tokens that a retracted request computes again.
    """

    def __init__(self, exporter: Exporter | None = None, most: int | None = None) -> None:
        self._clients: dict[str, Totals] = {}  # in order of last use, the oldest first
        self._all: Totals = defaultdict(int)
        self._exporter = exporter
        self._most = most

    def count(self, what: str, client: str, amount: int = 1) -> None:
        """Add to one of ``COUNTED``."""
        self.of(client)[what] += amount
        self._all[what] += amount
        if self._exporter is not None:
            self._exporter.count(what, client, amount)

    def waited(self, what: str, request: Request) -> None:
        """Export the seconds since the arrival of a request, ``what`` being one of ``SECONDS``."""
        if self._exporter is not None:
            self._exporter.waited(what, request)

    def of(self, client: str) -> Totals:
        """Return the client's totals, to which the caller may add."""
        totals = self._clients.pop(client, None)
        if totals is None:
            totals = defaultdict(int)
            if len(self._clients) - (OTHERS in self._clients) >= (self._most or MAX_CLIENTS):
                self._forget_one()
        self._clients[client] = totals
        return totals

    def _forget_one(self) -> None:
        others = self._clients.pop(OTHERS, None) or defaultdict(int)
        for what, amount in self._clients.pop(next(iter(self._clients))).items():
            others[what] += amount
        self._clients[OTHERS] = others

    def items(self) -> Iterable[tuple[str, Totals]]:
        return self._clients.items()

    def total(self, what: str) -> float:
        return self._all[what]


class Host(Protocol):
    """The host of a scheduler, as the exporter sees it."""

    scheduler: LocalScheduler
    config: PluginConfig
    ledger: Ledger

    @property
    def idle(self) -> bool: ...

    @property
    def waiting(self) -> Collection[str]: ...


class Exporter:
    """The metrics ``fairbench_client_*``, one time series per client, among the server's own."""

    def __init__(self, names: tuple[str, ...]) -> None:
        # Imported only here, because prometheus_client looks for SGLang's directory at its first
        # import.
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
            "Balance of the client in the local scheduler (DLPM: credit, VTC: counted service)",
            ["client"],
            multiprocess_mode="mostrecent",
        )
        self._share: Any = Gauge(SHARE, SHARE_TEXT, ["client"], multiprocess_mode="mostrecent")
        self._balances_at_s = self._shares_at_s = 0.0
        self._labels: dict[str, int] = {}  # client -> its place among those with labels
        self._shares = Shares(time.monotonic())
        self._shown: dict[str, float] = {}  # the shares of the last look

    def count(self, what: str, client: str, amount: int) -> None:
        self._counters[what].labels(self._label(client)).inc(amount)

    def waited(self, what: str, request: Request) -> None:
        """Observe the time since a request's arrival; both engines' clock is the monotonic one."""
        client = self._label(request.client)
        if self._labels.get(client, MAX_HISTOGRAMS) >= MAX_HISTOGRAMS:
            client = OTHERS
        self._seconds[what].labels(client).observe(time.monotonic() - request.arrival_s)

    def look(self, home: Host) -> None:
        """Set the gauges: balances at most once a second while requests run, shares every 5 s."""
        now_s, idle = time.monotonic(), home.idle
        if idle or now_s - self._balances_at_s >= BALANCE_EVERY_S:
            self._balances_at_s = now_s
            for client, balance in home.scheduler.balances().items():
                if self._label(client) == client:
                    self._balance.labels(client).set(balance)
        if now_s - self._shares_at_s >= SHARES_EVERY_S:
            self._shares_at_s = now_s
            self._show(self._ratios(home, now_s))
        elif idle:  # nobody waits, so every client has got what it asked for
            self._show(dict.fromkeys(self._shown, 1.0))

    def _ratios(self, home: Host, now_s: float) -> dict[str, float]:
        service = {
            client: service_of(totals["extend_tokens"], totals["output_tokens"])
            for client, totals in home.ledger.items()
        }
        return self._shares.ratios(now_s, service, home.waiting, home.config.weights)

    def _show(self, ratios: Mapping[str, float]) -> None:
        for client in self._shown.keys() | ratios.keys():
            ratio = ratios.get(client, nan)
            if ratio != self._shown.get(client) and self._label(client) == client:
                self._share.labels(client).set(ratio)
        self._shown = dict(ratios)

    def _label(self, client: str) -> str:
        """Return a client's label. Labels are permanent, so clients beyond the limit share one."""
        if client not in self._labels:
            if len(self._labels) >= MAX_CLIENTS:
                return OTHERS
            self._labels[client] = len(self._labels)
        return client
