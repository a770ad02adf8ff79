"""Tables of the scheduler interface for the documentation, generated from the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from fairbench.core import Request, Segment
from fairbench.report.pages.markdown import table
from fairbench.schedulers.base import (
    LocalScheduler,
    OptionalHooks,
    Router,
    RunningView,
    Scan,
    WaitingView,
)
from fairbench.schedulers.views import ClientLoad, FleetView, Running, WorkerLoad

# The page on the scheduler interface lists all fields of the classes in ``VALUES``.
VALUES: tuple[type, ...] = (Request, Segment, Running, ClientLoad, WorkerLoad)
ALIASES = {"Prompt": "tuple[Segment, ...]"}
FINAL = re.compile(r"Final\[(.*)\]")
SECTIONS = (
    ("WaitingView", WaitingView, "`select` gets the waiting queue as a `WaitingView`"),
    (
        "Scan",
        Scan,
        "methods such as `view.match_order()` return a `Scan` of waiting requests",
    ),
    ("RunningView", RunningView, "`view.running` is the running batch"),
    (
        "LocalScheduler",
        LocalScheduler,
        "a local scheduler has these hooks; only `select` is required",
    ),
    ("OptionalHooks", OptionalHooks, "a local scheduler may have these further hooks"),
    ("Router", Router, "a router has these hooks; only `route` is required"),
    ("FleetView", FleetView, "a router reads the state of its workers from `setup.fleet`"),
)


def scheduler_interface() -> str:
    """Return the page's sections: one per data class for schedulers, and one per interface."""
    sections = [*map(_values, VALUES), *(_section(*section) for section in SECTIONS)]
    return "\n".join(sections)


def _values(kind: type) -> str:
    """Return a class's fields with their types, and the explanations in the class's docstring."""
    names = " and ".join(", ".join(_fields(kind)).rsplit(", ", 1))
    head, _, explained = _text(kind).replace("``", "`").partition("\n\n")
    told = explained if is_dataclass(kind) else f"{head}\n\n{explained}".strip()
    return f"## {kind.__name__}\n\nA `{kind.__name__}` has the fields {names}.\n\n{told}\n"


def _fields(described: type) -> Iterator[str]:
    for name, kind in inspect.get_annotations(described).items():
        written = FINAL.sub(r"\1", str(getattr(kind, "__forward_arg__", kind)))
        yield f"`{name}: {ALIASES.get(written, written)}`"


def _section(name: str, described: type, summary: str) -> str:
    rows = list(_rows(described))
    lines = table(("name", "type", "meaning"), rows, str)
    return "\n".join((f"## {name}", "", f"{summary[0].upper()}{summary[1:]}.", "", *lines, ""))


def _rows(described: type) -> Iterator[tuple[str, str, str]]:
    for name, value in vars(described).items():
        if isinstance(value, property):
            yield f"`{name}`", _type(value.fget), _meaning(value.fget)
        elif inspect.isfunction(value) and not name.startswith("_"):
            yield f"`{name}({_arguments(value)})`", _type(value), _meaning(value)


def _type(function: Any) -> str:
    kind = str(inspect.get_annotations(function)["return"])
    return "" if kind == "None" else f"`{kind}`".replace("|", "\\|")


def _arguments(function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return ", ".join(str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters)


def _meaning(value: Any) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    return " ".join(_text(value).split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""
