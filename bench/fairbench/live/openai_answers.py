"""The one judgement of answers in the APIs' formats: output, a good end, or a fault.

Router and driver judge whole answers and the events of streams by the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from fairbench.live.openai_shapes import Choice, Delta, output_tokens_in
from fairbench.live.typed_answers import Typed, texts_in, typed

# OpenAI's finish reasons, and the words of other servers for the same: vLLM's "repetition", TGI's
# and Mistral's names, the Messages API's stop reasons, and the status and reasons of responses.
GOOD_REASONS = frozenset(
    (
        *("stop", "length", "tool_calls", "function_call", "content_filter"),
        *("repetition", "eos", "eos_token", "stop_sequence", "model_length"),
        *("end_turn", "max_tokens", "tool_use", "pause_turn", "refusal"),
        *("completed", "incomplete", "max_output_tokens"),
    )
)
# Reasons for which an answer may end before the server has produced a token.
_MAY_BE_EMPTY = (
    *("length", "max_tokens", "model_length", "content_filter", "refusal"),
    *("incomplete", "max_output_tokens"),
)
_CALLS = ("tool_calls", "function_call", "tool_use")  # reasons that promise output
# Types and codes of errors whose cause is the request, in OpenAI's, vLLM's and TGI's words.
_REFUSALS = frozenset(
    (
        *("invalid_request_error", "badrequesterror", "validation", "validation_error"),
        *("context_length_exceeded", "model_not_found", "notfounderror", "not_found_error"),
    )
)
ABORTED = "abort"
ERROR = "error"
DONE = b"[DONE]"  # the payload that follows a stream's last event
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CODE = re.compile("[45][0-9]{2}")
MOST_SHOWN = 200  # characters of a server's words in a message


class Fault(NamedTuple):
    """The reason why an answer is empty, cut or failed, with the HTTP status that it names."""

    text: str
    status: int | None = None


NO_OUTPUT = Fault("an answer without output")


class Answered(msgspec.Struct):
    """The fields of an answer or event, and of an error in its place, that the judgement needs."""

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


class Judgement(NamedTuple):
    """Whether an answer or event holds output, has ended for a good reason, or shows a fault.

    ``typed`` are the facts of the APIs that name the types of their events.
    """

    answer: Answered | None
    output: bool = False
    ended: bool = False
    fault: Fault | None = None
    texts: Sequence[str] = ()  # of the model, in all choices
    typed: Typed | None = None


_decode = msgspec.json.Decoder(Answered).decode


def answered(payload: bytes) -> Answered | None:
    """Return the fields of a JSON payload, or None if it is no answer of these APIs."""
    try:
        try:
            return _decode(payload)
        except msgspec.DecodeError:
            # Gateways that divide texts by UTF-16 halve the pairs of characters such as emoji.
            return _decode(_SURROGATE.sub(rb"\\ufffd", payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def error_text(error: Any) -> str:
    """Return the message of an API's error, which is a text or an object with a text."""
    if isinstance(error, dict):
        return str(error.get("message", error))
    return str(error)


def reason_fault(reason: Any) -> Fault | None:
    """Return the fault that a finish reason names, or None for a good reason or no reason.

    SGLang's own API has the reason as an object, OpenAI's as a text.
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
    """Return every text of the model in a message or delta: content, reasoning, tool calls."""
    # Servers that renamed the field of a thought send it under both names.
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
    """Return every text of the model in a choice."""
    found = [choice.text] if choice.text else []
    for part in (choice.delta, choice.message):
        if part is not None:
            found += texts_of(part)
    return found


def judge(answer: Answered | None, event: str = "") -> Judgement:
    """Judge an answer or the data of an event of this name; None stands for an unreadable one."""
    if answer is None:
        return Judgement(None, fault=Fault("not an answer of this API"))
    named = typed(answer)
    texts = [text for choice in answer.choices or () for text in choice_texts(choice)]
    texts += named.texts if named else ()
    reasons = _reasons(answer)
    fault = _error_of(answer, event, named) or _fault_in(reasons)
    ended = fault is None and bool(reasons)
    output = bool(texts) or (named is None and _has_tokens(answer))
    return Judgement(answer, output, ended, fault, texts, named)


def whole_fault(payload: bytes) -> Fault | None:
    """Return why a whole answer of status 200 holds no answer, or None if it holds one."""
    answer = answered(payload)
    found = judge(answer)
    if answer is None or found.fault is not None:
        return found.fault
    ended = found.ended and _has_place(answer) and not _ended_with(answer, _CALLS)
    idle = _reported(answer) == 0 and not _ended_with(answer, _MAY_BE_EMPTY)
    return None if found.output or (ended and not idle) else NO_OUTPUT


class StreamJudge:
    """A judge of a stream's events in order; ``output`` and ``ended`` hold for the whole stream.

    ``ended`` means that a choice has ended, and ``finished`` that all ``answers`` have.
    """

    def __init__(self, answers: int = 1) -> None:
        self.output = False
        self.ended = False
        self._answers, self._ends = answers, set[Any]()
        self.may_be_empty = False
        self._promised = False  # whether the reason of the end promises output
        self._told: int | None = None  # tokens so far, if the server reports them

    def take(self, payload: bytes, event: str = "") -> Judgement:
        """Judge the data of the next event; its ``output`` says whether new output has come."""
        found = judge(answered(payload), event)
        repeats = found.typed is not None and found.typed.whole and self.output
        if found.answer is not None and (repeats or not self._is_new(found.answer)):
            found = found._replace(output=False, texts=() if repeats else found.texts)
        if found.ended and found.answer is not None:
            self.ended = True
            self._ends |= _ended_choices(found.answer)
            self.may_be_empty |= _ended_with(found.answer, _MAY_BE_EMPTY)
            self._promised |= _ended_with(found.answer, _CALLS)
        self.output |= found.output
        return found

    @property
    def finished(self) -> bool:
        return self.ended and len(self._ends) >= self._answers

    def end(self) -> Fault | None:
        """Return why the stream, which has ended without a fault, holds no answer, if it does."""
        idle = self._promised or (self._told == 0 and not self.may_be_empty)
        return None if self.output or (self.ended and not idle) else NO_OUTPUT

    def _is_new(self, answer: Answered) -> bool:
        """Return whether the tokens grow; SGLang's own API repeats the output in every event."""
        before, told = self._told, _reported(answer)
        if told is not None:
            self._told = told
        return answer.meta_info is None or told is None or told > (before or 0)


def _status(*said: Any) -> int | None:
    """Return the first HTTP status of a failure among a server's codes and types."""
    for one in said:
        if isinstance(one, str):
            one = 400 if one.lower() in _REFUSALS else int(one) if _CODE.fullmatch(one) else None
        if type(one) in (int, float) and 400 <= one < 600:
            return int(one)
    return None


def _ended_choices(answer: Answered) -> set[Any]:
    """Return the indices of the choices that have ended; 0 for an answer without choices."""
    ended = {
        choice.index if isinstance(choice.index, int) else 0
        for choice in answer.choices or ()
        if choice.finish_reason
    }
    return ended or {0}


def _error_of(answer: Answered, event: str, named: Typed | None) -> Fault | None:
    """Return the error that an answer reports, under any of the names that servers use."""
    error = answer.error or (named and named.error)
    for choice in answer.choices or ():
        error = error or choice.error
    is_error = ERROR in (answer.object, answer.type, event)
    if not error and (is_error or not (named or _holds_answer(answer))):
        error = answer.message or answer.detail or (ERROR if is_error else None)
    if not error:
        return None
    fields = error if isinstance(error, dict) else {}
    codes = [fields.get(name) for name in ("code", "status", "status_code", "type")]
    codes += [answer.code, answer.status, answer.status_code, answer.type, answer.error_type]
    return Fault(error_text(error)[:MOST_SHOWN], _status(*codes))


def _holds_answer(answer: Answered) -> bool:
    return any((answer.choices, answer.text, answer.output_ids, answer.meta_info, answer.usage))


def _reasons(answer: Answered) -> list[Any]:
    """Return the finish reasons of an answer that has ended."""
    reasons = [choice.finish_reason for choice in answer.choices or () if choice.finish_reason]
    if isinstance(answer.meta_info, dict) and (reason := answer.meta_info.get("finish_reason")):
        reasons.append(reason)
    named = typed(answer)
    return [*reasons, named.reason] if named and named.reason else reasons


def _fault_in(reasons: Sequence[Any]) -> Fault | None:
    for reason in reasons:
        if (fault := reason_fault(reason)) is not None:
            return fault
    return None


def _has_tokens(answer: Answered) -> bool:
    return bool(answer.text or answer.output_ids or (answer.meta_info and _reported(answer)))


def _has_place(answer: Answered) -> bool:
    """Return whether there is a text or message, which may be empty."""
    places = [choice.text if choice.message is None else 0 for choice in answer.choices or ()]
    others = answer.text, answer.output_ids, answer.output, answer.content
    return any(place is not None for place in (*places, *others))


def _ended_with(answer: Answered, kinds: Sequence[str]) -> bool:
    """Return whether an answer has ended for one of these reasons.

    Other ends need a token: a server that stops an answer and reports no token has not run the
    model.
    """
    ends = [one.get("type") if isinstance(one, dict) else one for one in _reasons(answer)]
    return any(str(end).lower() in kinds for end in ends)


def _reported(answer: Answered) -> int | None:
    named = typed(answer)
    told = answer.meta_info or answer.usage or (named and named.usage)
    return output_tokens_in(told) if isinstance(told, dict) else None
