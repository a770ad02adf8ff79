"""Per-client service and balances among the server's own metrics (SGLang: ``--enable-metrics``)."""

from __future__ import annotations

import time
from typing import Any

from fairbench.live.headers import OTHERS
from fairbench.live.plugins.ledger import MAX_CLIENTS
from fairbench.schedulers.base import LocalScheduler

BALANCE_EVERY_S = 1.0


class Exporter:
    """The metrics ``fairbench_client_*``, one time series per client."""

    def __init__(self, names: tuple[str, ...]) -> None:
        # Not before: prometheus_client looks for SGLang's directory when it is first imported.
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
        """Add to one of the counters.

        Args:
            what: Name of the counter.
            client: Name of the client.
            amount: Number to add.
        """
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
