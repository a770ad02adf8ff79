"""Fields of the request bodies of each API, and constraints on outputs such as grammars.

Fields that workers must not receive are refused or removed, and so are numbers that would crash a
worker. If a field is refused because it would be unfair to other clients, the error message states
this reason.

Engines compile and evaluate constraints in their scheduler process for the whole batch, so a
pattern that backtracks for minutes stops all clients. Output constraints of unbounded cost are
refused unless the operator allows them. Constraints of bounded cost are accepted up to a fixed
maximum size.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import msgspec

from fairbench_load.http_server import Problem, bad_request
from fairbench_load.openai import Message

Raw: TypeAlias = msgspec.Raw
Fields: TypeAlias = dict[str, Raw]

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
# Engines store integers such as top_k and seeds in tensors of 32 or 64 bits. An integer beyond 32
# or 64 bits would crash the whole engine.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
# Engines divide logits by the repetition penalty. A penalty such as 1e-40 would give infinite
# logits and NaN probabilities, which crash some samplers.
Scale = Annotated[float, msgspec.Meta(ge=0.01, le=100)]
# A temperature of 1e39 would be infinite in a float32 tensor; near 0, engines decode greedily.
Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]
# In half precision, a top_p far below 1e-6 would become 0, which engines reject.
TopP = Annotated[float, msgspec.Meta(ge=1e-6, le=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
# range of frequency and presence penalties in OpenAI's API, SGLang and vLLM
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
# A logprob_start_len of -1 means in SGLang that no prompt token gets log-probabilities.
LogprobStart = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
# largest allowed absolute value of a logit bias, the same as in OpenAI's API
MOST_BIAS = 100.0
# maximum number of log-probabilities per token, as in OpenAI's API
FewLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]

# The router accepts the fields ``DROPPED``, but does not forward their values: the router sets its
# own values, or engines ignore the fields.
DROPPED = frozenset(
    {"rid", "routing_key", "user", "log_metrics", "no_logs", "metadata", "store", "service_tier"}
    | {"safety_identifier", "prompt_cache_key"}
    # ``stream_interval`` is dropped, because it would change the number of tokens per event.
    | {"stream_interval"}
)
# Clients may write the values of ``INTEGERS`` as floats such as 64.0, which OpenAI's API accepts,
# but engines accept only integers.
INTEGERS = frozenset(
    {"max_tokens", "max_completion_tokens", "min_tokens", "max_new_tokens", "min_new_tokens"}
    | {"max_output_tokens", "max_tool_calls", "priority"}
    | {"n", "best_of", "top_k", "seed", "sampling_seed", "logprobs", "top_logprobs"}
    | {"top_logprobs_num", "logprob_start_len"}
)
_NULL, _FALSE = b"null", b"false"
_NOTHING: Container[object] = (_NULL, _FALSE)
# field values that have no effect, such as priority 0, which is the engines' default
_ABSENT: Mapping[str, Container[object]] = {"priority": (_NULL, _FALSE, b"0")}
STORED = (
    "a worker gives a stored response to any client that knows its id, and no other worker has the "
    "response; send the earlier turns in 'input'"
)
# body fields that are refused as unfair to other clients, each with the text for the error message
UNFAIR = {
    "priority": "a client could put its requests before those of other clients; the operator "
    "orders clients with --weights or --set gateway.priority",
    **dict.fromkeys(("previous_response_id", "conversation", "store"), STORED),
    "background": "an answer that nobody waits for cannot be charged to its client when it ends",
    "best_of": "answers that are thrown away are not in the usage; 'n' returns all answers",
    "use_beam_search": "beams that are thrown away are not in the usage; 'n' returns all answers",
}
_FLOAT_SIGNS, _LONGEST_NUMBER = (b".", b"e", b"E"), 40
_EXACT_FLOAT = 2**53  # up to this number, floats represent all integers exactly

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
    """The object ``sampling_params`` in the body of ``/generate``."""

    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    sampling_seed: Int64 | None = None


class Generate(msgspec.Struct):
    """The fields in the body of ``/generate``."""

    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    stream: bool | None = None
    routing_key: str | None = None
    return_logprob: bool | None = None
    top_logprobs_num: FewLogprobs | None = None
    logprob_start_len: LogprobStart | None = None


class CommonFields(Shared, kw_only=True):
    """Fields that three APIs of OpenAI share; some of these fields may name the client."""

    stream: bool | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    seed: Int64 | None = None
    structured_outputs: dict[str, Any] | None = None


class OpenAI(CommonFields, kw_only=True):
    """Fields common to OpenAI's completions API and chat API."""

    stream_options: dict[str, Any] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None


class RoutedCompletion(OpenAI, kw_only=True):
    """The fields in the body of ``/v1/completions``."""

    prompt: str | list[int | str | list[int]]
    suffix: str | None = None
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: FewLogprobs | None = None


class RoutedChat(OpenAI, kw_only=True):
    """The fields in the body of ``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | FewLogprobs | None = None
    top_logprobs: FewLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class RoutedResponse(CommonFields, kw_only=True):
    """The fields in the body of ``/v1/responses`` that the router reads."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    top_logprobs: FewLogprobs | None = None
    max_tool_calls: Count | None = None
    tools: list[dict[str, Any]] | None = None
    store: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessageTurn(msgspec.Struct):
    """A message in a request body of the Anthropic API ``/v1/messages``."""

    role: str
    content: str | list[dict[str, Any]]


class Metadata(msgspec.Struct):
    """The object ``metadata`` in the body of ``/v1/messages``."""

    user_id: str | None = None


class RoutedMessages(msgspec.Struct, kw_only=True):
    """The fields in the body of ``/v1/messages``."""

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
    """The body of a request to ``/tokenize``: a text, or messages of a chat."""

    prompt: str | None = None
    messages: list[Message] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Detokenize(msgspec.Struct):
    """The fields in the body of ``/detokenize``."""

    tokens: list[int]


def _field_names(body: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(body.__struct_fields__)


# names of the request fields that workers receive, including fields that only the engine reads
SAMPLING = _field_names(Sampling) | {"json_schema", "structural_tag"}
MEDIA = ("image_data", "audio_data", "video_data")
GENERATE = _field_names(Generate) - {"routing_key"} | {
    *("sampling_params", "return_text_in_logprobs", *MEDIA)
}
_CLIENTS = {"safety_identifier", "prompt_cache_key"}
_OPENAI = _field_names(OpenAI) - _CLIENTS | {
    *("model", "logprobs", "response_format", "json_schema", "structural_tag")
}
COMPLETIONS = _OPENAI | {"prompt", "best_of", "echo", "suffix"}
CHAT = _OPENAI | {
    *("messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice"),
    *("parallel_tool_calls", "reasoning_effort", "separate_reasoning", "stream_reasoning"),
    *("chat_template_kwargs", "continue_final_message", "add_generation_prompt"),
}
RESPONSES = _field_names(RoutedResponse) - _CLIENTS - {"n", "store"} | {
    *("model", "include", "include_reasoning", "parallel_tool_calls", "reasoning", "text"),
    *("tool_choice", "truncation"),
}
MESSAGES = _field_names(RoutedMessages) - {"metadata"} | {
    *("model", "tool_choice", "thinking", "output_config")
}
COUNTED = MESSAGES - {"max_tokens", "stop_sequences", "stream", "temperature", "top_k", "top_p"}
TOKENIZE = _field_names(Tokenize) | {
    *("model", "tools", "tool_choice", "reasoning_effort", "return_token_strs"),
    *("add_special_tokens", "add_generation_prompt", "continue_final_message"),
}
DETOKENIZE = _field_names(Detokenize) | {"model", "skip_special_tokens"}


def read_fields(raw: bytes) -> tuple[bytes, Fields]:
    """Return a JSON object as bytes and as a map from field names to raw values.

    Fields in ``INTEGERS`` become integers if they are floats such as 2.0. If a field name occurs
    twice, the last value counts. Raises an error of msgspec if the text is not a JSON object.
    """
    found = _fields.decode(raw)
    integers = {
        name: whole
        for name in INTEGERS & found.keys()
        if (whole := _as_integer(found[name])) is not None
    }
    if not integers:
        return raw, found
    found |= integers
    return msgspec.json.encode(found), found


def passed_on(found: Fields, allowed: frozenset[str], where: str = "") -> Fields:
    """Return the fields of a body that are in ``allowed`` and whose value is not null.

    Fields in ``DROPPED`` and fields with the value null or false are removed. Raises Problem for
    each field that is neither allowed nor removed; the error message puts ``where`` before the
    field's name.
    """
    kept: Fields = {}
    for name, value in found.items():
        if name in allowed:
            if memoryview(value) != _NULL:
                kept[name] = value
        elif name not in DROPPED and memoryview(value) not in _ABSENT.get(name, _NOTHING):
            raise refused_field(name, where)
    return kept


def refused_field(name: str, where: str = "") -> Problem:
    """Return the error for a field that workers must not get, with the reason if known."""
    said = f"{where}{name[:64]!r} is not a field that this router passes on"
    return bad_request(f"{said}: {UNFAIR[name]}" if name in UNFAIR else said)


def _as_integer(value: Raw) -> Raw | None:
    """Convert a float such as 2.0 to an integer; return None if the value is not whole."""
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
    """Raise Problem if a token id in the field ``where`` is outside the model's vocabulary."""
    if not ids or vocab_size is None:
        return
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise bad_request(f"{where}: the model's token ids must be from 0 to {vocab_size - 1}")


def check_bias(bias: Mapping[str, float] | None, vocab_size: int | None) -> None:
    """Raise Problem if ``logit_bias`` contains an invalid token id or a value above the limit."""
    try:
        check_ids([int(name) for name in bias or ()], vocab_size, "logit_bias")
    except ValueError:
        raise bad_request("logit_bias: keys must be token ids") from None
    if any(abs(value) > MOST_BIAS for value in (bias or {}).values()):
        raise bad_request(f"logit_bias: values must be from -{MOST_BIAS:.0f} to {MOST_BIAS:.0f}")


def check_template_kwargs(values: Mapping[str, object] | None) -> None:
    """Raise Problem if an argument of the chat template is a list, an object or a template."""
    for name, value in (values or {}).items():
        if name == "chat_template" or isinstance(value, list | dict):
            raise bad_request(
                f"chat_template_kwargs: {name[:64]!r} must be true, false, a number or a string"
            )


ALLOW_FLAG = "--allow-regex"
# request fields that may contain a regular expression, alone or inside a grammar
PATTERNS = frozenset({"stop_regex", "regex", "ebnf", "structural_tag"})
# fields that contain no JSON schema in any engine
PROMPTS = frozenset({"prompt", "suffix", "system", "instructions"})
CHECKED = frozenset({"logit_bias", "stop", "stop_regex", "stop_token_ids", "stop_sequences"})
CHECKED |= {"chat_template_kwargs"}
TURNS = frozenset({"messages", "input"})
# fields of a message or item that need no check, because they contain no JSON schemas; "tools" is
# missing, because some chat templates and engines read schemas in this field
TEXTS = frozenset(
    {"role", "content", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}
    | {"name", "refusal", "arguments", "output", "input", "summary", "encrypted_content"}
)

MOST_STOPS = 32
# maximum number of characters of a stop text, which SGLang decodes again at each step
LONGEST_STOP = 256
MOST_STOP_IDS = 128  # maximum number of stop token ids, as in vLLM
MOST_BIASES = 1024  # maximum number of entries of ``logit_bias``, as in vLLM

# maximum number of JSON values in a request's schemas
MOST_VALUES = 5_000
TEXT_VALUE = 16  # A text counts as one additional JSON value for every 16 characters.
MOST_DEPTH = 32  # maximum number of nested levels of a schema
# maximum number of repetitions in a schema; the numbers of nested repetitions are multiplied
MOST_REPEATS = 10_000
LARGEST_NUMBER = 2**63  # largest allowed absolute value of a number in a schema
ANY_OBJECT = "$$ANY$$"  # schema with which SGLang allows any JSON object
FORMAT, FORMATS = "response_format", ("text", "json_object", "json_schema")
# fields that may contain JSON as a string
SCHEMA_TEXTS = frozenset({"json_schema", "structural_tag"})
# maximum number of JSON levels around the schema in a field; other fields use ``MOST_WRAPPINGS``
WRAPPINGS = {"json_schema": 1, FORMAT: 3}
MOST_WRAPPINGS = 4

# parts of the names of schema keywords and types whose values are regular expressions or grammars
_PATTERN_WORDS = ("pattern", "regex", "grammar", "ebnf", "lark", "structural_tag", "x-guidance")
# schema keywords whose value is an object with freely chosen keys
_NAMED_SCHEMAS = (
    *("properties", "$defs", "definitions", "dependentSchemas", "dependentRequired"),
    *("dependencies", "patternProperties", "mapping"),
)
_VALUES = ("enum", "const", "default", "examples", "required")
_PROSE = ("description", "title", "$comment")
_REPEATS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DEFINITIONS = ("$defs", "definitions")

_OPENINGS = (b"{", b"[", b'"')  # first bytes of a JSON object, list or string
_messages = msgspec.json.Decoder(list[Fields])


def check_constraints(given: Fields, *, patterns: bool, where: str = "") -> None:
    """Raise Problem for a constraint that may slow the steps of an engine.

    Duplicate keys are removed from JSON objects in ``given`` (a request's fields), because engines
    choose different values of a duplicate key. ``patterns`` says whether the operator allows
    regular expressions and grammars. Error messages put ``where`` before a field's name.
    """
    if not patterns:
        for name in sorted(PATTERNS & given.keys()):
            raise _pattern_refused(f"{where}{name}")
    budget = _Budget(patterns)
    for name in sorted(given.keys() - PROMPTS - CHECKED - TURNS):
        _check_field(given, name, budget, f"{where}{name}")
    for name in sorted(given.keys() & TURNS):
        if bytes(memoryview(given[name])[:1]) != b"[":
            continue
        messages = _messages.decode(given[name])
        unchecked = [sorted(message.keys() - TEXTS) for message in messages]
        for message, own in zip(messages, unchecked, strict=True):
            for key in own:
                _check_field(message, key, budget, f"{name}: {key[:64]}")
        if any(unchecked):
            given[name] = encoded(messages)


def _check_field(given: Fields, name: str, budget: _Budget, where: str) -> None:
    opening = bytes(memoryview(given[name])[:1])
    if opening not in _OPENINGS and name not in (*SCHEMA_TEXTS, FORMAT):
        return
    value = _decoded(bytes(given[name]), where)
    if not isinstance(value, str):
        given[name] = encoded(value)
    elif value == ANY_OBJECT:
        return
    elif name in SCHEMA_TEXTS:
        value = _decoded(value.encode("utf-8", "surrogatepass"), where)
        given[name] = encoded(msgspec.json.encode(value).decode())
    elif (value := _table_in(value, where)) is None and name != FORMAT:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if name == FORMAT and kind not in FORMATS:
        budget.check_pattern(f"{where} of type {str(kind)[:64]!r}")
    _Walk(budget, where).schema(value, _Place(-WRAPPINGS.get(name, MOST_WRAPPINGS)))


def check_stops(stop: str | list[str] | None) -> None:
    """Raise Problem if there are too many stop texts or a stop text is too long."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MOST_STOPS or any(len(one) > LONGEST_STOP for one in stops):
        raise bad_request(
            f"stop: must be at most {MOST_STOPS} strings of at most {LONGEST_STOP} characters"
        )


def check_many(name: str, values: object, most: int) -> None:
    """Raise Problem if a list or dictionary has more than ``most`` entries."""
    if isinstance(values, list | dict) and len(values) > most:
        raise bad_request(f"{name}: must have at most {most} entries")


class _Budget:
    """The number of JSON values that the schemas of a request may still contain."""

    def __init__(self, patterns: bool) -> None:
        self._patterns = patterns
        self._left = MOST_VALUES

    def spend(self, values: int, where: str) -> None:
        self._left -= values
        if self._left < 0:
            raise bad_request(f"{where}: the schemas have more than {MOST_VALUES} values")

    def check_pattern(self, what: str) -> None:
        """Raise Problem for a regular expression or grammar, unless the operator allows them."""
        if not self._patterns:
            raise _pattern_refused(what)


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a JSON value: its depth, its enclosing objects, and how often it is repeated.

    ``within`` holds the JSON references that lead to the position. Each has the id of the object
    that defines its target.
    """

    depth: int
    around: tuple[dict[str, Any], ...] = ()
    times: int = 1
    within: frozenset[tuple[int, str]] = frozenset()


@dataclass(eq=False)
class _Walk:
    """A check of the JSON schemas in a value, including schemas to which references point.

    Every part of the JSON value is checked like a schema, because engines may move schemas to other
    levels and accept other spellings of keys.
    """

    budget: _Budget
    where: str

    def schema(self, node: Any, place: _Place, levels: int = 1) -> None:
        """Check a schema or a list of schemas that is ``levels`` levels below ``place``."""
        place = replace(place, depth=place.depth + levels)
        self._charge_size(node, place.depth)
        if isinstance(node, str) and (held := _table_in(node, self.where)) is not None:
            self.schema(held, place, 0)
        if isinstance(node, list):
            for one in node:
                self.schema(one, place)
        if not isinstance(node, dict):
            return
        inner = replace(
            place, around=(*place.around, node), times=self._repetitions(node, place.times)
        )
        if _is_pattern(node.get("type")):
            self.budget.check_pattern(f"{self.where}: type {node['type'][:64]!r}")
        for name, value in node.items():
            if _is_pattern(name) and value is not None:
                self.budget.check_pattern(f"{self.where}: {name[:64]}")
            self._keyword(name, value, inner)

    def _keyword(self, name: str, value: Any, place: _Place) -> None:
        if name in _REFERENCES:
            self._follow(name, value, place)
        elif name in _PROSE and isinstance(value, str):
            return
        elif name in _VALUES:
            self._literal(value, place.depth + 1)
        elif name in _NAMED_SCHEMAS and isinstance(value, dict):
            for key, one in value.items():
                self._charge_size(key, 0)
                self.schema(one, place, 2)
        else:
            self.schema(value, place)

    def _repetitions(self, node: Mapping[str, Any], times: int) -> int:
        given = [node[name] for name in _REPEATS if name in node]
        most = max((one for one in given if isinstance(one, int | float)), default=1)
        if most > MOST_REPEATS or times * most > MOST_REPEATS:
            raise bad_request(f"{self.where}: must allow at most {MOST_REPEATS} repetitions")
        return int(times * max(most, 1))

    def _follow(self, name: str, target: Any, place: _Place) -> None:
        """Check every possible target of a reference, because the root of the schema is unknown."""
        if target == "#":
            return  # allowed: grammars support "#", a reference to the whole schema
        path = str(target).split("/")
        if len(path) != 3 or path[0] != "#" or path[1] not in _DEFINITIONS:
            raise bad_request(
                f"{self.where}: {name}: must be '#', '#/$defs/NAME' or '#/definitions/NAME'"
            )
        key = path[2].replace("~1", "/").replace("~0", "~")
        tables = [(n, one.get(path[1])) for n, one in enumerate(place.around)]
        found = [(n, one[key]) for n, one in tables if isinstance(one, dict) and key in one]
        if not found:
            raise bad_request(
                f"{self.where}: {name}: {str(target)[:64]!r} is not defined in this schema"
            )
        for n, schema in found:
            around = place.around[: n + 1]
            followed = id(around[-1]), str(target)
            if followed not in place.within:
                within = place.within | {followed}
                self.schema(schema, replace(place, around=around, within=within))

    def _literal(self, value: Any, depth: int) -> None:
        self._charge_size(value, depth)
        if isinstance(value, dict):
            value = [one for pair in value.items() for one in pair]
        for one in value if isinstance(value, list) else ():
            self._literal(one, depth + 1)

    def _charge_size(self, value: Any, depth: int) -> None:
        texts = len(value) // TEXT_VALUE if isinstance(value, str) else 0
        self.budget.spend(1 + texts, self.where)
        if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            raise bad_request(f"{self.where}: a number must fit into 64 bits")
        if depth > MOST_DEPTH:
            raise bad_request(f"{self.where}: nested more than {MOST_DEPTH} levels deep")


def _table_in(text: str, where: str) -> Any:
    """Return the object or list that a text contains as JSON, or None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except RecursionError:
        raise bad_request(f"{where}: nested more than {MOST_DEPTH} levels deep") from None


def _is_pattern(name: Any) -> bool:
    return isinstance(name, str) and any(word in name.lower() for word in _PATTERN_WORDS)


def _decoded(raw: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise bad_request(f"{where}: must be valid JSON") from None


def encoded(value: Any) -> msgspec.Raw:
    """Return a value as encoded JSON."""
    return msgspec.Raw(msgspec.json.encode(value))


def _pattern_refused(what: str) -> Problem:
    return bad_request(
        f"{what}: regular expressions and grammars are not allowed on this server (the "
        f"operator can allow them with {ALLOW_FLAG})"
    )
