"""The exceptions of fairbench, and checks of user input.

FairbenchError
├── UsageError         the user asked for something impossible (exit code 2)
│   └── DataError      a file that the user named cannot be used (exit code 2)
├── ProgramFailed      the cluster refused a request, so its program cannot continue
└── RunFailed          a run or a gate failed (exit code 1)
    └── NotJudged      a gate could not judge a point, because its run failed (exit code 3)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails


class FairbenchError(Exception):
    """The base class of all exceptions in this module."""


class UsageError(FairbenchError):
    """An error for a wrong name, value or combination of settings, with a message of one line.

    ``keys`` names the wrong settings of an experiment; an empty set means "unknown".
    """

    keys: frozenset[str] = frozenset()

    def of(self, *keys: str) -> Self:
        """Set ``keys`` unless the error already has keys, and return the error."""
        self.keys = self.keys or frozenset(keys)
        return self

    def is_of_file(self, flagged: Set[str]) -> bool:
        """Return whether the wrong keys come from a file rather than from the flags ``flagged``."""
        return self.keys.isdisjoint(flagged) if self.keys else not flagged


class DataError(UsageError):
    """An error for a file that cannot be read or has invalid content.

    The message names the file and, if known, the line or key.
    """


class ProgramFailed(FairbenchError):
    """An error of a program (a task of several calls): the cluster refused a call of the program.

    The cluster refuses a request whose tokens exceed the KV memory.
    """


class RunFailed(FairbenchError):
    """An error of a run that started but could not be completed."""


class NotJudged(RunFailed):
    """An error for a check that could not be judged because a run failed."""


class Interrupted(KeyboardInterrupt):
    """An error for a run that a signal has ended.

    The message of ``Interrupted`` names the saved files. ``exit_code`` is the command's exit code,
    which is 128 plus the signal's number.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def about(*keys: str) -> Iterator[None]:
    """Add experiment ``keys`` to a UsageError without keys that the ``with`` block raises."""
    try:
        yield
    except UsageError as error:
        error.of(*keys)
        raise


@contextmanager
def of_file(where: str, known: Iterable[str] = ()) -> Iterator[None]:
    """Turn a ValidationError in the ``with`` block into a DataError that names the file."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        raise DataError(f"{where}: {explain(error, known=known)}") from None


def unknown_name(what: str, name: str, allowed: Iterable[str]) -> UsageError:
    """Return the error for an unknown name, with the allowed names and the nearest match."""
    return UsageError(f"unknown {what} {name!r}: {choose_from(name, sorted(allowed))}")


def choose_from(given: str, names: Sequence[str]) -> str:
    """Return a text with the allowed names, shortened if long, and the nearest match."""
    near = get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if len(", ".join(names)) <= MAX_CHOICES:
        return f"choose from {', '.join(names)}.{hint}"
    shown = get_close_matches(given, names, n=FEW_CHOICES, cutoff=0)
    return f"choose from {', '.join(shown)} and {len(names) - len(shown)} others.{hint}"


# GitHub Actions runs ``::error::text`` at the start of a line, and ``##[error]`` anywhere, as a
# command. Printing a client's name that contains ``::error::`` or ``##[error]`` could therefore run
# a command.
_COMMAND = re.compile(r"(?<!\S)::(?=.*?::)|##(?=\[)")


def printable(text: str) -> str:
    """Return the text with control characters, including line ends, written as escapes.

    Names of clients may contain terminal escape sequences and commands of CI systems. A backslash
    is inserted into each CI command to disable the command.
    """
    if not text.isprintable():
        escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        text = "".join(escaped)
    return _COMMAND.sub(lambda found: f"{found[0][0]}\\{found[0][1]}", text)


def printable_lines(text: str) -> str:
    """Apply ``printable`` to each line of a text, but keep tabs."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


T = TypeVar("T")
# maximum nesting of tables and arrays, so that recursive functions do not overflow the stack
MAX_DEPTH = 32
# An error message prints at most ``MAX_SHOWN`` characters of a wrong value.
MAX_SHOWN = 100
# A message lists all allowed names if they have at most MAX_CHOICES characters in total, and
# otherwise FEW_CHOICES names.
MAX_CHOICES, FEW_CHOICES = 450, 12
TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def is_too_deep(value: Any) -> bool:
    """Return whether the tables and arrays in a value are nested deeper than ``MAX_DEPTH``."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _children(outer)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def validated(shape: type[T], data: Any) -> T:
    """Convert plain data to a dataclass or named tuple, and validate its types.

    Integers may become floats; no other value is converted. Raises pydantic's ValidationError, or
    TypeError for dates and times, which JSON does not have.
    """
    plain: type = shape
    # Pydantic's strict mode accepts an array for a tuple, and a table for a dataclass, only in
    # JSON.
    made: T = adapter_of(plain).validate_json(json.dumps(data), strict=True)
    return made


@cache
def adapter_of(shape: type) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a type; the adapter is cached."""
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def keys_of(error: ValidationError, owner: str = "") -> tuple[str, ...]:
    """Return the experiment's keys whose values caused the first error in ``error``."""
    first = _first(error)
    said = getattr(first.get("ctx", {}).get("error"), "keys", ())
    parts = [str(part) for part in first["loc"]]
    at = ".".join([owner, *parts[:1]] if owner else parts[:1])
    return tuple(said) or ((at,) if at else ())


class Conflict(ValueError):
    """An error for values of an experiment that contradict each other, with the values' keys."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.keys = keys


def _first(error: ValidationError) -> ErrorDetails:
    """Return the error of the first unknown key or, if all keys are known, the first error.

    A mistyped required key causes two errors: an unknown key and a missing key.
    """
    errors = error.errors(include_url=False)
    return next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])


def explain(error: ValidationError, owner: str = "", known: Iterable[str] = ()) -> str:
    """Describe the first validation error in one line.

    The line contains the key, the value, the allowed values and the nearest match. The key follows
    ``owner`` and a dot, as in ``dlpm.quantum`` for the owner ``dlpm``. For an unknown top-level
    key, the nearest match is chosen from the keys ``known``.
    """
    first = _first(error)
    key = ".".join(str(part) for part in ([owner] if owner else []) + list(first["loc"]))
    if first["type"] == "extra_forbidden":
        return str(unknown_name("key", key, known)) if known else f"unknown key {key!r}"
    if first["type"] == "missing":
        return f"{key}: missing"
    where = f"{key} = {shortened(repr(first['input']))}" if first["loc"] else key
    return f"{where}: {complaint(first)}" if where else complaint(first)


def complaint(details: ErrorDetails) -> str:
    """Turn pydantic's error about a value into a rule, such as ``must be greater than 0``."""
    message = details["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
    message = re.sub(r"^(?:Input|String|List|Tuple|Dictionary) should ", "must ", message)
    message = re.sub(r" after validation, not \d+$", "", message)
    known = details["type"] in ("literal_error", "enum")
    expected = details["ctx"]["expected"] if known else message.partition(" is not one of ")[2]
    choices = re.findall(r"'([^']*)'", expected)
    return choose_from(str(details["input"]), choices) if choices else message


def shortened(text: str) -> str:
    """Cut a text to ``MAX_SHOWN`` characters."""
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


@contextmanager
def writing(path: Path, named: str) -> Iterator[None]:
    """Turn an OSError of the ``with`` block into a UsageError about the setting ``named``."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{named} {path}: cannot be written: {error.strerror}") from None
