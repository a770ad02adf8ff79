"""The service of each client as running totals, because a server has no end for a log."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from fairbench.sim.records.service_log import ServiceLog, Shares
from fairbench.sim.records.stretch import Stretch
from fairbench.sim.records.stretches import InBatch


@dataclass(slots=True)
class Service:
    """Tokens of a client: prompts admitted, computed, recomputed, and output produced."""

    input_tokens: int = 0
    extend_tokens: int = 0
    recompute_tokens: int = 0
    output_tokens: int = 0


class ServiceTotals(ServiceLog):
    """A log of a worker that keeps sums instead of rows."""

    def __init__(self) -> None:
        super().__init__([])
        self.clients: defaultdict[str, Service] = defaultdict(Service)

    def prefill(
        self,
        worker: int,
        start_ps: int,
        end_ps: int,
        batch: int,
        shares: Shares,
        context_tokens: int = 0,
    ) -> None:
        for client, share in shares.items():
            total = self.clients[client]
            total.input_tokens += share.input_tokens
            total.extend_tokens += share.extend_tokens
            total.recompute_tokens += share.recompute_tokens
            total.output_tokens += share.output_tokens

    def decode(self, worker: int, stretch: Stretch, batch: InBatch) -> None:
        for client, requests in batch.per_client.items():
            self.clients[client].output_tokens += stretch.steps * requests
