"""Outputs that are charged when a request is sent, because a gateway does not see tokens arrive."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.mean_answers import MeanAnswers


class OutputsAhead:
    """Charges a ``scheduler`` the mean length of a client's answers, and later the difference.

    Else a client's requests go one after the other until the first answer is over, the client has
    nobody left who waits, and what it was owed is gone when its next request comes ([VTC] lines
    8-13). Precondition: the scheduler ``refunds_tokens``.
    """

    def __init__(self, scheduler: LocalScheduler) -> None:
        self._scheduler = scheduler
        self._answers = MeanAnswers()
        self._charged: dict[Request, int] = {}  # tokens, of what is under way

    def sent(self, request: Request) -> None:
        """Handle a request that is sent for the first time."""
        mean = round(self._answers.expected(request.client))
        self._charged[request] = tokens = min(mean, request.max_new_tokens)
        if tokens:
            self._scheduler.on_tokens(request.client, tokens)

    def over(self, request: Request, output_tokens: int) -> None:
        """Handle the end of a request; its output is 0 tokens if no worker served it."""
        more = output_tokens - self._charged.pop(request)
        if more:
            self._scheduler.on_tokens(request.client, more)
        if output_tokens:
            self._answers.finished(request.client, output_tokens)

    def forget(self, client: str) -> None:
        """Forget the mean length of a client's answers."""
        self._answers.forget(client)
