"""Fields of each API's body: the types that a router reads, and the fields sent to a worker.

Other fields are refused or dropped. Counts are checked for values that would crash a worker. The
error for some fields says why they cannot be fair.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from fairbench.live.json_errors import Problem, bad_request
from fairbench.live.openai_shapes import Message

Raw: TypeAlias = msgspec.Raw
Fields: TypeAlias = dict[str, Raw]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
# Engines put these into tensors of fixed width: a larger number ends the process, not only the
# request.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Logits are divided by the temperature, and then exponentiated: 1e-40 makes them infinite, and
# probabilities NaN, which crashes some samplers.
Scale = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
# A float32 tensor makes 1e39 infinite. Engines take temperatures near 0 for greedy decoding.
Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
# Engines refuse 0; a smaller number is 0 in a tensor of half precision.
TopP = Annotated[float, msgspec.Meta(ge=1e-6, le=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]  # OpenAI's, SGLang's and vLLM's own limits
LogprobStart = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]  # -1 means no prompt token
MOST_BIAS = 100.0  # OpenAI's own limit; 1e39 is infinite in a tensor
FewLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]  # OpenAI's own limit

# Accepted and not passed on: names that the router sets itself, and fields without meaning to
# engines.
DROPPED = frozenset(
    {"rid", "routing_key", "user", "log_metrics", "no_logs", "metadata", "store", "service_tier"}
    | {"safety_identifier", "prompt_cache_key"}
    # The events of a stream tell how much has been produced.
    | {"stream_interval"}
)
# Integers that engines put into tensors or compare with them: OpenAI accepts 64.0 for 64.
INTEGERS = frozenset(
    {"max_tokens", "max_completion_tokens", "min_tokens", "max_new_tokens", "min_new_tokens"}
    | {"max_output_tokens", "max_tool_calls", "priority"}
    | {"n", "best_of", "top_k", "seed", "sampling_seed", "logprobs", "top_logprobs"}
    | {"top_logprobs_num", "logprob_start_len"}
)
_NULL, _FALSE = b"null", b"false"
_NOTHING: Container[object] = (_NULL, _FALSE)
# Other values without a meaning: a request without a priority has 0 in every engine.
_ABSENT: Mapping[str, Container[object]] = {"priority": (_NULL, _FALSE, b"0")}
STORED = (
    "a worker keeps stored responses for whoever knows their id, and no other worker has them; "
    "send the earlier turns in 'input'"
)
# Why a field that some engines have is not fair between clients.
UNFAIR = {
    "priority": "a client could put its requests before those of other clients; the operator "
    "orders clients with --weights or --set gateway.priority",
    **dict.fromkeys(("previous_response_id", "conversation", "store"), STORED),
    "background": "an answer that nobody waits for cannot be charged to its client when it ends",
    "best_of": "answers that are generated and thrown away are in no usage; 'n' returns them",
    "use_beam_search": "beams that are thrown away are in no usage; 'n' returns several answers",
}
_FLOAT_SIGNS, _LONGEST_NUMBER = (b".", b"e", b"E"), 40
_EXACT_FLOAT = 2**53  # a larger float is not an exact integer

_fields = msgspec.json.Decoder(Fields)


class Shared(msgspec.Struct, kw_only=True):
    """Sampling parameters that have the same name in every API."""

    n: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Int32 | None = None
    min_p: Share | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Scale | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    regex: str | None = None
    ebnf: str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    spaces_between_special_tokens: bool | None = None


class Sampling(Shared, kw_only=True):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    sampling_seed: Int64 | None = None


class Generate(msgspec.Struct):
    """``/generate``."""

    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    stream: bool | None = None
    routing_key: str | None = None
    return_logprob: bool | None = None
    top_logprobs_num: FewLogprobs | None = None
    logprob_start_len: LogprobStart | None = None


class Named(Shared, kw_only=True):
    """The fields common to OpenAI's three APIs, with those that may name the client."""

    stream: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    seed: Int64 | None = None
    structured_outputs: dict[str, Any] | None = None


class OpenAI(Named, kw_only=True):
    """The fields common to OpenAI's two older APIs."""

    stream_options: dict[str, Any] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None


class RoutedCompletion(OpenAI, kw_only=True):
    """``/v1/completions``."""

    prompt: str | list[int | str | list[int]]
    suffix: str | None = None
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: FewLogprobs | None = None


class RoutedChat(OpenAI, kw_only=True):
    """``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | FewLogprobs | None = None
    top_logprobs: FewLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class RoutedResponse(Named, kw_only=True):
    """``/v1/responses``; ``store`` and ``background`` are never passed on."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    top_logprobs: FewLogprobs | None = None
    max_tool_calls: Count | None = None
    tools: list[dict[str, Any]] | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessageTurn(msgspec.Struct):
    """A turn of ``/v1/messages``."""

    role: str
    content: str | list[dict[str, Any]]


class Metadata(msgspec.Struct):
    """``metadata`` of ``/v1/messages``."""

    user_id: str | None = None


class RoutedMessages(msgspec.Struct, kw_only=True):
    """``/v1/messages``."""

    messages: list[MessageTurn]
    max_tokens: Count | None = None
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_k: Int32 | None = None
    top_p: TopP | None = None
    tools: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Tokenize(msgspec.Struct):
    """``/tokenize``: a text, or messages as for a chat."""

    prompt: str | None = None
    messages: list[Message] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Detokenize(msgspec.Struct):
    """``/detokenize``."""

    tokens: list[int]


def _named(body: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(body.__struct_fields__)


# Fields that are passed on: the fields that are read here, and others that engines know.
SAMPLING = _named(Sampling) | {"json_schema", "structural_tag"}
MEDIA = ("image_data", "audio_data", "video_data")
GENERATE = _named(Generate) - {"routing_key"} | {
    *("sampling_params", "return_text_in_logprobs", *MEDIA)
}
_CLIENTS = {"safety_identifier", "prompt_cache_key"}
_OPENAI = _named(OpenAI) - _CLIENTS | {
    *("model", "logprobs", "response_format", "json_schema", "structural_tag")
}
COMPLETIONS = _OPENAI | {"prompt", "best_of", "echo", "suffix"}
CHAT = _OPENAI | {
    *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"),
    *("parallel_tool_calls", "reasoning_effort", "separate_reasoning", "stream_reasoning"),
    *("chat_template_kwargs", "continue_final_message", "add_generation_prompt"),
}
RESPONSES = _named(RoutedResponse) - _CLIENTS - {"n", "store"} | {
    *("model", "include", "include_reasoning", "parallel_tool_calls", "reasoning", "text"),
    *("tool_choice", "truncation"),
}
MESSAGES = _named(RoutedMessages) - {"metadata"} | {
    *("model", "tool_choice", "thinking", "output_config")
}
COUNTED = MESSAGES - {"max_tokens", "stop_sequences", "stream", "temperature", "top_k", "top_p"}
TOKENIZE = _named(Tokenize) | {
    *("model", "tools", "tool_choice", "reasoning_effort", "return_token_strs"),
    *("add_special_tokens", "add_generation_prompt", "continue_final_message"),
}
DETOKENIZE = _named(Detokenize) | {"model", "skip_special_tokens"}


def read_fields(raw: bytes) -> tuple[bytes, Fields]:
    """Return a JSON object and its fields, each once.

    Both are as written, except that integers written as floats become integers. Raises msgspec's
    errors if the text is not an object.
    """
    found = _fields.decode(raw)
    integers = {
        name: whole
        for name in INTEGERS & found.keys()
        if (whole := _whole(found[name])) is not None
    }
    if not integers:
        return raw, found
    found |= integers
    return msgspec.json.encode(found), found


def passed_on(found: Fields, allowed: frozenset[str], where: str = "") -> Fields:
    """Return the ``allowed`` fields for a worker, without nulls, which have no meaning.

    Other fields are dropped if they are null, false or in ``DROPPED``. Raises Problem for all other
    fields, with ``where`` before the field's name.
    """
    kept: Fields = {}
    for name, value in found.items():
        if name in allowed:
            if memoryview(value) != _NULL:
                kept[name] = value
        elif name not in DROPPED and memoryview(value) not in _ABSENT.get(name, _NOTHING):
            raise refused(name, where)
    return kept


def refused(name: str, where: str = "") -> Problem:
    """Return the error for a field that is not passed on, with the reason if it is unfair."""
    said = f"{where}{name[:64]!r} is not a field that this router passes on"
    return bad_request(f"{said}: {UNFAIR[name]}" if name in UNFAIR else said)


def _whole(value: Raw) -> Raw | None:
    """Return the integer written as a float, or None if the value is not an integer."""
    text = bytes(value) if len(memoryview(value)) <= _LONGEST_NUMBER else b""
    if not any(sign in text for sign in _FLOAT_SIGNS):
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    exact = number.is_integer() and abs(number) <= _EXACT_FLOAT
    return Raw(b"%d" % int(number)) if exact else None


def check_ids(ids: range | list[int], vocab_size: int | None, where: str) -> None:
    """Raise Problem, naming the field ``where``, for token ids outside a known vocabulary."""
    if not ids or vocab_size is None:
        return
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise bad_request(
            f"{where}: token ids must be from 0 to {vocab_size - 1}, the model's vocabulary"
        )


def check_bias(bias: Mapping[str, float] | None, vocab_size: int | None) -> None:
    """Raise Problem for a ``logit_bias`` with an invalid token or a too large value."""
    try:
        check_ids([int(name) for name in bias or ()], vocab_size, "logit_bias")
    except ValueError:
        raise bad_request("logit_bias: keys must be token ids") from None
    if any(abs(value) > MOST_BIAS for value in (bias or {}).values()):
        raise bad_request(f"logit_bias: values must be from -{MOST_BIAS:.0f} to {MOST_BIAS:.0f}")


def check_template_kwargs(values: Mapping[str, object] | None) -> None:
    """Raise Problem unless all values are switches; the template runs in the worker."""
    for name, value in (values or {}).items():
        if name == "chat_template" or isinstance(value, list | dict):
            raise bad_request(f"chat_template_kwargs: {name[:64]!r} is not a switch")
