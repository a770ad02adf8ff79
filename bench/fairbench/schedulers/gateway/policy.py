"""What a fairness policy of a queue before the cluster must do: name the flow that goes next."""

from __future__ import annotations

from abc import abstractmethod

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Read, Selection, WaitingView


class FlowPolicy(LocalScheduler):
    """Names a client; which of its requests goes is the order's to say. One policy a file.

    A flow is a client in a band of one priority, and each band has a policy of its own. Any other
    ``LocalScheduler`` may stand in its place; this one hears of time when a request is over.
    """

    @abstractmethod
    def next_flow(self, view: WaitingView, now_s: float) -> str:
        """The client whose request goes next. Precondition: somebody waits.

        Asked again after each request that went, which ``on_admitted`` has told by then. If the
        request cannot go after all, the same is asked again later.
        """

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while len(view):
            if not (yield view.oldest(self.next_flow(view, now_s))):
                return

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        """A request that went is over, and has produced so many tokens.

        ``read`` is its prompt as it turned out to be: nothing if it was never served.
        """


def earliest(view: WaitingView, client: str) -> tuple[float, int]:
    """By which ties are broken in order of arrival: that of the client's next request."""
    request = view.oldest(client)
    return request.arrival_s, request.request_id
