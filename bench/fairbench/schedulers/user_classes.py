"""The scheduler classes in a user's file, and what is wrong with them.

A mistake is found when the file is read, before anything runs: a missing part, a misspelt hook, a
hook that does not take what its host passes, and a source of time or chance.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from difflib import get_close_matches
from inspect import getsource, isabstract, isfunction, signature
from pathlib import Path
from re import fullmatch
from types import ModuleType
from typing import Any

from fairbench.errors import UsageError, unknown_name
from fairbench.files.python_file import module_of
from fairbench.schedulers.base import LocalScheduler, Router

ALIKE = 0.85  # of 1: a name that is so similar to a hook's is a misspelt hook
IMPURE = frozenset(("asyncio", "datetime", "numpy.random", "random", "secrets", "time"))


def classes_in(
    path: Path, variable: str, base: type[LocalScheduler] | type[Router]
) -> dict[str, str]:
    """Return a file's subclasses of ``base``: name -> ``module:class``, ready to import.

    A class without a name that lacks a method is skipped, as a base for other classes. Raises
    UsageError if the file cannot be run, or if a class is incomplete, misspells a hook, gives one
    wrong parameters, or uses a clock or a random source. ``variable`` named the file.
    """
    module = module_of(path, variable)
    found = {}
    for attribute, value in vars(module).items():
        if not (isinstance(value, type) and issubclass(value, base)):
            continue
        named = isinstance(getattr(value, "name", None), str)
        if value.__module__ != module.__name__ or (isabstract(value) and not named):
            continue
        if lacks := _lacks(value):
            raise UsageError(f"{path}: class {attribute} needs {lacks}")
        wrong = unknown_hook(value, base) or wrong_parameters(value, base)
        if wrong := wrong or _impure(attribute, module):
            raise UsageError(f"{path}: class {attribute}: {wrong}")
        found[value.name] = f"{module.__name__}:{attribute}"
    return found


def _impure(attribute: str, module: ModuleType) -> str:
    """Return the error for a class that uses a clock or a random source, or ""."""
    tree = ast.parse(getsource(module))
    names = dict(_imported(tree))
    body = next((one for one in tree.body if getattr(one, "name", "") == attribute), tree)
    for node in ast.walk(body):
        if isinstance(node, ast.Name) and names.get(node.id) in IMPURE:
            return (
                f"line {node.lineno} uses {names[node.id]}, but a scheduler reads no clock and no "
                "random source, so that a seed gives the same run again; now_s is the time"
            )
    return ""


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name with its module, for ``from A import B`` A or the module ``A.B``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                yield one.asname or one.name, inner if inner in IMPURE else node.module


def _lacks(scheduler: type[LocalScheduler] | type[Router]) -> str:
    """Return the missing parts of a scheduler class, or "" if it is complete."""
    name = getattr(scheduler, "name", None)
    if not isinstance(name, str) or not fullmatch(r"[\w-]+", name):
        return 'a name of letters, digits and -, such as name = "mine"'
    if isabstract(scheduler):
        return f"a method {min(scheduler.__abstractmethods__)}"
    if not is_dataclass(getattr(scheduler, "Params", None)):
        return "a dataclass Params, empty if it has no parameters"
    return ""


def unknown_hook(
    scheduler: type[LocalScheduler] | type[Router], base: type[LocalScheduler] | type[Router]
) -> str:
    """Return the error for a public name that looks like a hook of ``base`` and is none, or ""."""
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
    """Return the error for a hook that does not take what its host passes, or ""."""
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
