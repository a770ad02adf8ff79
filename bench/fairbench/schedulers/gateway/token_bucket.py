"""Token buckets at the gateway, which limit the requests per minute of each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, Setup, WaitingView
from fairbench.schedulers.params import Positive
from fairbench.tenants import Tenants


class TokenBucket(LocalScheduler):
    """Token buckets, which limit each client to ``rate_per_min`` requests per minute.

    A bucket holds up to ``burst`` tokens. A request takes one token from its client's bucket, and
    is refused if the bucket is empty. Accepted requests are served in the order of arrival.
    InferGrid's gateway also has token buckets (coconut-labs/infergrid @a8d3ea8).
    """

    name = "token-bucket"

    @dataclass(frozen=True)
    class Params:
        """Parameters of the buckets: ``rate_per_min`` and ``burst`` are numbers of requests.

        With ``tenants=tree``, each outermost tenant has one bucket for all its clients. If
        ``weights`` are given, they replace the experiment's weights. A bucket's rate and burst are
        multiplied by the weight of its owner; a burst below 1 becomes 1. Without ``weights``, every
        weight is 1.
        """

        rate_per_min: Positive = 600.0
        burst: Annotated[FiniteFloat, Ge(1)] = 10.0
        tenants: Tenants | None = None
        weights: dict[str, Positive] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        # ``_filled`` maps each client or tenant to its tokens, and to the time (s) of their last
        # update.
        self._filled: dict[str, tuple[float, float]] = {}

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))

    def accepts(self, request: Request, now_s: float) -> bool:
        whose = request.client
        if self.params.tenants is not None:
            whose = self.setup.lineage(whose)[0]
        weight = self.setup.weight(whose) if self.params.weights else 1
        burst = max(1.0, self.params.burst * weight)
        tokens, counted_s = self._filled.get(whose, (burst, now_s))
        gained = (now_s - counted_s) * self.params.rate_per_min * weight / 60
        tokens = min(burst, tokens + gained)
        accepted = tokens >= 1
        self._filled[whose] = (tokens - accepted, now_s)
        return accepted

    def select(self, view: WaitingView, now_s: float) -> Selection:
        waiting = view.queue_order()
        while (request := next(waiting, None)) is not None:
            yield request
