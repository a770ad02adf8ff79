"""The interface of schedulers as tables for the documents, from signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fairbench.core import Request
from fairbench.report.pages.markdown import table
from fairbench.schedulers.base import LocalScheduler, Router, RunningView, Scan, WaitingView
from fairbench.schedulers.views import FleetView

PARTS = (
    ("WaitingView", WaitingView, "the waiting queue, as `select` sees it"),
    ("Scan", Scan, "an iterator over waiting requests, such as `view.match_order()`"),
    ("RunningView", RunningView, "the running batch, `view.running`"),
    ("LocalScheduler", LocalScheduler, "the hooks of a local scheduler; only `select` is required"),
    ("Router", Router, "the hooks of a router; only `route` is required"),
    ("FleetView", FleetView, "the workers, as a router sees them in `setup.fleet`"),
)


def scheduler_interface() -> str:
    """Return a section per class, and one with the fields of a request."""
    sections = [_request(), *(_section(*part) for part in PARTS)]
    return "\n".join(sections)


def _request() -> str:
    """Return the names of a request's fields, then the explanations of its docstring."""
    names = ", ".join(f"`{one.name}`" for one in fields(Request))
    explained = _text(Request).partition("\n\n")[2].replace("``", "`")
    return f"## Request\n\nFields: {names}.\n\n{explained}\n"


def _section(name: str, described: type, summary: str) -> str:
    rows = list(_rows(described))
    lines = table(("name", "meaning"), rows, str)
    return "\n".join((f"## {name}", "", f"{summary[0].upper()}{summary[1:]}.", "", *lines, ""))


def _rows(described: type) -> Iterator[tuple[str, str]]:
    for name, value in vars(described).items():
        if isinstance(value, property):
            yield f"`{name}`", _meaning(value.fget)
        elif inspect.isfunction(value) and not name.startswith("_"):
            yield f"`{name}({_arguments(value)})`", _meaning(value)


def _arguments(function: Any) -> str:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return ", ".join(str(one.replace(annotation=inspect.Parameter.empty)) for one in parameters)


def _meaning(value: Any) -> str:
    """Return the first paragraph of a docstring, as Markdown in one line."""
    return " ".join(_text(value).split("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""
