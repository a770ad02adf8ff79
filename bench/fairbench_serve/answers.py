"""Answers of workers: the events that clients receive, the token counts, and the charges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from fairbench_load import openai
from fairbench_load.http_server import Problem
from fairbench_serve.prompts import TOKEN_BYTES

# maximum size in bytes of a server-sent event that the router keeps in memory
MAX_EVENT_BYTES = 2**22
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Usage(NamedTuple):
    """The token counts that a worker reports with an answer; an unreported count is None."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed: bool = False

    def completed_by(self, earlier: Usage) -> Usage:
        """Return the usage, with missing token counts filled in from ``earlier``."""
        read, output, cached = (
            old if new is None else new for new, old in zip(self[:3], earlier[:3], strict=True)
        )
        return Usage(read, output, cached, self.failed)


def is_object(answer: bytes) -> bool:
    """Return whether ``answer`` is a JSON object."""
    try:
        _object.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _usage_of(answer: openai.Answered, payload: bytes, *, whole: bool) -> Usage:
    """Return the token counts of a complete answer (``whole``) or of a streamed event.

    Raises ``msgspec.MsgspecError`` for invalid counts.
    """
    told = openai.usage_in(answer.meta_info or answer.usage, payload)
    usage = Usage(failed=answer.error is not None)
    if told is not None:
        usage = Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)
    if not whole or (usage.output_tokens or 0) > 0:
        return usage
    texts = [text for choice in answer.choices or () for text in openai.choice_texts(choice)]
    if (named := openai.typed(answer)) is not None:
        texts += named.texts
    if isinstance(answer.text, str):
        texts.append(answer.text)
    said = _text_bytes(texts)
    return usage._replace(output_tokens=_tokens(said), failed=False) if said else usage


def usage_of(answer: bytes) -> Usage:
    """Return the token counts of an answer of any API.

    If the output tokens are not reported, their number is estimated from the length of the text. If
    any reported token count is invalid, the output tokens are estimated from the bytes of the whole
    answer.
    """
    with suppress(msgspec.MsgspecError):
        if (found := openai.answered(answer)) is not None:
            return _usage_of(found, answer, whole=True)
    return Usage(output_tokens=_tokens(len(answer))) if is_object(answer) else Usage()


def _usage_told(named: openai.Typed) -> Usage:
    with suppress(msgspec.MsgspecError):
        if (told := openai.usage_in(named.usage, b"")) is not None:
            return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens)
    return Usage()


def problem_of(fault: openai.Fault, worker: int | None = None) -> Problem:
    """Return the error that the client gets for a ``fault`` in the stream of ``worker``."""
    status = HTTPStatus.BAD_GATEWAY
    if fault.status is not None:
        with suppress(ValueError):
            status = HTTPStatus(fault.status)
    said = f"the worker did not serve this request: {fault.text}"
    return Problem(status, said, worker=worker)


class StreamReader:
    """A reader of server-sent events that decides which events the client receives.

    The reader queues all events before the first output, so that the router can retry a failed
    stream at another worker. SSE comments before the first output are removed. With ``hide_usage``,
    events that contain only the usage are removed. An error event in an unusual format is replaced
    by an error event in the client's format.

    - ``fault`` is the reason why the stream is not a valid answer, or None if it is valid so far.
    - ``is_complete`` is True if the last event has arrived.
    - ``has_new_output`` is True if the last chunk contained output.
    """

    def __init__(self, *, hide_usage: bool, answers: int = 1) -> None:
        self._hide_usage = hide_usage
        self._splitter = openai.EventSplitter(MAX_EVENT_BYTES)
        self._judge = openai.StreamJudge(answers)
        self._named = Usage()
        self._names_events = False
        self._waiting = bytearray()
        self._is_passing = False
        self._events = 0
        self._text_bytes = 0
        self._last = b""
        self.fault: openai.Fault | None = None
        self.is_complete = False
        self._is_done = False
        self.has_new_output = False

    def feed(self, chunk: bytes) -> bytes:
        """Add a chunk of the worker's stream, and return the complete events for the client."""
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
            self.fault = openai.Fault("a stream without output")
        return b""

    def rest(self) -> bytes:
        """Return the bytes that the client must still get after the end of the worker's stream."""
        rest = self._splitter.rest()
        self.is_complete |= openai.data_lines(rest) == [openai.DONE]
        if self.fault is None and self.is_complete and not self._is_passing:
            self.fault = self._judge.end_fault()
        return self._take_waiting() + rest

    @property
    def is_finished(self) -> bool:
        """Return whether all finish reasons have arrived, so that only the usage may follow."""
        return self._judge.finished

    def end_with(self, problem: Problem) -> bytes:
        """Return an error event that ends the stream, in the stream's own format."""
        return problem.event(named=self._names_events, done=not self._names_events)

    @property
    def output_so_far(self) -> int:
        """The estimated number of output tokens so far, with at least one token per SSE event."""
        return max(self._events, _tokens(self._text_bytes))

    def usage(self) -> Usage:
        """Return the token counts that the stream has reported so far.

        Without a positive count of output tokens, the number is estimated: one token per event or
        per four bytes of text, whichever gives more tokens.
        """
        told = Usage()
        with suppress(msgspec.MsgspecError):
            if (last := openai.answered(self._last)) is not None:
                told = _usage_of(last, self._last, whole=False)
        told = told.completed_by(self._named)
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
        """Return a part of an overlong event, or b"" for a comment before the first output."""
        self._is_passing |= b"data" in piece
        return piece if self._is_passing else b""

    def _passed(self, event: bytes) -> bytes:
        data = b"\n".join(openai.data_lines(event))
        if self._is_done or (self.is_complete and data != openai.DONE):
            return b""  # nothing follows the last event of an answer
        if not data:
            return event if self._is_passing else b""
        if data == openai.DONE:
            self.is_complete = self._is_done = True
            return event
        name = openai.event_name(event)
        found = self._judge.judge_event(data, name)
        self._events += found.output or found.typed is None
        self._last = data
        self.has_new_output |= found.output
        if found.typed is not None:
            self._names_events = bool(name)
            self._named = _usage_told(found.typed).completed_by(self._named)
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


# seconds per output token before a worker's first complete answer (8B model on an A100)
FIRST_TOKEN_S = 0.02
# SGLang caps a request's remaining output at 4,096 tokens, and reserves KV memory for a fraction of
# the capped output. ``RESERVED_SHARE`` is the smallest value of this fraction
# (``new_token_ratio``).
RESERVED_SHARE, MOST_RESERVED = 0.098, 4_096
LATEST_SHARE = 0.05  # weight of the latest answer in the average time per token


class Charge(NamedTuple):
    """The tokens that a client is charged for; ``input_tokens`` includes ``cached_tokens``."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    def plus(self, other: Charge) -> Charge:
        return Charge(*map(sum, zip(self, other, strict=True)))


NOTHING = Charge()


class Bill:
    """The charges of a request so far, summed over all workers that served the request."""

    def __init__(self) -> None:
        self.total = NOTHING

    def add_charge(self, charge: Charge) -> None:
        self.total = self.total.plus(charge)


class HighestCost(NamedTuple):
    """The highest cost that a request can cause, in tokens.

    ``prompt_tokens`` is the known or estimated length of the prompt. ``most_output_tokens`` is the
    limit on the output tokens of all answers together. ``answers`` is the number of answers that
    the request asks for.
    """

    prompt_tokens: int
    most_input_tokens: int
    most_output_tokens: int
    answers: int = 1


def reported(usage: Usage, asked: HighestCost) -> Charge:
    """Return the charge of a request according to the token counts that its worker reported.

    If the count of input tokens is missing or impossible, the prompt length in ``asked`` replaces
    it. An impossible count of cached tokens is replaced by 0.
    """
    told = _possible(usage.input_tokens, asked.most_input_tokens)
    read = told or min(asked.prompt_tokens, asked.most_input_tokens)
    output = max(0, min(usage.output_tokens or 0, asked.most_output_tokens))
    return Charge(read, output, _possible(usage.cached_tokens, read))


def broken_off(
    usage: Usage, asked: HighestCost, elapsed_s: float, token_s: float | None, *, left: bool = False
) -> Charge:
    """Return the charge for an incomplete answer.

    All tokens of the prompt are charged. If the client abandoned the answer (``left``), the client
    also pays for the memory that the engine reserved for the remaining output. If reserved memory
    were not charged, a client could request long answers and disconnect early at no cost.

    Without streaming, the router does not see tokens before the end of an answer, so an unfinished
    answer is charged one token per ``token_s`` seconds since the request was sent. For a streamed
    answer, ``token_s`` is None, and the tokens received so far are charged.
    """
    so_far, most = reported(usage, asked), asked.most_output_tokens
    produced = so_far.output_tokens
    if token_s is not None:
        produced = max(produced, min(int(elapsed_s / token_s) * asked.answers, most))
    if left:
        produced += int(RESERVED_SHARE * min(most - produced, MOST_RESERVED * asked.answers))
    return so_far._replace(output_tokens=produced)


def _possible(tokens: int | None, most: int) -> int:
    return tokens if tokens is not None and 0 <= tokens <= most else 0


class Pace:
    """The mean time per output token of each worker, including time in the worker's queue."""

    def __init__(self) -> None:
        self._token_s: defaultdict[int, float] = defaultdict(lambda: FIRST_TOKEN_S)

    def token_s(self, worker: int) -> float:
        """Return the seconds per output token, exponentially averaged over the worker's answers."""
        return self._token_s[worker]

    def observe(self, worker: int, elapsed_s: float, output_tokens: int) -> None:
        if output_tokens > 0:
            latest = max(elapsed_s / output_tokens, 1e-6)
            self._token_s[worker] += LATEST_SHARE * (latest - self._token_s[worker])
