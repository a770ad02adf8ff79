"""The declaration of a flag, and tables of flags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

from fairbench.errors import unknown_name

# The panels of ``--help``, in the order in which it shows them.
COMMON, WORKLOAD, LOAD, SCHEDULER, CLUSTER, SERVERS, OUTPUT, OTHER = PANELS = (
    *("Common options", "Workload", "Load", "Scheduler", "Simulated cluster", "Real servers"),
    *("Output", "Other options"),
)


@dataclass(frozen=True, slots=True)
class Flag:
    """The declaration of a flag; a table gives it its name and its Python type.

    - ``help`` explains it, ``panel`` is where ``--help`` shows it.
    - ``key`` is what it sets: a key of an experiment file, ``engine.PARAM`` or another setting,
      ``backend.KEY``, or ``trace.KEY`` of a trace that is played. The flag's name is the key if
      that is empty, and completes a key that ends with a dot.
    - ``default`` is its default in words, ``unit`` the unit of a number.
    - ``option`` is its name on the command line, ``metavar`` what stands after it there.
    - ``least`` and ``most`` are the lowest and the highest number allowed.
    - ``read`` makes the value of the option's name and text, or texts if it ``repeats``.
    - ``axis`` is whether it takes several values, each of which a sweep runs.
    """

    help: str
    panel: str
    default: str = ""
    metavar: str | None = None
    key: str = ""
    unit: str = ""
    option: str = ""
    least: int | None = None
    most: int | None = None
    read: Callable[[str, Any], Any] | None = None
    repeats: bool = False
    axis: bool = False

    @property
    def text(self) -> str:
        """The help with the default."""
        return f"{self.help} [default: {self.default}]" if self.default else self.help


@dataclass(frozen=True, slots=True)
class Declared:
    """A flag of a table, with its name and its Python type."""

    name: str
    type: Any
    flag: Flag

    @property
    def key(self) -> str:
        """The key that it sets."""
        key = self.flag.key
        return f"{key}{self.name}" if key == "" or key.endswith(".") else key

    @property
    def option(self) -> str:
        """The flag's name on the command line."""
        return self.flag.option or f"--{self.name.replace('_', '-')}"


def flags_of(table: type) -> dict[str, Declared]:
    """Return the flags of a table by name: a TypedDict whose types are ``Annotated`` with one."""
    hints = get_type_hints(table, include_extras=True).items()
    return {name: Declared(name, hint.__origin__, hint.__metadata__[0]) for name, hint in hints}


def check_names(flags: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for an unknown flag."""
    known = tuple(known)
    for name in flags:
        if name not in known:
            raise unknown_name("flag", name, known)


class Placed(NamedTuple):
    """The given flags by what they set: keys of a file, settings, ``[backend]``, a trace."""

    keys: dict[str, Any]
    settings: dict[str, Any]
    backend: dict[str, Any]
    trace: dict[str, Any]


def placed(flags: Mapping[str, Any], table: Mapping[str, Declared]) -> Placed:
    """Sort flags by what they set; None means not given."""
    found = Placed({}, {}, {}, {})
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
