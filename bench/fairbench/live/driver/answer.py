"""What a server has said so far in answer to one call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from fairbench.live.driver.sse import DONE


class BadEvent(Exception):
    """The server reported an error in the stream, or sent what is no event of its API."""


class Answer(ABC):
    """Grows with every event. Counts are None where the server does not report them.

    ``queue_s`` is how long the request waited for its first admission, on the server's clock.
    """

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens = 0
        self.queue_s: float | None = None
        self.retractions = 0
        self.finished = False

    def take(self, payload: bytes) -> int:
        """Read one event's payload; returns how many tokens it brought, as far as can be told.

        Raises BadEvent.
        """
        if payload == DONE:
            return 0
        try:
            return self._read(payload)
        except msgspec.MsgspecError as error:
            raise BadEvent(f"not an event of this API: {error}") from None

    @abstractmethod
    def _read(self, payload: bytes) -> int:
        """``take`` for what is JSON. Raises BadEvent or MsgspecError."""

    @abstractmethod
    def rendered(self) -> bytes:
        """The output as later prompts of the same API contain it."""


def error_text(error: Any) -> str:
    """The message of an API's error, which is a text or an object around one."""
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)
