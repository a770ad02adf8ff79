"""The APIs of servers from the driver's side: how to send a request and to read its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

import msgspec

from fairbench.core import Prompt, Segment
from fairbench.live.driver.fragments import TokenFragments, fragment_of, words_of
from fairbench.live.openai_shapes import Choice, ReportedUsage

# Siblings of a tree send the identical prompt. With equal answers they would share a cached prefix
# that the workload does not have.
TEMPERATURE = 1.0
ABORTED = "abort"  # reasons for which the server gave up an answer
DONE = b"[DONE]"  # the payload that follows the last event


class BadEvent(Exception):
    """The server reported an error in the stream, or sent something that is not an event."""


class Answer(ABC):
    """The answer so far, updated by every event.

    A count is None if the server does not report it. ``queue_s`` is the time from arrival to first
    admission on the server's clock, and ``answer_id`` the server's name for its answer.
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
        """Read an event's payload; return the number of its tokens, as far as known.

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
    """An API at a path: the JSON to send, and an empty answer to be filled by events."""

    path: str

    def body(self, question: Question) -> bytes: ...

    def answer(self) -> Answer: ...


def with_extra(content: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with other fields, which replace fields of the same name; null removes one."""
    merged = {**content, **extra}
    return {name: value for name, value in merged.items() if value is not None}


def rendered(
    segments: Iterable[Segment], outputs: Mapping[str, bytes], fresh: Callable[[Segment], bytes]
) -> list[bytes]:
    """Return each segment as the server produced it, or as ``fresh`` if it is not an output."""
    return [outputs[one.key] if one.key in outputs else fresh(one) for one in segments]


class AskGenerate:
    """Prompts of exact token ids from ``vocab``."""

    path = "/generate"

    def __init__(self, vocab: range, extra: Mapping[str, Any] | None = None) -> None:
        self._fragments = TokenFragments(vocab)
        self._extra = extra or {}

    def body(self, question: Question) -> bytes:
        sampling = {"max_new_tokens": question.max_tokens, "temperature": TEMPERATURE}
        if question.min_tokens is not None:
            sampling["min_new_tokens"] = question.min_tokens
        ids = b",".join(rendered(question.prompt, question.outputs, self._fragments.of))
        content = {
            "input_ids": msgspec.Raw(b"[" + ids + b"]"),
            "sampling_params": sampling,
            "stream": True,
            "routing_key": question.client,
        }
        return msgspec.json.encode(with_extra(content, self._extra))

    def answer(self) -> Answer:
        return GenerateAnswer()


class _Meta(msgspec.Struct):
    id: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    queue_time: float | None = None
    num_retractions: int = 0
    finish_reason: Any = None


class _GenerateEvent(msgspec.Struct):
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: Any = None


_decode_generate = msgspec.json.Decoder(_GenerateEvent).decode


class GenerateAnswer(Answer):
    """An answer whose events repeat the output so far, or add to it if streaming is incremental."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []

    def _read(self, payload: bytes) -> int:
        event = _decode_generate(payload)
        if event.error is not None:
            raise BadEvent(error_text(event.error))
        meta = event.meta_info
        if meta is None:
            raise BadEvent("an event without meta_info")
        check_reason(meta.finish_reason)
        self.answer_id = self.answer_id or str(meta.id or "")
        if self.queue_s is None:  # read only once, because later it grows with every retraction
            self.queue_s = meta.queue_time
        self.input_tokens, self.cached_tokens = meta.prompt_tokens, meta.cached_tokens
        new = meta.completion_tokens - self.output_tokens
        self.output_tokens, self.retractions = meta.completion_tokens, meta.num_retractions
        self.finished = meta.finish_reason is not None
        if len(event.output_ids) == meta.completion_tokens:
            self._ids = event.output_ids
        else:
            self._ids += event.output_ids
        return max(0, new)

    def rendered(self) -> bytes:
        return fragment_of(self._ids)


@dataclass(eq=False)
class _AskOpenAI:
    """The common part of both OpenAI APIs.

    ``most`` is the field for the maximum number of tokens to produce; ``extra`` holds other fields.
    """

    model: str | None
    extra: Mapping[str, Any] = field(default_factory=dict)
    most: str = "max_tokens"

    def answer(self) -> Answer:
        return OpenAIAnswer()

    def _body(self, question: Question, prompt: dict[str, Any]) -> bytes:
        content = prompt | {
            self.most: question.max_tokens,
            "temperature": TEMPERATURE,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.model is not None:
            content["model"] = self.model
        if question.min_tokens is not None:
            content["min_tokens"] = question.min_tokens
        return msgspec.json.encode(with_extra(content, self.extra))


class AskCompletions(_AskOpenAI):
    """The completions API, with the prompt as one text."""

    path = "/v1/completions"

    def body(self, question: Question) -> bytes:
        return self._body(question, {"prompt": _text(question.prompt, question.outputs)})


class AskChat(_AskOpenAI):
    """The chat API: earlier outputs are messages of the assistant, other text is the user's."""

    path = "/v1/chat/completions"

    def body(self, question: Question) -> bytes:
        outputs = question.outputs
        messages = [
            {"role": "assistant" if own else "user", "content": _text(segments, outputs)}
            for own, segments in groupby(question.prompt, key=lambda s: s.key in outputs)
        ]
        return self._body(question, {"messages": messages})


def _text(segments: Iterable[Segment], outputs: Mapping[str, bytes]) -> str:
    return b"".join(rendered(segments, outputs, words_of)).decode()


class _Event(msgspec.Struct):
    id: Any = None
    choices: list[Choice] | None = None
    usage: ReportedUsage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class OpenAIAnswer(Answer):
    """An answer in which an event with text counts as one token until the final usage.

    (If an event has several tokens, the time of each token is unknown.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def _read(self, payload: bytes) -> int:
        event = _decode(payload)
        if event.error is not None:
            raise BadEvent(error_text(event.error))
        self.answer_id = self.answer_id or str(event.id or "")
        new = sum(map(self._take_choice, event.choices or ()))
        self.output_tokens += new
        if event.usage is not None:
            self._take_usage(event.usage)
        return new

    def _take_choice(self, choice: Choice) -> int:
        text, delta = choice.text, choice.delta
        if delta is not None:
            thought = delta.reasoning_content or delta.reasoning
            text = delta.content or (thought if isinstance(thought, str) else None)
        if text:
            self._texts.append(text)
        check_reason(choice.finish_reason)
        self.finished = self.finished or choice.finish_reason is not None
        return 1 if text else 0

    def _take_usage(self, usage: ReportedUsage) -> None:
        self.input_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.output_tokens = usage.completion_tokens or self.output_tokens

    def rendered(self) -> bytes:
        return "".join(self._texts).encode()
