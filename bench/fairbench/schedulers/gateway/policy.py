"""The interface of a fairness policy before the cluster, which chooses the next client."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Read, Selection, WaitingView


class FlowPolicy(LocalScheduler):
    """The choice of the next client; an order then chooses among its requests. One policy per file.

    A flow is a client in a band of one priority, and each band has a policy of its own. Any other
    ``LocalScheduler`` may stand in its place; this one hears of time when a request is over.
    """

    @abstractmethod
    def next_flow(self, view: WaitingView, now_s: float) -> str:
        """Return the client whose request goes next. Precondition: a request waits.

        The method is called again after each request that went, of which ``on_admitted`` has
        told by then. If the request cannot go after all, the question is repeated later.
        """

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while len(view):
            if not (yield view.oldest(self.next_flow(view, now_s))):
                return

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        """Handle the end of a sent request; ``read`` is what its prompt really cost."""


def earliest(view: WaitingView, client: str) -> tuple[float, int]:
    """Return the tie-breaker: the order of arrival of the client's next request."""
    request = view.oldest(client)
    return request.arrival_s, request.request_id


@dataclass(frozen=True)
class PriceParams:
    """Prices: ``input_weight`` for a prompt token and ``output_weight`` for an output token.

    ``assumed_output_tokens`` are charged when a request goes; with ``corrected`` the difference to
    what it took is charged, or given back, when it is over.
    """

    input_weight: Annotated[FiniteFloat, Gt(0)] = 1.0
    output_weight: Annotated[FiniteFloat, Ge(0)] = 2.0
    assumed_output_tokens: Annotated[int, Ge(0)] = 128
    corrected: bool = True

    def of(self, request: Request) -> float:
        """Return the charge when a request is sent, before its output length is known."""
        outputs = self.output_weight * self.assumed_output_tokens
        return self.input_weight * request.input_tokens + outputs

    def correction(self, request: Request, read: Read, output_tokens: int) -> float:
        """Return the additional charge at a request's end; negative if too much was charged."""
        if not self.corrected:
            return 0.0
        inputs = self.input_weight * (read.input_tokens - request.input_tokens)
        return inputs + self.output_weight * (output_tokens - self.assumed_output_tokens)
