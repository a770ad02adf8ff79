"""A scorer for llm-d's Python scheduler (py-inference-scheduler) that uses a router of fairbench.

Import this file before ``Scheduler`` reads its configuration, and name the scorer there:

    profiles:
      fair:
        scorers:
          - type: fairbench
            router: d2lpm
            weight: 1.0

The endpoint that the router chooses gets the score 1, and all others 0. Use no other scorer, or
only scorers of a much lower weight: the router charges the client for the endpoint that it chose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from py_inference_scheduler.framework import register_scorer

from fairbench_serve.router_policy import RouterPolicy, client_of

SENT = "fairbench"  # key under which the state of a request stores the choice


def text_of(body: Any) -> str:
    """Return the prompt of a request as text; ``body`` is a body of OpenAI's API, or the prompt."""
    if isinstance(body, Mapping):
        turns = body.get("messages", ())
        return "\n".join(str(turn.get("content")) for turn in turns) or str(body.get("prompt", ""))
    return "" if body is None else str(body)


@register_scorer("fairbench")
class FairbenchScorer:
    """A scorer whose parameters are the router, its settings as ``NAME.PARAM``, and weights."""

    def __init__(
        self,
        router: str = "d2lpm",
        settings: Mapping[str, Any] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._policy = RouterPolicy(router, settings, weights)

    def score(self, cycle_state: Any, request: Any, pods: Mapping[str, Any]) -> dict[str, float]:
        """Return the score of each endpoint by name; called for each request before it is sent."""
        if not pods:
            return {}
        loads = {name: int(one.attributes.get("queue_len") or 0) for name, one in pods.items()}
        client = client_of(request.headers or {})
        chosen, flight = self._policy.send(loads, client, text_of(request.body))
        cycle_state.set(SENT, (chosen, flight))
        return {name: float(name == chosen) for name in pods}

    def pre_request(self, cycle_state: Any, request: Any, selected_endpoint: Any) -> None:
        """Undo the charge if llm-d's scheduler has selected another endpoint."""
        sent = cycle_state.get(SENT)
        if sent is not None and sent[0] != selected_endpoint.name:
            self._policy.take_back(sent[1])
