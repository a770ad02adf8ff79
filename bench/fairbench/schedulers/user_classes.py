"""The scheduler classes in a user's file, and what is wrong with them.

A mistake is found when the file is read, before anything runs: a missing part, a misspelt hook, or
a hook that does not take the arguments that it is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError, unknown_name
from fairbench.files.python_file import classes_in
from fairbench.schedulers.base import LocalScheduler, Router

ALIKE = 0.85  # similarity (at most 1) from which on a name counts as a misspelt hook


def schedulers_in(
    path: Path, named_by: str, base: type[LocalScheduler] | type[Router]
) -> dict[str, str]:
    """Return a file's subclasses of ``base``: name -> ``module:class``, ready to import.

    Raises UsageError as ``classes_in`` does, and if a class misspells a hook or gives it other
    parameters.
    """
    found = {}
    for attribute, value in classes_in(path, named_by, base, "name"):
        if wrong := unknown_hook(value, base) or wrong_parameters(value, base):
            raise UsageError(f"{path}: class {attribute}: {wrong}")
        found[value.name] = f"{value.__module__}:{attribute}"
    return found


def unknown_hook(
    scheduler: type[LocalScheduler] | type[Router], base: type[LocalScheduler] | type[Router]
) -> str:
    """Return the error for a public name that resembles a hook of ``base`` but is none, or ""."""
    hooks = {name for name in dir(base) if not name.startswith("_")} | set(base.__annotations__)
    known = {name for one in scheduler.__mro__[1:] for name in vars(one)} | hooks
    for name in vars(scheduler):
        if name.startswith("_") or name in known:
            continue
        near = get_close_matches(name, hooks - vars(scheduler).keys(), n=1, cutoff=ALIKE)
        if near or name.startswith("on_"):
            return f"{unknown_name('hook', name, hooks)} Begin a name of your own with _."
    return ""


def wrong_parameters(
    scheduler: type[LocalScheduler] | type[Router], base: type[LocalScheduler] | type[Router]
) -> str:
    """Return the error for a hook that does not take the arguments of its calls, or ""."""
    made = ("params",) if base is LocalScheduler else ("params", "workers")
    if scheduler.__init__ is object.__init__:
        return f"needs a method __init__(self, {', '.join(made)})"
    passed = {name: tuple(signature(hook).parameters)[1:] for name, hook in _hooks(base)}
    for name, arguments in {"__init__": made, **passed}.items():
        own = getattr(scheduler, name)
        if not isfunction(own):
            continue
        try:
            signature(own).bind(None, *arguments)
        except TypeError:
            wanted, given = ", ".join(("self", *arguments)), ", ".join(signature(own).parameters)
            return f"{name}({given}): must be {name}({wanted})"
    return ""


def _hooks(base: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((n, f) for n, f in vars(base).items() if isfunction(f) and not n.startswith("_"))
