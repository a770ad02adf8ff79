"""The ledger: the tokens of each client in this process, and their export to Prometheus."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from fairbench.live.headers import OTHERS
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
BALANCE_EVERY_S = 1.0


Totals: TypeAlias = "defaultdict[str, float]"


class Ledger:
    """Totals per client; beyond a limit, the longest inactive clients share one entry.

    ``extend_tokens`` leaves out tokens that a retracted request computes again.
    """

    def __init__(self, on_count: Callable[[str, str, int], None] | None = None) -> None:
        self._clients: dict[str, Totals] = {}  # in order of last use, the oldest first
        self._all: Totals = defaultdict(int)
        self._on_count = on_count

    def count(self, what: str, client: str, amount: int = 1) -> None:
        """Add to one of ``COUNTED``."""
        self.of(client)[what] += amount
        self._all[what] += amount
        if self._on_count is not None:
            self._on_count(what, client, amount)

    def of(self, client: str) -> Totals:
        """Return the client's totals, to which the caller may add."""
        totals = self._clients.pop(client, None)
        if totals is None:
            totals = defaultdict(int)
            if len(self._clients) - (OTHERS in self._clients) >= MAX_CLIENTS:
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


class Exporter:
    """The metrics ``fairbench_client_*``, one time series per client, among the server's own."""

    def __init__(self, names: tuple[str, ...]) -> None:
        # Imported only here, because prometheus_client looks for SGLang's directory at its first
        # import.
        from prometheus_client import Counter, Gauge

        self._counters: dict[str, Any] = {
            name: Counter(f"fairbench_client_{name}", f"{name} of the client", ["client"])
            for name in names
        }
        self._balance: Any = Gauge(
            "fairbench_client_balance",
            "Balance of the client in the local scheduler (DLPM: credit, VTC: counted service)",
            ["client"],
            multiprocess_mode="mostrecent",
        )
        self._balances_at_s = 0.0
        self._labels: set[str] = set()

    def count(self, what: str, client: str, amount: int) -> None:
        self._counters[what].labels(self._label(client)).inc(amount)

    def balances(self, scheduler: LocalScheduler, idle: bool) -> None:
        """Set the gauges, at most once a second while requests run."""
        now_s = time.monotonic()
        if idle or now_s - self._balances_at_s >= BALANCE_EVERY_S:
            self._balances_at_s = now_s
            for client, balance in scheduler.balances().items():
                if self._label(client) == client:
                    self._balance.labels(client).set(balance)

    def _label(self, client: str) -> str:
        """Return a client's label. Labels are permanent, so clients beyond the limit share one."""
        if client not in self._labels and len(self._labels) >= MAX_CLIENTS:
            return OTHERS
        self._labels.add(client)
        return client
