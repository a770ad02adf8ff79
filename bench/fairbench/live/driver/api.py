"""A server's API from the driver's side: how to send a request and how to read the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from fairbench.core import Prompt, Segment

# Siblings of a tree send the identical prompt. Were they answered alike, they would share a cached
# prefix that the workload does not have.
TEMPERATURE = 1.0
ABORTED = "abort"  # why an answer ended that the server gave up
DONE = b"[DONE]"  # the payload after the last event


class BadEvent(Exception):
    """The server reported an error in the stream, or sent something that is not an event."""


class Answer(ABC):
    """The answer so far, updated by every event.

    Counts are None if the server does not report them. ``queue_s`` is how long the request waited
    for its first admission, on the server's clock; ``answer_id`` what the server calls its answer.
    """

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens = 0
        self.queue_s: float | None = None
        self.retractions = 0
        self.answer_id = ""
        self.finished = False

    def take(self, payload: bytes) -> int:
        """Read an event's payload; return how many tokens it brought, as far as known.

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
        """Process the JSON payload of an event. Raises BadEvent or MsgspecError."""

    @abstractmethod
    def rendered(self) -> bytes:
        """Return the output in the form in which later prompts of this API contain the output."""


def check_reason(reason: Any) -> None:
    """Raise BadEvent if an answer ended because the server gave up the request.

    SGLang's own API has the reason as an object, OpenAI's as a text.
    """
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if kind == ABORTED:
        said = reason.get("message") if isinstance(reason, dict) else None
        raise BadEvent(f"aborted: {said or 'no reason given'}")


def error_text(error: Any) -> str:
    """Return the message of an API's error, which is a text or an object with a text."""
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)


@dataclass(frozen=True, slots=True)
class Question:
    """A call in a form that is independent of the API.

    ``outputs`` are the answers contained in the prompt, by segment key, as rendered by the target's
    API. ``min_tokens`` is None if the server has no such parameter.
    """

    prompt: Prompt
    outputs: Mapping[str, bytes]
    client: str
    max_tokens: int
    min_tokens: int | None


class ServerApi(Protocol):
    """The interface of a server API; there are three."""

    path: str

    def body(self, question: Question) -> bytes:
        """Return the JSON to send."""
        ...

    def answer(self) -> Answer:
        """Return an empty answer, to be filled by the response's events."""
        ...


def with_extra(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with other fields, which replace fields of the same name; null removes one."""
    merged = {**content, **extra}
    return {name: value for name, value in merged.items() if value is not None}


def rendered(
    segments: Iterable[Segment], outputs: Mapping[str, bytes], fresh: Callable[[Segment], bytes]
) -> list[bytes]:
    """Return each segment as the server produced it, or as ``fresh`` if it is not an output.

    Args:
        segments: Segments of a prompt, in order.
        outputs: Earlier outputs as the server produced them, by segment key.
        fresh: Function that renders a segment that is not an output.
    """
    parts = []
    for segment in segments:
        output = outputs.get(segment.key)
        parts.append(fresh(segment) if output is None else output)
    return parts
