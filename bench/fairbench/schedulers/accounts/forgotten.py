"""Which clients a router may forget, so that names cost no memory for ever."""

from __future__ import annotations

from collections.abc import Container, Mapping

from fairbench.schedulers.accounts.worker_credit import WorkerCredit

MAX_CLIENTS = 10_000
BATCH = MAX_CLIENTS // 16  # forgotten at once, so that to choose them costs little a client


def to_forget(
    credit: Mapping[str, WorkerCredit], busy: Container[str], batch: int = BATCH
) -> list[str]:
    """At most ``batch`` clients, of the longest unused half of those that are not ``busy``.

    ``credit`` is that of each client at each worker, the longest unused client first. A client
    that comes back begins anew, with nothing owed: the richest are forgotten first, who gain the
    least by that, and the deepest in debt last.
    """
    idle = [client for client in credit if client not in busy]
    unused = idle[: max(batch, len(idle) // 2)]
    return sorted(unused, key=lambda client: -credit[client].total())[:batch]
