"""Answers of workers: their events, their tokens, and whether they failed, read in passing."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from fairbench.live.json_errors import Problem
from fairbench.live.openai_answers import (
    DONE,
    Answered,
    Fault,
    StreamJudge,
    answered,
    choice_texts,
)
from fairbench.live.openai_shapes import usage_in
from fairbench.live.typed_answers import Typed, typed
from fairbench_serve.prompts import TOKEN_BYTES

MAX_EVENT_BYTES = 2**22
# A blank line, with any of the three line ends. The group is atomic: CR LF is one line end, not
# two.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_END = 4
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
    lines = event.removeprefix(BOM_UTF8).splitlines()
    return b"\n".join([line[5:].strip(b" ") for line in lines if line.startswith(b"data:")])


def name_of(event: bytes) -> str:
    """Return an event's name, or "" if it has none."""
    if b"event" not in event:
        return ""
    lines = [line[6:] for line in event.splitlines() if line.startswith(b"event:")]
    return lines[-1].decode("utf-8", "replace").strip() if lines else ""


class Usage(NamedTuple):
    """The tokens of one answer; None if the worker did not report them."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed: bool = False  # whether the answer ended with an error

    def over(self, earlier: Usage) -> Usage:
        """Return this usage, with the counts of an ``earlier`` event where it has none."""
        read, output, cached = (
            old if new is None else new for new, old in zip(self[:3], earlier[:3], strict=True)
        )
        return Usage(read, output, cached, self.failed)


def is_object(answer: bytes) -> bool:
    """Return whether a text is a JSON object, like answers and their events, with any content."""
    try:
        _object.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _usage_of(answer: Answered, payload: bytes, *, whole: bool) -> Usage:
    """Return the usage of an answer or event. Raises ``msgspec.MsgspecError``."""
    told = usage_in(answer.meta_info or answer.usage, payload)
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
    with suppress(msgspec.MsgspecError):
        if (found := answered(answer)) is not None:
            return _usage_of(found, answer, whole=True)
    return Usage(output_tokens=_tokens(len(answer))) if is_object(answer) else Usage()


def _usage_told(named: Typed) -> Usage:
    """Return the counts of a typed event; none of them if one is invalid."""
    with suppress(msgspec.MsgspecError):
        if (told := usage_in(named.usage, b"")) is not None:
            return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)
    return Usage()


def problem_of(fault: Fault, worker: int | None = None) -> Problem:
    """Return the error for a client whose ``worker`` has answered without an answer."""
    status = HTTPStatus.BAD_GATEWAY
    if fault.status is not None:
        with suppress(ValueError):
            status = HTTPStatus(fault.status)
    said = f"the worker did not serve this request: {fault.text}"
    return Problem(status, said, worker=worker)


class StreamReader:
    """A reader of server-sent events that are passed on; it keeps only the facts about the end.

    Nothing is passed on before the first output, so that a stream without an answer can be tried at
    another worker: earlier events wait, and comments are left out. With ``hide_usage``, an event
    that contains only the usage is left out. ``fault`` is why the stream is no answer, if it is
    none; an event that clients would not recognise as an error becomes one. ``is_complete`` means
    that the last event has come, and ``has_new_output`` that the last chunk had output.
    """

    def __init__(self, *, hide_usage: bool, answers: int = 1) -> None:
        self._hide_usage = hide_usage
        self._splitter = EventSplitter()
        self._judge = StreamJudge(answers)
        self._named = Usage()
        self._names_events = False
        self._waiting = bytearray()
        self._is_passing = False
        self._events = 0
        self._text_bytes = 0
        self._last = b""
        self.fault: Fault | None = None
        self.is_complete = False
        self._is_done = False
        self.has_new_output = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the whole events that can be passed on after this chunk."""
        self.has_new_output = False
        passed = b"".join(
            [
                self._passed(event) if whole else self._unread(event)
                for event, whole in self._splitter.feed(chunk)
            ]
        )
        if self._is_passing and not self._waiting:
            return passed
        self._waiting += passed
        if self._is_passing:
            return self._take_waiting()
        if len(self._waiting) > MAX_EVENT_BYTES:
            self.fault = Fault("a stream without output")
        return b""

    def rest(self) -> bytes:
        """Return the remaining bytes to pass on after the stream's end."""
        rest = self._splitter.rest()
        self.is_complete |= data_of(rest) == DONE
        if self.fault is None and self.is_complete and not self._is_passing:
            self.fault = self._judge.end()
        return self._take_waiting() + rest

    @property
    def is_finished(self) -> bool:
        """Return whether the finish reasons have come; only the usage may follow."""
        return self._judge.finished

    def end_with(self, problem: Problem) -> bytes:
        """Return the event that ends the stream with an error, in the stream's format."""
        return problem.event(named=self._names_events, done=not self._names_events)

    def usage(self) -> Usage:
        """Return the tokens so far.

        If the worker has not reported a positive number, four bytes of text count as a token, and
        an event as at least one.
        """
        told = Usage()
        with suppress(msgspec.MsgspecError):
            if (last := answered(self._last)) is not None:
                told = _usage_of(last, self._last, whole=False)
        told = told.over(self._named)
        is_error = told.failed
        if self.fault is not None:
            told = told._replace(failed=True)
        if told.output_tokens is not None and told.output_tokens > 0:
            return told
        return told._replace(output_tokens=max(self._events - is_error, _tokens(self._text_bytes)))

    def _take_waiting(self) -> bytes:
        waiting, self._waiting = bytes(self._waiting), bytearray()
        return waiting

    def _unread(self, piece: bytes) -> bytes:
        """Return a comment, or a piece of an oversized event, which counts as output."""
        self._is_passing |= b"data" in piece
        return piece if self._is_passing else b""

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event)
        if self._is_done or (self.is_complete and data != DONE):
            return b""  # nothing belongs to an answer after its last event
        if not data:
            return event if self._is_passing else b""
        if data == DONE:
            self.is_complete = self._is_done = True
            return event
        name = name_of(event)
        found = self._judge.take(data, name)
        self._events += found.output or found.typed is None
        self._last = data
        self.has_new_output |= found.output
        if found.typed is not None:
            self._names_events = bool(name)
            self._named = _usage_told(found.typed).over(self._named)
            self.is_complete |= found.typed.complete
        if found.fault is not None:
            self.fault = found.fault
            is_told = found.answer is not None and (found.answer.error or found.typed)
            named = self._names_events
            return event if is_told else problem_of(found.fault).event(named=named, done=False)
        self._is_passing |= found.output
        if self._hide_usage and found.answer is not None and found.answer.choices == []:
            self._events -= 1
            return b""
        self._text_bytes += _text_bytes(found.texts)
        return event


def _tokens(text_bytes: int) -> int:
    return -(-text_bytes // TOKEN_BYTES)


def _text_bytes(texts: Iterable[str]) -> int:
    return sum([len(text.encode()) for text in texts])


def _said_bytes(answer: Answered) -> int:
    texts = [text for choice in answer.choices or () for text in choice_texts(choice)]
    if (named := typed(answer)) is not None:
        texts += named.texts
    return _text_bytes([*texts, answer.text] if isinstance(answer.text, str) else texts)
