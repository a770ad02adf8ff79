"""Constraints on outputs: grammars and stop texts, which an engine checks at every step.

An engine compiles and evaluates them in or next to its scheduler process, for the whole batch. A
pattern that backtracks for minutes there stops every client of that engine. Text of unbounded cost
is therefore refused, unless the operator allows it, and other text is limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from fairbench.live.json_errors import Problem, bad_request
from fairbench.live.router.fields import Fields

ALLOW_FLAG = "--allow-regex"
# Regular expressions, and grammars, which may contain some and may be ambiguous.
PATTERNS = frozenset({"stop_regex", "regex", "ebnf", "structural_tag"})
SCHEMAS = frozenset({"json_schema", "response_format", "tools"})

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
PLAIN_FORMATS = ("text", "json_object")
SCHEMA_FORMAT = "json_schema"

_PATTERN_KEYWORDS = ("pattern", "patternProperties")
_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "dependentSchemas")
_VALUES = ("enum", "const", "default", "examples", "required")
_PROSE = ("description", "title", "$comment")
_REPEATS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_DEFINITIONS = ("#/$defs", "#/definitions")


def check_constraints(given: Fields, *, patterns: bool, where: str = "") -> None:
    """Raise Problem for a constraint that may slow an engine's steps.

    Schemas in ``given`` are replaced by their parsed form, so that a repeated key means the same to
    the engine. ``patterns`` is true if the operator allows regular expressions and grammars;
    ``where`` precedes a field's name in a message.
    """
    if not patterns:
        for name in sorted(PATTERNS & given.keys()):
            raise _refused(f"{where}{name}")
    budget = _Budget(patterns)
    for name in sorted(SCHEMAS & given.keys()):
        value = _decoded(bytes(given[name]), f"{where}{name}")
        given[name] = _raw(value)
        if name == "json_schema":
            if value == ANY_OBJECT:
                continue
            if isinstance(value, str):
                value = _decoded(value.encode("utf-8", "surrogatepass"), f"{where}{name}")
                given[name] = _raw(msgspec.json.encode(value).decode())
            schemas: Iterable[Any] = [value]
        elif name == "response_format":
            schemas = _of_format(value, patterns, f"{where}{name}")
        else:
            schemas = _of_tools(value, f"{where}{name}")
        for schema in schemas:
            budget.spend_schema(schema, f"{where}{name}")


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

    def spend_schema(self, schema: Any, where: str) -> None:
        """Count a schema as an engine expands it, with each reference replaced by its target."""
        _Walk(self, schema, where).schema(schema, 0, 1, frozenset({"#"}))

    def spend(self, values: int, where: str) -> None:
        self._left -= values
        if self._left < 0:
            raise bad_request(f"{where}: the schemas have more than {MOST_VALUES} values")

    def check_keyword(self, name: str, where: str) -> None:
        if name in _PATTERN_KEYWORDS and not self._patterns:
            raise _refused(f"{where}: {name}")


@dataclass(eq=False)
class _Walk:
    """A single pass over a JSON schema, beginning at its ``root``."""

    budget: _Budget
    root: Any
    where: str

    def schema(self, node: Any, depth: int, times: int, within: frozenset[str]) -> None:
        """Check a schema, or a list of schemas, that may be repeated ``times`` times.

        ``depth`` is its level below the root. The references ``within`` are being followed already.
        """
        if depth > MOST_DEPTH:
            raise bad_request(f"{self.where}: more than {MOST_DEPTH} levels")
        self._values(node, deep=False)
        if isinstance(node, list):
            for one in node:
                self.schema(one, depth + 1, times, within)
        if not isinstance(node, dict):
            return
        times = self._times(node, times)
        for name, value in node.items():
            self.budget.check_keyword(name, self.where)
            if name == "$ref":
                self._follow(value, depth, times, within)
            elif name in _PROSE:
                continue
            elif name in _VALUES:
                self._values(value)
            elif name in _NAMED_SCHEMAS and isinstance(value, dict):
                for key, one in value.items():
                    self._values(key)
                    self.schema(one, depth + 2, times, within)
            else:
                self.schema(value, depth + 1, times, within)

    def _times(self, node: Mapping[str, Any], times: int) -> int:
        given = [node[name] for name in _REPEATS if name in node]
        numbers = [one for one in given if isinstance(one, int | float)]
        most = max((one for one in numbers if isfinite(one)), default=1)
        if times * most > MOST_REPEATS:
            raise bad_request(f"{self.where}: more than {MOST_REPEATS} repetitions")
        return int(times * max(most, 1))

    def _follow(self, target: Any, depth: int, times: int, within: frozenset[str]) -> None:
        target = target if isinstance(target, str) else ""
        if target in within:
            return  # a recursion, which grammars support
        start, _, name = target.rpartition("/")
        if start not in _DEFINITIONS:
            raise bad_request(
                f"{self.where}: $ref: must be # or a name in #/$defs or #/definitions"
            )
        table = self.root.get(start.removeprefix("#/")) if isinstance(self.root, dict) else None
        name = name.replace("~1", "/").replace("~0", "~")
        found = table.get(name) if isinstance(table, dict) else None
        if found is None:
            raise bad_request(f"{self.where}: $ref: there is no {target[:64]!r}")
        self.schema(found, depth + 1, times, within | {target})

    def _values(self, value: Any, *, deep: bool = True) -> None:
        """Subtract the size of a value from the budget, with all nested values if ``deep``."""
        texts = len(value) // TEXT_VALUE if isinstance(value, str) else 0
        self.budget.spend(1 + texts, self.where)
        if isinstance(value, int | float) and abs(value) > LARGEST_NUMBER:
            raise bad_request(f"{self.where}: a number must fit 64 bits")
        if not deep:
            return
        if isinstance(value, dict):
            value = [one for pair in value.items() for one in pair]
        for one in value if isinstance(value, list) else ():
            self._values(one)


def _of_format(value: Any, patterns: bool, where: str) -> list[Any]:
    """Return the schema in a ``response_format``. Raises Problem for a grammar."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in PLAIN_FORMATS:
        return []
    if kind == SCHEMA_FORMAT:
        inner = value.get(SCHEMA_FORMAT)
        # Clients call the field ``schema``, some engines ``schema_``: both are checked.
        return list(inner.values()) if isinstance(inner, dict) else [inner]
    if not patterns:
        raise _refused(f"{where} of type {str(kind)[:64]!r}")
    return []


def _of_tools(value: Any, where: str) -> list[Any]:
    """Return the parameters of tools, which are schemas of their arguments."""
    if not isinstance(value, list):
        raise bad_request(f"{where}: must be a list of functions")
    functions = [one.get("function", one) if isinstance(one, dict) else one for one in value]
    return [one.get("parameters") for one in functions if isinstance(one, dict)]


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
