"""Where a worker listens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A worker's HTTP root and, if it publishes them, its KV events (PUB) and their replay."""

    url: str  # http://127.0.0.1:PORT
    kv_events: str | None = None  # tcp://127.0.0.1:PORT
    kv_replay: str | None = None
