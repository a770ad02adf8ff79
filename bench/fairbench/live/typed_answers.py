"""Answers and events of the Responses API and the Messages API, whose events carry ``type``.

The judgement of answers reads them as the same facts as chat completions: texts, usage, the reason
of the end, and whether the stream is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

# Fields that are no output.
LABELS = frozenset(("type", "id", "index", "role", "format", "effort"))
_NO_OUTPUT = LABELS | {"status", "phase", "call_id", "logprobs", "annotations"}
_NO_OUTPUT |= {"signature", "encrypted_content"}
RESPONSE = "response"
_RESPONSE_EVENT, _DELTA = "response.", ".delta"
# Events that hold the whole response, and end its stream.
_RESPONSE_ENDS = frozenset(
    f"{_RESPONSE_EVENT}{status}" for status in ("completed", "incomplete", "failed", "cancelled")
)
MESSAGE = "message"
# The events of a message, with the field that holds new output.
_MESSAGE_EVENTS = {
    "message_start": None,
    "content_block_start": "content_block",
    "content_block_delta": "delta",
    "content_block_stop": None,
    "message_delta": None,
    "message_stop": None,
    "ping": None,
}
_MESSAGE_END = "message_stop"


class Typed(NamedTuple):
    """The facts of a typed answer or event.

    ``whole`` means that the texts are the whole output, not new output. ``complete`` means that
    the stream is over.
    """

    texts: Sequence[str] = ()
    reason: Any = None
    usage: Any = None
    error: Any = None
    whole: bool = False
    complete: bool = False


def typed(answer: Any) -> Typed | None:
    """Return the facts of an answer or event of the two APIs; None for other answers."""
    kind = answer.type if isinstance(answer.type, str) else ""
    if kind.startswith(_RESPONSE_EVENT):
        return _response_event(answer, kind)
    if kind in _MESSAGE_EVENTS:
        return _message_event(answer, kind)
    if answer.object == RESPONSE:
        fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
        return _response(fields)
    if kind == MESSAGE and isinstance(answer.content, list):
        texts = tuple(texts_in(answer.content, _NO_OUTPUT))
        return Typed(texts, answer.stop_reason, answer.usage, answer.error, whole=True)
    return None


def _response_event(answer: Any, kind: str) -> Typed:
    if kind in _RESPONSE_ENDS:
        told = answer.response if isinstance(answer.response, dict) else {}
        status = kind.removeprefix(_RESPONSE_EVENT)
        if status != "completed":  # vLLM names the event so, whatever the status
            told = told | {"status": status}
        return _response(told)._replace(complete=True)
    return Typed(tuple(texts_in(answer.delta, _NO_OUTPUT)) if kind.endswith(_DELTA) else ())


def _response(told: dict[str, Any]) -> Typed:
    """Return the facts of a whole response; one that is not over has no reason."""
    status, details = told.get("status"), told.get("incomplete_details")
    reason = None if status in ("in_progress", "queued") else status
    if status == "incomplete" and isinstance(details, dict):
        reason = details.get("reason") or status
    texts = tuple(texts_in(told.get("output"), _NO_OUTPUT))
    return Typed(texts, reason, told.get("usage"), told.get("error"), whole=True)


def _message_event(answer: Any, kind: str) -> Typed:
    place = _MESSAGE_EVENTS[kind]
    texts = tuple(texts_in(getattr(answer, place), _NO_OUTPUT)) if place else ()
    ended = answer.delta if kind == "message_delta" and isinstance(answer.delta, dict) else {}
    usage = answer.usage or _usage_at_start(answer.message)
    complete = kind == _MESSAGE_END
    return Typed(texts, ended.get("stop_reason"), usage, answer.error, complete=complete)


def _usage_at_start(message: Any) -> dict[str, Any]:
    """Return the usage in a message that begins; its count of output tokens is no count yet."""
    usage = message.get("usage") if isinstance(message, dict) else None
    told = usage if isinstance(usage, dict) else {}
    return {name: count for name, count in told.items() if name != "output_tokens"}


def texts_in(value: Any, labels: frozenset[str] = LABELS) -> Iterator[str]:
    """Yield the texts in any JSON, in order, without those of the fields ``labels``."""
    waiting = [value]  # a loop, because a server chooses the depth
    while waiting:
        one = waiting.pop()
        if one and isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [one[name] for name in reversed(one) if name not in labels]
        elif isinstance(one, list):
            waiting += reversed(one)
