"""The APIs of servers from the driver's side: how to send a request and to read its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec

from fairbench.core import Prompt, Segment
from fairbench.live.driver.fragments import TokenFragments, fragment_of, words_of
from fairbench.live.openai_answers import DONE, NO_OUTPUT, Answered, Judgement, StreamJudge
from fairbench.live.openai_shapes import MOST_TOKENS, ReportedUsage, usage_in

# Siblings of a tree send the identical prompt. With equal answers they would share a cached prefix
# that the workload does not have.
TEMPERATURE = 1.0
Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
CUT = "stream cut: it ended without a finish reason and [DONE]"


class BadEvent(Exception):
    """The server reported an error in the stream, or sent something that is not an event."""


class Answer(ABC):
    """The answer so far, updated by every event.

    A count is None if the server does not report it. ``estimated`` is true while the server has not
    reported all tokens of the answer. ``done`` is true after the last event of the stream.
    ``queue_s`` is the time from arrival to first admission on the server's clock, and ``answer_id``
    the server's name for its answer.
    """

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens = 0
        self.estimated = True
        self.queue_s: float | None = None
        self.retractions = 0
        self.answer_id = ""
        self._judge = StreamJudge()
        self.done = False

    def take(self, payload: bytes, event: str = "") -> int:
        """Read the payload of an event with this name; return its number of tokens, if known.

        Raises BadEvent.
        """
        if payload == DONE:
            self.done = True
        if payload in (DONE, b""):
            return 0
        found = self._judge.take(payload, event)
        if self.done and found.fault is not None:
            return 0  # the answer is whole
        if found.answer is None:
            raise BadEvent("not an event of this API")
        if found.fault is not None:
            raise BadEvent(found.fault.text)
        self.answer_id = self.answer_id or str(found.answer.id or "")
        try:
            return self._read(found, found.answer, payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadEvent(f"not an event of this API: {error}") from None

    @property
    def finished(self) -> bool:
        """Whether the stream has announced its end, for a good reason."""
        return self._judge.ended or self.done

    def fault(self) -> str | None:
        """Return why the stream, which has ended, holds no whole answer, if it does not."""
        if not self.finished:
            return CUT
        if self.output_tokens or (self._judge.may_be_empty and self._judge.end() is None):
            return None
        return f"no answer: {NO_OUTPUT.text}"

    @abstractmethod
    def _read(self, found: Judgement, answer: Answered, payload: bytes) -> int:
        """Process an event without a fault. Raises BadEvent or MsgspecError."""

    @abstractmethod
    def rendered(self) -> bytes:
        """Return the output in the form in which later prompts of this API contain the output."""


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
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    queue_time: Seconds | None = None
    num_retractions: Tokens = 0


class GenerateAnswer(Answer):
    """An answer whose events repeat the output so far, or add to it if streaming is incremental."""

    def __init__(self) -> None:
        super().__init__()
        self._ids: list[int] = []

    def _read(self, found: Judgement, answer: Answered, payload: bytes) -> int:
        if answer.meta_info is None:
            raise BadEvent("an event without meta_info")
        meta = msgspec.convert(answer.meta_info, _Meta)
        ids = msgspec.convert(answer.output_ids or [], list[int])
        self.answer_id = self.answer_id or str(meta.id or "")
        if self.queue_s is None:  # read only once, because later it grows with every retraction
            self.queue_s = meta.queue_time
        self.input_tokens, self.cached_tokens = meta.prompt_tokens, meta.cached_tokens
        self.retractions = meta.num_retractions
        total = meta.completion_tokens
        self.estimated = total is None
        if len(ids) == total:
            self._ids = ids
        else:
            self._ids += ids
        if total is None:
            total = len(self._ids) or self.output_tokens + found.output
        new, self.output_tokens = total - self.output_tokens, total
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


class OpenAIAnswer(Answer):
    """An answer in which an event with output counts as one token until a usage counts the tokens.

    (If an event has several tokens, the time of each token is unknown.) Output is text, thoughts
    and calls of tools.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []
        self._events = 0  # events with output
        self._told = 0  # tokens of the output according to the latest usage

    def _read(self, found: Judgement, answer: Answered, payload: bytes) -> int:
        if found.output:
            self._texts += found.texts
            self._events += 1
            self.output_tokens = max(self._told, self._events)
            self.estimated = self._events > self._told
        usage = usage_in(answer.usage, payload)
        if usage is not None:
            self._take(usage)
        return int(found.output)

    def _take(self, usage: ReportedUsage) -> None:
        self.input_tokens = _latest(usage.prompt_tokens, self.input_tokens)
        self.cached_tokens = _latest(usage.cached_tokens, self.cached_tokens)
        if usage.completion_tokens:
            self._told = self.output_tokens = usage.completion_tokens
            self.estimated = self.input_tokens is None

    def rendered(self) -> bytes:
        return "".join(self._texts).encode()


def _latest(told: int | None, before: int | None) -> int | None:
    return before if told is None else told
