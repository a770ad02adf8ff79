"""The choice of clients that a router forgets, so that its memory stays bounded."""

from __future__ import annotations

from collections.abc import Container, Mapping

from fairbench.schedulers.accounts.worker_credit import WorkerCredit

MAX_CLIENTS = 10_000
BATCH = MAX_CLIENTS // 16  # forgotten at once, so that to choose them costs little a client


def to_forget(
    credit: Mapping[str, WorkerCredit], busy: Container[str], batch: int = BATCH
) -> list[str]:
    """Return up to ``batch`` clients to forget, from the longest unused half of the idle ones.

    Clients in ``busy`` are kept. ``credit`` holds each client's credit at each worker, longest
    unused client first. A returning client starts anew without debt. The clients with the most
    credit are therefore forgotten first, since they gain least, and those deepest in debt last.
    """
    idle = [client for client in credit if client not in busy]
    unused = idle[: max(batch, len(idle) // 2)]
    return sorted(unused, key=lambda client: -credit[client].total())[:batch]
