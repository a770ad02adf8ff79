"""The scheduler classes in a user's file, and the checks of these classes.

The checks run when the file is read, before any simulation: a class must have a name and a
constructor, no hook may be misspelt, and each hook must accept the arguments of the host's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError, unknown_name
from fairbench.files.reader import classes_in
from fairbench.schedulers.base import PARTS, LocalScheduler, Router

ALIKE = 0.85  # minimum similarity (0 to 1) to a hook at which a name counts as a misspelt hook


# advice for users' files that import a module that has moved, by the module's old name
MOVED = {
    "fairbench.schedulers.accounts.tenant_trees": (
        "write Counters(..., tenants=params.tenants) with Counters from "
        "fairbench.schedulers.accounts.counters; Credits and WorkerCredits take tenants, too"
    ),
    "fairbench.schedulers.accounts.turns": (
        "import Turns from fairbench.schedulers.accounts.credits"
    ),
}


def schedulers_in(
    path: Path, named_by: str, base: type[LocalScheduler] | type[Router]
) -> dict[str, str]:
    """Return ``module:class`` of a file's subclasses of ``base`` by name, ready to import.

    Raises UsageError as ``classes_in`` does, and for a class with a misspelt hook or a hook with
    wrong parameters.
    """
    found = {}
    try:
        classes = list(classes_in(path, named_by, base, "name"))
    except UsageError as error:
        moved = next((new for old, new in MOVED.items() if repr(old) in str(error)), None)
        raise UsageError(f"{error}; {moved}") if moved else error from error.__cause__
    for attribute, value in classes:
        if wrong := unknown_hook(value, base) or wrong_parameters(value, base):
            raise UsageError(f"{path}: class {attribute}: {wrong}")
        found[value.name] = f"{value.__module__}:{attribute}"
    return found


def unknown_hook(
    scheduler: type[LocalScheduler] | type[Router], base: type[LocalScheduler] | type[Router]
) -> str:
    """Return the error for a public name that resembles a hook of ``base``, or ""."""
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
    """Return the error for a hook that does not accept the host's arguments, or ""."""
    made = ("params",) if base is LocalScheduler else ("params", "workers")
    if scheduler.__init__ is object.__init__:
        return f"needs a method __init__(self, {', '.join(made)})"
    parts = PARTS.items() if base is LocalScheduler else ()
    hooks = (*_hooks(base), *parts)
    passed = {name: tuple(signature(hook).parameters)[1:] for name, hook in hooks}
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
