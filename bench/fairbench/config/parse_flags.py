"""Declarations of flags, and parsers of their values."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, get_type_hints

from fairbench import workloads
from fairbench.doors import BACKEND_GROUP, registered
from fairbench.errors import TOO_DEEP, UsageError, is_too_deep, unknown_name

COMMON, WORKLOAD, LOAD, SCHEDULER, CLUSTER, SERVERS, OUTPUT, OTHER = PANELS = (
    *("Common options", "Workload", "Load", "Scheduler", "Simulated cluster", "Real servers"),
    *("Output", "Other options"),
)


@dataclass(frozen=True, slots=True)
class Flag:
    """The declaration of a flag; ``flags_of`` adds ``name`` and ``type`` from a table of flags.

    - ``help`` explains the flag, and ``panel`` is the heading above the flag in ``--help``.
    - ``default`` is the default value, or a text that describes the default value.
    - ``key`` names the value that the flag sets: a key of an experiment file, or a name such as
      ``engine.PARAM``, ``backend.KEY`` or ``trace.KEY``. If ``key`` is empty, the flag's name is
      the key. If ``key`` ends with a dot, the flag's name is appended to ``key``.
    """

    help: str
    panel: str = OTHER
    default: Any = ""
    metavar: str | None = None
    key: str = ""
    unit: str = ""
    option: str = ""
    least: int | None = None
    most: int | None = None
    read: Callable[[str, Any], Any] | None = field(default=None, compare=False)
    repeats: bool = False
    axis: bool = False
    name: str = ""
    type: Any = None

    @property
    def text(self) -> str:
        """The flag's help text, followed by its default value."""
        return self.help if self.default == "" else f"{self.help} [default: {self.default}]"

    def but(self, help: str = "", **changes: Any) -> Flag:
        """Return a copy of the flag for another command, with a new help text or new properties."""
        return replace(self, help=help or self.help, **changes)


def flags_of(table: type) -> dict[str, Flag]:
    """Return the flags of a table by name; the table is a TypedDict with ``Annotated`` types."""
    found = {}
    for name, hint in get_type_hints(table, include_extras=True).items():
        flag: Flag = hint.__metadata__[0]
        key = f"{flag.key}{name}" if flag.key == "" or flag.key.endswith(".") else flag.key
        option = flag.option or f"--{name.replace('_', '-')}"
        found[name] = replace(flag, name=name, type=hint.__origin__, key=key, option=option)
    return found


def value_or_default(flags: Mapping[str, Any], table: Mapping[str, Flag], name: str) -> Any:
    """Return the value that the user gave a flag, or else the table's default for the flag."""
    return flags.get(name, table[name].default)


def check_names(flags: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError if a flag is unknown."""
    known = tuple(known)
    for name in flags:
        if name not in known:
            raise unknown_name("flag", name, known)


class PlacedFlags(NamedTuple):
    """Flags, grouped by their target: an experiment file's key, a setting, the backend, a trace."""

    keys: dict[str, Any]
    settings: dict[str, Any]
    backend: dict[str, Any]
    trace: dict[str, Any]


def place_flags(flags: Mapping[str, Any], table: Mapping[str, Flag]) -> PlacedFlags:
    """Group flags by the value that they set; a flag with the value None counts as not given."""
    found = PlacedFlags({}, {}, {}, {})
    for name, declared in table.items():
        group, _, key = declared.key.rpartition(".")
        if flags.get(name) is None:
            continue
        if group == "backend":
            found.backend[key] = flags[name]
        elif group == "trace":
            found.trace[key] = flags[name]
        else:
            (found.settings if group else found.keys)[declared.key] = flags[name]
    return found


SIM = "sim"
ENDPOINT = "endpoint"  # the backend for a server that already runs at --base-url
STARTED = tuple(sorted(name for name in registered(BACKEND_GROUP) if name != ENDPOINT))


def split_commas(flag: str, text: str) -> list[str]:
    """Split a flag's value at commas into words.

    Raises UsageError for an empty word or a repeated word.
    """
    words = [word.strip() for word in text.split(",")]
    if "" in words or len(set(words)) < len(words):
        raise UsageError(f"{flag} {text}: must be different words, separated by commas")
    return words


def values_of(read: Callable[[str], Any]) -> Callable[[str, str], list[Any]]:
    """Return a parser for comma-separated values, each of which ``read`` parses."""

    def values(flag: str, text: str) -> list[Any]:
        try:
            return [read(word) for word in split_commas(flag, text)]
        except ValueError:
            kind = "whole numbers" if read is int else "numbers"
            raise UsageError(f"{flag} {text}: must be {kind}, separated by commas") from None

    return values


def goodput_flag(texts: Iterable[str] | None) -> dict[str, str] | None:
    """Parse the arguments ``[NAME.]LATENCY:TIME`` of ``--goodput`` into a dictionary of times.

    The keys of the dictionary have the form ``[NAME.]LATENCY``. If ``texts`` is None or empty, the
    function returns None. Raises UsageError for an invalid or repeated target.
    """
    given: dict[str, str] = {}
    words = [text.replace(",", " ").split() or [text] for text in texts or ()]
    for word in chain.from_iterable(words):
        key, colon, time = word.partition(":")
        if not (key and colon and time) or key in given:
            shape = "[NAME.]LATENCY:TIME, such as ttft:500ms or gold.e2el:5x, each once"
            raise UsageError(f"--goodput {word}: write {shape}")
        given[key] = time
    return given or None


def split_words(flag: str, text: str | Iterable[str]) -> list[str] | None:
    """Split one or several texts into words as a shell does; raise UsageError for open quotes."""
    texts = [text] if isinstance(text, str) else text
    try:
        return [word for one in texts for word in shlex.split(one)]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def parse_weights(text: str | None) -> dict[str, float] | None:
    """Parse client weights ``NAME=WEIGHT,NAME=WEIGHT``; return None if ``text`` is None.

    Raises UsageError if the text is not of the form ``NAME=WEIGHT``.
    """
    if text is None:
        return None
    pairs = [word.rpartition("=") for word in text.split(",")]
    try:
        # ASCII is enforced, because ``float`` also accepts digits of non-Latin scripts.
        weights = {name.strip(): float(weight.encode("ascii")) for name, _, weight in pairs}
    except ValueError:
        weights = {}
    if "" in weights or len(weights) < len(pairs):
        raise UsageError(f"--weights {text}: write NAME=WEIGHT,NAME=WEIGHT with each NAME once")
    return weights


def weight_flags(weights: Mapping[str, float] | None) -> list[str]:
    """Return the flag ``--weights`` with the given weights, or [] if no weights are given."""
    text = ",".join(f"{name}={weight!r}" for name, weight in (weights or {}).items())
    return ["--weights", text] if text else []


def parse_assignment(text: str) -> tuple[str, Any]:
    """Split ``NAME.PARAM=VALUE``; a VALUE that is not valid TOML is taken as text.

    Raises UsageError if ``text`` is not of the form ``NAME.PARAM=VALUE``.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not re.fullmatch(r"[^.\s]+\.[^\s]+", key):
        raise UsageError(f"--set {text}: write NAME.PARAM=VALUE, such as dlpm.quantum=5000")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except RecursionError:
        raise UsageError(f"--set {key}: {TOO_DEEP}") from None
    except ValueError:
        return key, value
    if is_too_deep(parsed):
        raise UsageError(f"--set {key}: {TOO_DEEP}")
    # In ``NAME.PARAM=VALUE``, a VALUE with a line break could contain another TOML key.
    return key, parsed["value"] if len(parsed) == 1 else value


def parse_assignments(texts: Iterable[str] | None) -> dict[str, Any]:
    """Parse ``--set`` texts; raise UsageError for a text that is not ``NAME.PARAM=VALUE``."""
    return dict(parse_assignment(text) for text in texts or ())


def columns_of(_: str, texts: list[str]) -> dict[str, str]:
    """Parse the values ``FIELD=COLUMN`` of the flag ``--map``.

    Raises UsageError if a value is not of the form ``FIELD=COLUMN``.
    """
    return workloads.trace_reader().parse_map(texts, workloads.NEEDED)


def names_of(flag: str, texts: list[str]) -> dict[str, str]:
    """Parse ``FIELD=NAME`` texts.

    Raises UsageError for a text that is not ``FIELD=NAME``, or for a repeated field.
    """
    names: dict[str, str] = {}
    for text in texts:
        field, _, name = text.partition("=")
        if not field or not name or field in names:
            raise UsageError(f"{flag} {text}: write FIELD=NAME with each FIELD once")
        names[field] = name
    return names
