"""The gateway policy that serves clients round robin."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy
from fairbench.schedulers.params import NoParams


class RoundRobinFlows(FlowPolicy):
    """Round robin over the waiting clients, in order of their names.

    The rule is llm-d's round-robin-fairness-policy (llm-d-router @7c6ba75). While a client waits,
    each other client sends at most one request. Tokens are not counted, so a client with larger
    requests gets more service.
    """

    name = "round-robin"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self._last = ""

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        waiting = view.clients()
        return min((one for one in waiting if one > self._last), default=min(waiting))

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._last = request.client
