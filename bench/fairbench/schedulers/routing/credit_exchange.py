"""A router that shares its clients' credits with other routers: its side of ``Exchanges``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from fairbench.errors import UsageError
from fairbench.schedulers.accounts.tenant_trees import TreeWorkerCredits
from fairbench.schedulers.accounts.worker_credits import WorkerCredits

if TYPE_CHECKING:
    from fairbench.schedulers.peers.totals import SharedCredit, Sums, Totals


class CreditExchange:
    """Credit as rounds x quantum - the reported charges of all routers."""

    name: ClassVar[str]
    credits: WorkerCredits

    @property
    def _shared(self) -> SharedCredit:
        assert self.credits.shared is not None, "join_peers comes first"
        return self.credits.shared

    def join_peers(self) -> None:
        """Share the credits from now on. Raises UsageError if there are tenants."""
        if isinstance(self.credits, TreeWorkerCredits):
            raise UsageError(
                f"{self.name}.tenants: cannot be combined with routers that share counters"
            )
        from fairbench.schedulers.peers.totals import (
            SharedCredit,
        )  # imported here, because few routers have peers

        self.credits.shared = SharedCredit()

    def export_totals(self, since: int = 0) -> Totals:
        return self._shared.export(since)

    def charged_totals(self) -> Sums:
        return self._shared.charged

    def heard_totals(self) -> Mapping[str, Totals]:
        return self._shared.others.latest

    def merge_totals(self, origin: str, totals: Totals, now_s: float) -> None:
        for client, change in self._shared.hear(origin, totals).items():
            self.credits.hear(client, change)

    def forget_origin(self, origin: str) -> None:
        self._shared.others.forget(origin)
