"""Constraints on outputs: grammars and stop texts, which an engine checks at every step.

An engine compiles and evaluates them in or next to its scheduler process, for the whole batch. A
pattern that backtracks for minutes there stops every client of that engine. Text of unbounded cost
is therefore refused, unless the operator allows it, and other text is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairbench.live.json_errors import Problem, bad_request
from fairbench_serve.fields import Fields

ALLOW_FLAG = "--allow-regex"
# Regular expressions, and grammars, which may contain some and may be ambiguous.
PATTERNS = frozenset({"stop_regex", "regex", "ebnf", "structural_tag"})
# Fields that hold no schema. All others may, whatever an engine calls them.
PROMPTS = frozenset({"prompt", "suffix", "system", "instructions"})
CHECKED = frozenset({"logit_bias", "stop", "stop_regex", "stop_token_ids", "stop_sequences"})
CHECKED |= {"chat_template_kwargs"}
TURNS = frozenset({"messages", "input"})
# The fields of a message or an item that hold no schema. Some templates and engines read a
# message's tools.
TEXTS = frozenset(
    {"role", "content", "tool_calls", "function_call", "reasoning_content", "reasoning", "thinking"}
    | {"name", "refusal", "arguments", "output", "input", "summary", "encrypted_content"}
)

MOST_STOPS = 32
# characters of a stop text; SGLang decodes that much output again at every step
LONGEST_STOP = 256
MOST_STOP_IDS = 128  # vLLM's own limit
MOST_BIASES = 1024  # vLLM's own limit

# values in all schemas of a request together; a text counts one for every 16 characters
MOST_VALUES = 5_000
TEXT_VALUE = 16
MOST_DEPTH = 32
MOST_REPEATS = 10_000  # limit on lengths and counts, which are multiplied if nested
LARGEST_NUMBER = 2**63
ANY_OBJECT = "$$ANY$$"  # SGLang's own word for a schema that allows any object
FORMAT, FORMATS = "response_format", ("text", "json_object", "json_schema")
SCHEMA_TEXTS = frozenset({"json_schema", "structural_tag"})  # these may be JSON in a string
# Levels of a field around its schemas; in a list of tools they are parameters of a tool's function.
WRAPPINGS = {"json_schema": 1, FORMAT: 3}
MOST_WRAPPINGS = 4

# Words in the names of keywords that hold regular expressions or grammars, and their types.
_PATTERN_WORDS = ("pattern", "regex", "grammar", "ebnf", "lark", "structural_tag", "x-guidance")
# Their keys are names that the client chose, not keywords; "mapping" belongs to a discriminator.
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

_OPENINGS = (b"{", b"[", b'"')  # the first byte of a table, a list, and a text that may hold one
_messages = msgspec.json.Decoder(list[Fields])


def check_constraints(given: Fields, *, patterns: bool, where: str = "") -> None:
    """Raise Problem for a constraint that may slow an engine's steps.

    Tables in ``given`` are replaced by their parsed form, so that a repeated key means the same to
    the engine. ``patterns`` is true if the operator allows regular expressions and grammars;
    ``where`` precedes a field's name in a message.
    """
    if not patterns:
        for name in sorted(PATTERNS & given.keys()):
            raise _refused(f"{where}{name}")
    budget = _Budget(patterns)
    for name in sorted(given.keys() - PROMPTS - CHECKED - TURNS):
        _check_field(given, name, budget, f"{where}{name}")
    for name in sorted(given.keys() & TURNS):
        if bytes(memoryview(given[name])[:1]) == b"[":
            _check_turns(given, name, budget)


def _check_field(given: Fields, name: str, budget: _Budget, where: str) -> None:
    """Check the schemas in a field; a number, a switch or a usual text holds none."""
    opening = bytes(memoryview(given[name])[:1])
    if opening not in _OPENINGS and name not in (*SCHEMA_TEXTS, FORMAT):
        return
    value = _decoded(bytes(given[name]), where)
    if not isinstance(value, str):
        given[name] = _raw(value)
    elif value == ANY_OBJECT:
        return
    elif name in SCHEMA_TEXTS:
        value = _decoded(value.encode("utf-8", "surrogatepass"), where)
        given[name] = _raw(msgspec.json.encode(value).decode())
    elif (value := _table_in(value, where)) is None and name != FORMAT:
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if name == FORMAT and kind not in FORMATS:
        budget.check_pattern(f"{where} of type {str(kind)[:64]!r}")
    _Walk(budget, where).schema(value, _Place(-WRAPPINGS.get(name, MOST_WRAPPINGS)))


def _check_turns(given: Fields, turns: str, budget: _Budget) -> None:
    """Check the schemas in messages or items, such as the tools of a system message."""
    messages = _messages.decode(given[turns])
    for message in messages:
        for name in sorted(message.keys() - TEXTS):
            _check_field(message, name, budget, f"{turns}: {name[:64]}")
    if any(message.keys() - TEXTS for message in messages):
        given[turns] = _raw(messages)


def check_stops(stop: str | list[str] | None) -> None:
    """Raise Problem for too many or too long stop texts."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MOST_STOPS or any(len(one) > LONGEST_STOP for one in stops):
        raise bad_request(
            f"stop: must be at most {MOST_STOPS} texts of at most {LONGEST_STOP} characters"
        )


def check_many(name: str, values: object, most: int) -> None:
    """Raise Problem if a list or table has more than ``most`` entries."""
    if isinstance(values, list | dict) and len(values) > most:
        raise bad_request(f"{name}: at most {most} entries")


class _Budget:
    """The remaining budget for the schemas of one request, as a number of values."""

    def __init__(self, patterns: bool) -> None:
        self._patterns = patterns
        self._left = MOST_VALUES

    def spend(self, values: int, where: str) -> None:
        self._left -= values
        if self._left < 0:
            raise bad_request(f"{where}: the schemas have more than {MOST_VALUES} values")

    def check_pattern(self, what: str) -> None:
        """Raise Problem for a regular expression or a grammar, unless they are allowed."""
        if not self._patterns:
            raise _refused(what)


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a value: its level, the tables around it, and how often it may be repeated.

    The references ``within``, each with its table, are being followed already.
    """

    depth: int
    around: tuple[dict[str, Any], ...] = ()
    times: int = 1
    within: frozenset[tuple[int, str]] = frozenset()


@dataclass(eq=False)
class _Walk:
    """A single pass over a value that holds JSON schemas; each reference stands for its target.

    Engines move schemas between levels and spell their keys differently. The whole value is
    therefore walked as if it were itself a schema.
    """

    budget: _Budget
    where: str

    def schema(self, node: Any, place: _Place, levels: int = 1) -> None:
        """Check a schema, or a list of schemas, which is ``levels`` below the place."""
        place = replace(place, depth=place.depth + levels)
        self._count(node, place.depth)
        if isinstance(node, str) and (held := _table_in(node, self.where)) is not None:
            self.schema(held, place, 0)
        if isinstance(node, list):
            for one in node:
                self.schema(one, place)
        if not isinstance(node, dict):
            return
        inner = replace(place, around=(*place.around, node), times=self._times(node, place.times))
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
                self._count(key, 0)
                self.schema(one, place, 2)
        else:
            self.schema(value, place)

    def _times(self, node: Mapping[str, Any], times: int) -> int:
        given = [node[name] for name in _REPEATS if name in node]
        most = max((one for one in given if isinstance(one, int | float)), default=1)
        if most > MOST_REPEATS or times * most > MOST_REPEATS:
            raise bad_request(f"{self.where}: more than {MOST_REPEATS} repetitions")
        return int(times * max(most, 1))

    def _follow(self, name: str, target: Any, place: _Place) -> None:
        """Check the targets of a reference. Which of the tables around is the root is unknown."""
        if target == "#":
            return  # a recursion, which grammars support
        path = str(target).split("/")
        if len(path) != 3 or path[0] != "#" or path[1] not in _DEFINITIONS:
            raise bad_request(
                f"{self.where}: {name}: must be # or a name in #/$defs or #/definitions"
            )
        key = path[2].replace("~1", "/").replace("~0", "~")
        tables = [(n, one.get(path[1])) for n, one in enumerate(place.around)]
        found = [(n, one[key]) for n, one in tables if isinstance(one, dict) and key in one]
        if not found:
            raise bad_request(f"{self.where}: {name}: there is no {str(target)[:64]!r}")
        for n, schema in found:
            around = place.around[: n + 1]
            followed = id(around[-1]), str(target)
            if followed not in place.within:
                within = place.within | {followed}
                self.schema(schema, replace(place, around=around, within=within))

    def _literal(self, value: Any, depth: int) -> None:
        """Count a value that an answer may have, with all that it holds."""
        self._count(value, depth)
        if isinstance(value, dict):
            value = [one for pair in value.items() for one in pair]
        for one in value if isinstance(value, list) else ():
            self._literal(one, depth + 1)

    def _count(self, value: Any, depth: int) -> None:
        """Subtract the size of a value from the budget, without nested values."""
        texts = len(value) // TEXT_VALUE if isinstance(value, str) else 0
        self.budget.spend(1 + texts, self.where)
        if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            raise bad_request(f"{self.where}: a number must fit 64 bits")
        if depth > MOST_DEPTH:
            raise bad_request(f"{self.where}: more than {MOST_DEPTH} levels")


def _table_in(text: str, where: str) -> Any:
    """Return the table or list that a text holds as JSON, None for any other text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except RecursionError:
        raise bad_request(f"{where}: more than {MOST_DEPTH} levels") from None


def _is_pattern(name: Any) -> bool:
    """Return whether a keyword or a type is one of regular expressions or grammars."""
    return isinstance(name, str) and any(word in name.lower() for word in _PATTERN_WORDS)


def _decoded(raw: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise bad_request(f"{where}: must be valid JSON") from None


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _refused(what: str) -> Problem:
    return bad_request(
        f"{what}: regular expressions and grammars are not allowed on this server (the "
        f"operator can allow them with {ALLOW_FLAG})"
    )
