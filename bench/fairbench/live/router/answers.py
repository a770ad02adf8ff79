"""Answers of workers: their events, their tokens, and whether they failed, read in passing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from fairbench.live.json_errors import Problem
from fairbench.live.openai_shapes import Choice, ReportedUsage
from fairbench.live.router.prompts import TOKEN_BYTES

MAX_EVENT_BYTES = 2**22
# A blank line, with any of the three line ends. The group is atomic: CR LF is one line end, not
# two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_END = 4
_DONE = b"[DONE]"
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class EventSplitter:
    """A splitter that returns whole events, each with the blank line that ends it.

    An event of more than ``MAX_EVENT_BYTES`` is returned in pieces, so that a worker that never
    ends an event cannot fill the memory: ``feed`` marks pieces and whole events.
    """

    def __init__(self) -> None:
        self._begun = bytearray()
        self._searched = 0  # no blank line begins before this position
        self._oversized = False  # whether parts of the current event were already forwarded

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """Return the completed parts, each with whether it is a whole event."""
        self._begun += chunk
        end = self._last_end()
        whole = bytes(self._begun[:end])
        del self._begun[:end]
        found = self._events_in(whole) if whole else []
        if len(self._begun) > MAX_EVENT_BYTES:
            # Everything except a possible beginning of a blank line.
            stop = len(self._begun) - _LONGEST_END
            found.append((bytes(self._begun[:stop]), False))
            del self._begun[:stop]
            self._oversized = True
        self._searched = max(0, len(self._begun) - _LONGEST_END)
        return found

    def _events_in(self, whole: bytes) -> list[tuple[bytes, bool]]:
        if b"data" not in whole:  # comments, which some servers send frequently
            self._oversized = False
            return [(whole, False)]
        found: list[tuple[bytes, bool]] = []
        start = 0
        for end in _BLANK_LINE.finditer(whole):
            found.append((whole[start : end.end()], not self._oversized))
            start, self._oversized = end.end(), False
        if start < len(whole):  # one more line end
            found.append((whole[start:], False))
        return found

    def _last_end(self) -> int:
        begun, searched = self._begun, self._searched
        ends = [(begun.rfind(end, searched), len(end)) for end in _BLANK_LINES]
        return max(at + length if at >= 0 else 0 for at, length in ends)

    def rest(self) -> bytes:
        """Return the received part of an event that never ended."""
        return bytes(self._begun)


def data_of(event: bytes) -> bytes:
    """Return an event's ``data``, or b"" if it has none, such as a comment."""
    if b"data:" not in event:
        return b""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join([line[5:].removeprefix(b" ") for line in lines])


class Usage(NamedTuple):
    """The tokens of one answer; None if the worker did not report them."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed: bool = False  # whether the answer ended with an error


class _MetaInfo(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: Any = None


class _Answer(msgspec.Struct):
    usage: ReportedUsage | None = None
    meta_info: _MetaInfo | None = None
    choices: list[Choice] | None = None
    text: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Answer)
_NOTHING = _Answer()


def is_object(answer: bytes) -> bool:
    """Return whether a text is a JSON object, like answers and their events, with any content."""
    try:
        _object.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _decoded(answer: bytes) -> _Answer:
    try:
        return _decoder.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _NOTHING


def _usage_of(answer: _Answer, *, whole: bool) -> Usage:
    told = answer.meta_info or answer.usage
    usage = Usage(failed=answer.error is not None)
    if told is not None:
        usage = Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)
    if whole and (usage.output_tokens or 0) <= 0 and (said := _said_bytes(answer)):
        return usage._replace(output_tokens=_tokens(said), failed=False)
    return usage


def usage_of(answer: bytes) -> Usage:
    """Return an answer's usage for any API, or an estimate from its text if absent.

    An answer with invalid numbers counts entirely as text.
    """
    decoded = _decoded(answer)
    if decoded is _NOTHING and is_object(answer):
        return Usage(output_tokens=_tokens(len(answer)))
    return _usage_of(decoded, whole=True)


def abort_of(answer: bytes) -> Problem | None:
    """Return why the worker aborted an answer (status 200), or None if it did not."""
    return _abort_of(_decoded(answer)) if b'"abort"' in answer else None


def _abort_of(answer: _Answer) -> Problem | None:
    reasons = [choice.finish_reason for choice in answer.choices or ()]
    if answer.meta_info is not None:
        reasons.append(answer.meta_info.finish_reason)
    for reason in reasons:
        if reason == "abort":
            return Problem(HTTPStatus.BAD_GATEWAY, "the worker aborted this request")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            said = str(reason.get("message") or "no reason given")[:200]
            return Problem(
                _status(reason.get("status_code")), f"the worker aborted this request: {said}"
            )
    return None


def _status(code: Any) -> HTTPStatus:
    try:
        return HTTPStatus(code) if code >= HTTPStatus.BAD_REQUEST else HTTPStatus.BAD_GATEWAY
    except (ValueError, TypeError):
        return HTTPStatus.BAD_GATEWAY


class StreamReader:
    """A reader of server-sent events that are passed on; it keeps only the facts about the end.

    With ``hide_usage``, an event that contains only the usage is left out. An event by which the
    worker aborts the request becomes an error. ``is_junk`` means that the first event is not part
    of an answer, ``is_refusal`` that it is an error, ``is_complete`` that the last event has come.
    """

    def __init__(self, *, hide_usage: bool) -> None:
        self._hide_usage = hide_usage
        self._splitter = EventSplitter()
        self._events = 0
        self._text_bytes = 0
        self._last = b""
        self._aborted = False
        self.is_junk = False
        self.is_refusal = False
        self.is_complete = False
        self._finished = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the whole events that can be passed on after this chunk."""
        return b"".join(
            [self._passed(event) if whole else event for event, whole in self._splitter.feed(chunk)]
        )

    def rest(self) -> bytes:
        """Return the remaining bytes to pass on after the stream's end."""
        rest = self._splitter.rest()
        self.is_complete |= data_of(rest) == _DONE
        return rest

    @property
    def is_finished(self) -> bool:
        """Return whether a finish reason has come; only the usage may follow."""
        return self._finished or _is_finished(_decoded(self._last))

    def usage(self) -> Usage:
        """Return the tokens so far.

        If the worker has not reported a positive number, four bytes of text count as a token, and
        an event as at least one.
        """
        told = _usage_of(_decoded(self._last), whole=False)
        if self._aborted:
            told = told._replace(failed=True)
        if told.output_tokens is not None and told.output_tokens > 0:
            return told
        texts = self._events - (told.failed and not self._aborted)
        return told._replace(output_tokens=max(texts, _tokens(self._text_bytes)))

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data or data == _DONE:
            self.is_complete |= data == _DONE
            return event
        self._events += 1
        if self._events == 1 and not self.is_junk:
            self.is_junk = not is_object(data)
            self.is_refusal = b'"error"' in data and _decoded(data).error is not None
        self._last = data
        if b'"choices"' in data:
            answer = _decoded(data)
            if answer.choices == [] and self._hide_usage:
                self._events -= 1
                return b""
            self._text_bytes += sum(map(_text_bytes, answer.choices or ()))
            self._finished |= _is_finished(answer)
        if (problem := abort_of(data)) is not None:
            self._aborted = True
            return problem.event(done=False)
        return event


def _tokens(text_bytes: int) -> int:
    return -(-text_bytes // TOKEN_BYTES)


def _said_bytes(answer: _Answer) -> int:
    return sum(map(_text_bytes, answer.choices or ())) + _bytes_of([answer.text])


def _is_finished(answer: _Answer) -> bool:
    told = answer.meta_info
    return (told is not None and told.finish_reason is not None) or any(
        choice.finish_reason is not None for choice in answer.choices or ()
    )


def _text_bytes(choice: Choice) -> int:
    texts: list[Any] = [choice.text]
    for part in (choice.delta, choice.message):
        if part is not None:
            texts += [part.content, part.reasoning_content, part.reasoning]
            texts += _called(part.tool_calls)
    return _bytes_of(texts)


def _called(tool_calls: Any) -> list[Any]:
    """Return the names and arguments of tool calls."""
    calls = tool_calls if isinstance(tool_calls, list) else []
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    known = [function for function in functions if isinstance(function, dict)]
    return [function.get(name) for function in known for name in ("name", "arguments")]


def _bytes_of(texts: Iterable[Any]) -> int:
    return sum(len(text.encode()) for text in texts if isinstance(text, str))
