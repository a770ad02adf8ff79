"""The protocol of OpenAI's APIs (answers, chats and streams) for driver, router and emulator.

The module also supports SGLang's path ``/generate``, the Responses API and Anthropic's Messages
API. Router and driver use this module to judge whether an answer has output, has ended normally, or
shows a fault.
"""

from __future__ import annotations

import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import msgspec

DEFAULT_NEW_TOKENS = 128  # default limit on a request's output tokens, as in SGLang


class MessagePart(msgspec.Struct):
    """A part of a message; a part without text, such as an image, counts as empty text."""

    text: str | None = None


class Message(msgspec.Struct):
    """A message (turn) of a conversation."""

    role: str
    content: str | list[MessagePart] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


class Delta(msgspec.Struct):
    """The output of a choice (an alternative answer), or the new output in a streamed event."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None  # the reasoning field of vLLM since 0.19.1, and of Ollama
    reasoning_details: Any = None
    thinking: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None
    audio: Any = None
    images: Any = None


class Choice(msgspec.Struct):
    """An alternative output (a "choice") in an answer or event.

    In the completions API, a choice has ``text``; in the chat API, a choice has ``delta`` or
    ``message``.
    """

    text: str | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: Any = None
    error: Any = None
    index: Any = None


class UsageDetails(msgspec.Struct):
    """The object ``prompt_tokens_details`` or ``input_tokens_details`` in a ``usage`` object."""

    cached_tokens: Any = None

    def __post_init__(self) -> None:
        self.cached_tokens = _token_count(self.cached_tokens)


MOST_TOKENS = 2**53  # Floats represent all integers up to 2**53 exactly.


def _token_count(value: Any) -> int | None:
    """Return a token count as an int; raise ValueError if ``value`` is not a valid count."""
    if value is None:
        return None
    if type(value) not in (int, float) or value % 1 or not 0 <= value <= MOST_TOKENS:
        raise ValueError("a count of tokens must be a whole number")
    return int(value)


class ReportedUsage(msgspec.Struct):
    """The token counts (``usage``) that an answer reports, with None for an unreported count.

    In the Responses and Messages APIs, the counts are named ``input_tokens`` and ``output_tokens``.
    The Messages API reports cached tokens separately from the input, so ``prompt_tokens`` is set to
    the sum of input and cached tokens. Some servers write counts with a decimal point, such as
    12.0.
    """

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: UsageDetails | None = None
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: UsageDetails | None = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None

    def __post_init__(self) -> None:
        told = _token_count(self.input_tokens)
        if told is not None:
            beside = self.cache_read_input_tokens, self.cache_creation_input_tokens
            told += sum(_token_count(count) or 0 for count in beside)
        self.prompt_tokens = _token_count(_known(self.prompt_tokens, told))
        self.completion_tokens = _token_count(_known(self.completion_tokens, self.output_tokens))

    @property
    def cached_tokens(self) -> int | None:
        details = self.prompt_tokens_details or self.input_tokens_details
        within: int | None = None if details is None else details.cached_tokens
        return _token_count(_known(within, self.cache_read_input_tokens))


def _known(value: Any, other: Any) -> Any:
    return other if value is None else value


_OUTPUT = ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
# The fields ``_CACHED`` count cached tokens in the APIs of Moonshot and DeepSeek.
_CACHED = ("cached_tokens", "prompt_cache_hit_tokens")
_COUNTS = ("prompt_tokens", "input_tokens", *_OUTPUT)


def usage_in(usage: Any, payload: bytes) -> ReportedUsage | None:
    """Return the token counts of an event, from the field ``usage`` or any other field.

    Some servers write token counts into a choice, or into an object such as ``x_groq``. Raises
    ``msgspec.MsgspecError`` if a count is invalid.
    """
    found = _counts_in(usage) if usage else None
    if found is None and b'_tokens"' in payload:
        found = _counts_in(msgspec.json.decode(payload))
    if found is None:
        return None
    told = {name: found[name] for name in ReportedUsage.__struct_fields__ if name in found}
    details = _first_known(told, _DETAILS)
    if details is None and (cached := _first_known(found, _CACHED)) is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return msgspec.convert(told, ReportedUsage)


def _counts_in(value: Any) -> dict[str, Any] | None:
    """Return the outermost JSON object that contains token counts."""
    waiting = [value]
    for one in waiting:
        if isinstance(one, dict):
            if _first_known(one, _COUNTS) is not None:
                return one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return None


def _first_known(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


# The fields ``LABELS`` of an answer contain no text that the model wrote.
LABELS = frozenset(("type", "id", "index", "role", "format", "effort"))
_NO_OUTPUT = LABELS | {"status", "phase", "call_id", "logprobs", "annotations"}
_NO_OUTPUT |= {"signature", "encrypted_content"}
RESPONSE = "response"
_RESPONSE_EVENT, _DELTA = "response.", ".delta"
# Events of the types ``_RESPONSE_ENDS`` contain the whole response and end the stream.
_RESPONSE_ENDS = frozenset(
    f"{_RESPONSE_EVENT}{status}" for status in ("completed", "incomplete", "failed", "cancelled")
)
MESSAGE = "message"
# ``_MESSAGE_EVENTS`` maps each type of event in the Messages API to the field with new output.
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
    """The parsed content of an answer or event with a field ``type``, as in the Responses API.

    If ``whole`` is True, ``texts`` are the whole output instead of only new output. ``complete`` is
    True if the stream has ended.
    """

    texts: Sequence[str] = ()
    reason: Any = None
    usage: Any = None
    error: Any = None
    whole: bool = False
    complete: bool = False


def typed(answer: Any) -> Typed | None:
    """Parse an answer or event of the Responses or Messages API; return None for other APIs."""
    kind = answer.type if isinstance(answer.type, str) else ""
    if kind.startswith(_RESPONSE_EVENT):
        return _response_event(answer, kind)
    if kind in _MESSAGE_EVENTS:
        return _message_event(answer, kind)
    if answer.object == RESPONSE:
        return _response({name: getattr(answer, name) for name in answer.__struct_fields__})
    if kind == MESSAGE and isinstance(answer.content, list):
        texts = tuple(texts_in(answer.content, _NO_OUTPUT))
        return Typed(texts, answer.stop_reason, answer.usage, answer.error, whole=True)
    return None


def _response_event(answer: Any, kind: str) -> Typed:
    if kind in _RESPONSE_ENDS:
        told = answer.response if isinstance(answer.response, dict) else {}
        status = kind.removeprefix(_RESPONSE_EVENT)
        # vLLM's event is always named "completed", even if the answer has another status.
        if status != "completed":
            told = told | {"status": status}
        return _response(told)._replace(complete=True)
    return Typed(tuple(texts_in(answer.delta, _NO_OUTPUT)) if kind.endswith(_DELTA) else ())


def _response(told: dict[str, Any]) -> Typed:
    """Parse a response of the Responses API; an unfinished response has no finish reason."""
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
    usage = answer.usage
    told = answer.message.get("usage") if isinstance(answer.message, dict) else None
    if not usage and isinstance(told, dict):
        # The ``usage`` of a ``message_start`` event does not count the output tokens yet.
        usage = {name: count for name, count in told.items() if name != "output_tokens"}
    complete = kind == _MESSAGE_END
    return Typed(texts, ended.get("stop_reason"), usage, answer.error, complete=complete)


def texts_in(value: Any, labels: frozenset[str] = LABELS) -> Iterator[str]:
    """Yield the texts in a JSON value in their order, except in fields named in ``labels``."""
    # A loop is safer than recursion, because the server chooses how deep values are nested.
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one and isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            waiting += [one[name] for name in reversed(one) if name not in labels]
        elif isinstance(one, list):
            waiting += reversed(one)


# ``GOOD_REASONS`` are the finish reasons and statuses of complete answers in all supported APIs.
GOOD_REASONS = frozenset(
    (
        *("stop", "length", "tool_calls", "function_call", "content_filter"),
        *("repetition", "eos", "eos_token", "stop_sequence", "model_length"),
        *("end_turn", "max_tokens", "tool_use", "pause_turn", "refusal"),
        *("completed", "incomplete", "max_output_tokens"),
    )
)
# An answer with one of the finish reasons ``_MAY_BE_EMPTY`` may be empty.
_MAY_BE_EMPTY = (
    *("length", "max_tokens", "model_length", "content_filter", "refusal"),
    *("incomplete", "max_output_tokens"),
)
# An answer with one of the finish reasons ``_CALLS`` must contain output.
_CALLS = ("tool_calls", "function_call", "tool_use")
# ``_REFUSALS`` are error types of OpenAI's API, vLLM and TGI for requests that are invalid.
_REFUSALS = frozenset(
    (
        *("invalid_request_error", "badrequesterror", "validation", "validation_error"),
        *("context_length_exceeded", "model_not_found", "notfounderror", "not_found_error"),
    )
)
ABORTED = "abort"
ERROR = "error"
DONE = b"[DONE]"  # data of the event that marks the end of a stream
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CODE = re.compile("[45][0-9]{2}")
MOST_SHOWN = 200  # maximum number of characters of a server's text that a message quotes


class Fault(NamedTuple):
    """The reason why an answer is empty, incomplete or failed, with an HTTP status."""

    text: str
    status: int | None = None


NO_OUTPUT = Fault("an answer without output")


class Answered(msgspec.Struct):
    """The fields of an answer, event or error that the function ``judge`` reads."""

    id: Any = None
    choices: list[Choice] | None = None
    text: Any = None
    output_ids: Any = None
    meta_info: Any = None
    usage: Any = None
    error: Any = None
    object: Any = None
    type: Any = None
    detail: Any = None
    message: Any = None
    code: Any = None
    status: Any = None
    status_code: Any = None
    error_type: Any = None
    response: Any = None
    output: Any = None
    incomplete_details: Any = None
    content: Any = None
    content_block: Any = None
    delta: Any = None
    stop_reason: Any = None


class AnswerJudgement(NamedTuple):
    """The result of ``judge`` for an answer or event: its output, its end, or its fault.

    - ``output`` is True if the answer or event contains output.
    - ``ended`` is True if the answer has ended for a normal reason.
    - ``texts`` are the generated texts of all choices.
    - ``typed`` is the parsed content, for APIs that name each event's type.
    """

    answer: Answered | None
    output: bool = False
    ended: bool = False
    fault: Fault | None = None
    texts: Sequence[str] = ()
    typed: Typed | None = None


_decode = msgspec.json.Decoder(Answered).decode


def answered(payload: bytes) -> Answered | None:
    """Return the fields of a JSON payload, or None if the payload fits no supported API."""
    try:
        try:
            return _decode(payload)
        except msgspec.DecodeError:
            # Some gateways split texts by UTF-16 code units, and break characters such as emoji.
            return _decode(_SURROGATE.sub(rb"\\ufffd", payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def reason_fault(reason: Any) -> Fault | None:
    """Return the fault that a finish reason indicates, or None for a normal reason.

    A finish reason is an object in SGLang's own API, and a text in OpenAI's API.
    """
    kind = reason.get("type") if isinstance(reason, dict) else reason
    if not kind or (isinstance(kind, str) and kind.lower() in GOOD_REASONS):
        return None
    if kind != ABORTED:
        return Fault(f"finish reason {str(kind)[:MOST_SHOWN]!r}")
    told = reason if isinstance(reason, dict) else {}
    said = str(told.get("message") or "no reason given")[:MOST_SHOWN]
    return Fault(f"aborted: {said}", _status(told.get("status_code"), told.get("err_type")))


def texts_of(part: Delta) -> list[str]:
    """Return the model's texts in a message or delta: content, reasoning, tool calls."""
    # Some servers send reasoning twice, under the old and the new name of the field.
    thought = part.reasoning_content or part.reasoning or part.reasoning_details or part.thinking
    found: list[str] = []
    for value in (
        *(thought, part.content, part.refusal),
        *(part.tool_calls, part.function_call, part.audio, part.images),
    ):
        if value:
            found += (value,) if isinstance(value, str) else texts_in(value)
    return found


def choice_texts(choice: Choice) -> list[str]:
    """Return all texts that the model wrote in a choice."""
    found = [choice.text] if choice.text else []
    for part in (choice.delta, choice.message):
        if part is not None:
            found += texts_of(part)
    return found


def judge(answer: Answered | None, event: str = "") -> AnswerJudgement:
    """Return whether an answer, or the data of a stream event ``event``, has output or an error.

    ``answer`` is None if the payload could not be read; an unreadable payload counts as an error.
    """
    if answer is None:
        return AnswerJudgement(None, fault=Fault("not an answer of this API"))
    named = typed(answer)
    texts = [text for choice in answer.choices or () for text in choice_texts(choice)]
    texts += named.texts if named else ()
    reasons = _reasons(answer)
    faults = (fault for reason in reasons if (fault := reason_fault(reason)) is not None)
    fault = _error_of(answer, event, named) or next(faults, None)
    ended = fault is None and bool(reasons)
    has_tokens = answer.text or answer.output_ids or (answer.meta_info and _reported(answer))
    output = bool(texts) or (named is None and bool(has_tokens))
    return AnswerJudgement(answer, output, ended, fault, texts, named)


def whole_fault(payload: bytes) -> Fault | None:
    """Return why a response with HTTP status 200 has no answer, or None for a valid answer."""
    answer = answered(payload)
    found = judge(answer)
    if answer is None or found.fault is not None:
        return found.fault
    # Every valid answer has at least one of the output fields in ``places``, even if it is empty.
    places: list[Any] = [answer.text, answer.output_ids, answer.output, answer.content]
    places += [choice.text if choice.message is None else 0 for choice in answer.choices or ()]
    has_place = any(place is not None for place in places)
    ended = found.ended and has_place and not _ended_with(answer, _CALLS)
    idle = _reported(answer) == 0 and not _ended_with(answer, _MAY_BE_EMPTY)
    return None if found.output or (ended and not idle) else NO_OUTPUT


class StreamJudge:
    """A reader of a streamed answer that finds its output, end and faults.

    - ``output`` is True if output has arrived in the stream.
    - ``ended`` is True if at least one choice (an alternative answer) has ended.
    - ``finished`` is True if all choices have ended; ``answers`` is the number of choices.
    """

    def __init__(self, answers: int = 1) -> None:
        self.output = False
        self.ended = False
        self._answers, self._ends = answers, set[Any]()
        self.may_be_empty = False
        self._promised = False  # whether a finish reason, such as "tool_calls", requires output
        self._told: int | None = None

    def judge_event(self, payload: bytes, event: str = "") -> AnswerJudgement:
        """Judge the next event; repeated output does not count as output."""
        found = judge(answered(payload), event)
        repeats = found.typed is not None and found.typed.whole and self.output
        if found.answer is not None and (repeats or not self._is_new(found.answer)):
            found = found._replace(output=False, texts=() if repeats else found.texts)
        if found.ended and found.answer is not None:
            self.ended = True
            # If an event ends an answer without naming a choice, choice 0 counts as ended.
            self._ends |= {
                choice.index if isinstance(choice.index, int) else 0
                for choice in found.answer.choices or ()
                if choice.finish_reason
            } or {0}
            self.may_be_empty |= _ended_with(found.answer, _MAY_BE_EMPTY)
            self._promised |= _ended_with(found.answer, _CALLS)
        self.output |= found.output
        return found

    @property
    def finished(self) -> bool:
        return self.ended and len(self._ends) >= self._answers

    def end_fault(self) -> Fault | None:
        """Return why an ended stream contains no answer, or None for a valid answer."""
        idle = self._promised or (self._told == 0 and not self.may_be_empty)
        return None if self.output or (self.ended and not idle) else NO_OUTPUT

    def _is_new(self, answer: Answered) -> bool:
        """Return whether an event has new tokens; SGLang's events also repeat earlier output."""
        before, told = self._told, _reported(answer)
        if told is not None:
            self._told = told
        return answer.meta_info is None or told is None or told > (before or 0)


def _status(*said: Any) -> int | None:
    """Return the first HTTP error status (400 to 599) among an error's fields.

    An error type that blames the request, such as "invalid_request_error", counts as status 400.
    """
    for one in said:
        if isinstance(one, str):
            one = 400 if one.lower() in _REFUSALS else int(one) if _CODE.fullmatch(one) else None
        if type(one) in (int, float) and 400 <= one < 600:
            return int(one)
    return None


def _error_of(answer: Answered, event: str, named: Typed | None) -> Fault | None:
    error = answer.error or (named and named.error)
    for choice in answer.choices or ():
        error = error or choice.error
    is_error = ERROR in (answer.object, answer.type, event)
    held = (answer.choices, answer.text, answer.output_ids, answer.meta_info, answer.usage)
    if not error and (is_error or not (named or any(held))):
        error = answer.message or answer.detail or (ERROR if is_error else None)
    if not error:
        return None
    fields = error if isinstance(error, dict) else {}  # Some servers send the error as a string.
    codes = [fields.get(name) for name in ("code", "status", "status_code", "type")]
    codes += [answer.code, answer.status, answer.status_code, answer.type, answer.error_type]
    return Fault(str(fields.get("message", error))[:MOST_SHOWN], _status(*codes))


def _reasons(answer: Answered) -> list[Any]:
    reasons = [choice.finish_reason for choice in answer.choices or () if choice.finish_reason]
    if isinstance(answer.meta_info, dict) and (reason := answer.meta_info.get("finish_reason")):
        reasons.append(reason)
    named = typed(answer)
    return [*reasons, named.reason] if named and named.reason else reasons


def _ended_with(answer: Answered, kinds: Sequence[str]) -> bool:
    ends = [one.get("type") if isinstance(one, dict) else one for one in _reasons(answer)]
    return any(str(end).lower() in kinds for end in ends)


def _reported(answer: Answered) -> int | None:
    """Return the number of output tokens that an answer reports, or None for an invalid number."""
    named = typed(answer)
    told = answer.meta_info or answer.usage or (named and named.usage)
    if isinstance(told, dict):
        with suppress(ValueError):
            return _token_count(_first_known(told, _OUTPUT))
    return None


# An image, a sound or a video counts as 1,024 tokens, because an image of 1,024 x 1,024 pixels
# takes about 600 to 1,400 tokens in current models.
MEDIA_TOKENS = 1_024
_MEDIA = frozenset(
    {"image", "image_url", "input_image", "image_data", "image_embeds", "audio", "audio_url"}
    | {"input_audio", "video", "video_url", "input_video"}
)
_BESIDE_MESSAGES = (
    *("tools", "chat_template_kwargs", "reasoning_effort", "reasoning", "thinking"),
    *("text", "output_config"),
)
# ``_TURNS`` maps each body field with conversation turns, in prompt order, to the role of a turn
# that is given as plain text.
_TURNS = {"instructions": "system", "system": "system", "input": "user", "messages": "user"}
SEEN = (*_TURNS, *_BESIDE_MESSAGES)  # fields of a request that a chat template may use
_CONTENTS = ("content", "output")
_TURN = frozenset({"role", *_CONTENTS})


class Media(NamedTuple):
    """An image, a sound or a video in a prompt; ``key`` is a hash of its content."""

    key: int

    def ids(self) -> array[int]:
        """Return ``MEDIA_TOKENS`` equal token ids that represent the media in prompts."""
        return array("I", [self.key]) * MEDIA_TOKENS

    def words(self) -> str:
        """Return ``MEDIA_TOKENS`` words that represent the media, for engines that count words."""
        letters = "".join(chr(ord("a") + int(digit, 16)) for digit in f"{self.key:08x}")
        return f" {letters}" * MEDIA_TOKENS


Piece: TypeAlias = str | Media


def media_of(content: object) -> Media:
    """Return the media (such as images) that a JSON value contains or refers to."""
    digest = sha256(msgspec.json.encode(content)).digest()
    return Media(int.from_bytes(digest[:4], "little"))


def beside_messages(body: Mapping[str, Any]) -> str:
    """Return a request's tools and template arguments as JSON; prompts begin with this JSON."""
    return _json({name: body.get(name) for name in _BESIDE_MESSAGES})


def turns_of(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the conversation turns (messages) in a request body of any API.

    A turn is a message; the Responses API calls a turn an item. A body field that contains plain
    text counts as one message. The field "system" also counts as one message, even if it contains a
    list of blocks.
    """
    found: list[Mapping[str, Any]] = []
    for name, role in _TURNS.items():
        value = body.get(name) or ()
        if isinstance(value, str) or name == "system":
            found.append({"role": role, "content": value})
        else:
            found += value
    return [turn for turn in found if turn != {"role": "system", "content": ()}]


def pieces_of(message: Mapping[str, Any], start: str) -> list[Piece]:
    """Return the texts and media of a message, in the order of the prompt.

    The first text of a message begins with ``start``. The last text of a message ends with the
    message's other fields as JSON.
    """
    parts: list[Piece] = []
    for content in (message.get(name) for name in _CONTENTS):
        parts += _texts(content)
    others = _json({name: value for name, value in message.items() if name not in _TURN})
    joined: list[Piece] = []
    texts = [start]
    for piece in parts:
        if isinstance(piece, Media):
            joined += ["".join(texts), piece]
            texts = []
        else:
            texts.append(piece)
    return [*joined, "".join([*texts, others])]


def _texts(value: Any) -> Iterator[Piece]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(part, dict) for part in value):
        for part in value:  # A tool result may be a list of content parts, as in a message.
            for name, content in part.items():
                if name in _MEDIA or (name == "source" and part.get("type") == "image"):
                    yield media_of(content)
                elif name != "type":
                    yield from _texts(content)
    elif value is not None:
        yield msgspec.json.encode(value).decode()


def _json(fields: Mapping[str, Any]) -> str:
    known = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    return msgspec.json.encode(known).decode() if known else ""


# An event ends with a blank line, that is, with two line ends (CR LF, LF or CR). The atomic group
# of the regular expression makes CR LF count as one line end.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r){2}")
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")
_LONGEST_END = 4


class EventSplitter:
    """A splitter of a byte stream into server-sent events, each with its closing blank line.

    An event of more than ``most_bytes`` bytes is returned in pieces, so that an endless event
    cannot fill the memory.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._begun = bytearray()
        self._searched = 0  # index in ``_begun`` from which the next blank line is searched
        self._oversized = False  # whether the first part of the current event was already returned

    def feed(self, chunk: bytes) -> list[tuple[bytes, bool]]:
        """Add received bytes; return completed events and pieces of oversized events.

        The bool in each pair is True for an event, and False for a comment or a piece of an
        oversized event.
        """
        is_event = chunk.endswith(b"\n\n") and chunk.find(b"\n\n") == len(chunk) - 2
        if is_event and not self._begun and not self._oversized and b"\r" not in chunk:
            # Most chunks are a single event, which needs no splitting.
            return [(chunk, b"data" in chunk)]
        self._begun += chunk
        starts = [(self._begun.rfind(end, self._searched), len(end)) for end in _BLANK_LINES]
        end = max(at + length if at >= 0 else 0 for at, length in starts)
        whole = bytes(self._begun[:end])
        del self._begun[:end]
        found = self._events_in(whole) if whole else []
        if len(self._begun) > self._most_bytes:
            # The last bytes of a chunk are kept, because a blank line may begin in them.
            stop = len(self._begun) - _LONGEST_END
            found.append((bytes(self._begun[:stop]), False))
            del self._begun[:stop]
            self._oversized = True
        self._searched = max(0, len(self._begun) - _LONGEST_END)
        return found

    def _events_in(self, whole: bytes) -> list[tuple[bytes, bool]]:
        if b"data" not in whole:  # Events without data are comments, which some servers send often.
            self._oversized = False
            return [(whole, False)]
        found: list[tuple[bytes, bool]] = []
        start = 0
        for end in _BLANK_LINE.finditer(whole):
            found.append((whole[start : end.end()], not self._oversized))
            start, self._oversized = end.end(), False
        if start < len(whole):  # An extra line end may follow the last event.
            found.append((whole[start:], False))
        return found

    def rest(self) -> bytes:
        """Return the received bytes of an event that is not yet complete."""
        return bytes(self._begun)


def data_lines(event: bytes) -> list[bytes]:
    """Return the contents of an event's ``data`` lines; a comment has no such lines."""
    if event.startswith(b"data:") and event.find(b"\n") >= len(event) - 2 and b"\r" not in event:
        # Most events are a single line, which needs no splitting.
        return [event[5:].strip()]
    if b"data:" not in event:
        return []
    lines = event.removeprefix(BOM_UTF8).splitlines()
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def event_name(event: bytes) -> str:
    """Return an event's name, or "" if the event has no name."""
    if b"event" not in event:
        return ""
    lines = [line[6:] for line in event.splitlines() if line.startswith(b"event:")]
    return lines[-1].decode("utf-8", "replace").strip() if lines else ""
