"""Schedulers in a user's files: ``FAIRBENCH_SCHEDULERS=mine.py``; ``:`` separates several files.

A variable of the environment and no flag, so that every process of a run knows them: those of a
sweep, emulated workers and SGLang servers.
"""

from __future__ import annotations

import os
from dataclasses import is_dataclass
from inspect import isabstract
from pathlib import Path
from re import fullmatch

from fairbench.errors import UsageError
from fairbench.files.python_file import module_of
from fairbench.schedulers.base import LocalScheduler, Router

VARIABLE = "FAIRBENCH_SCHEDULERS"


def user_files() -> list[Path]:
    """Return the files that the environment variable names, as absolute paths."""
    return [Path(text).resolve() for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]


def schedulers_in(path: Path, base: type[LocalScheduler] | type[Router]) -> dict[str, str]:
    """Return a file's subclasses of ``base``: name -> ``module:class``, ready to import.

    A class without a name that lacks a method is skipped, as a base for other classes. Raises
    UsageError if the file cannot be run or a class is incomplete.
    """
    module = module_of(path, VARIABLE)
    found = {}
    for attribute, value in vars(module).items():
        if not (isinstance(value, type) and issubclass(value, base)):
            continue
        named = isinstance(getattr(value, "name", None), str)
        if value.__module__ != module.__name__ or (isabstract(value) and not named):
            continue
        if lacks := _lacks(value):
            raise UsageError(f"{path}: class {attribute} needs {lacks}")
        found[value.name] = f"{module.__name__}:{attribute}"
    return found


def _lacks(scheduler: type[LocalScheduler] | type[Router]) -> str:
    """Return what a class lacks to be a scheduler, or "" if it is complete."""
    name = getattr(scheduler, "name", None)
    if not isinstance(name, str) or not fullmatch(r"[\w-]+", name):
        return 'a name of letters, digits and -, such as name = "mine"'
    if isabstract(scheduler):
        return f"a method {min(scheduler.__abstractmethods__)}"
    if not is_dataclass(getattr(scheduler, "Params", None)):
        return "a dataclass Params, empty if it has no parameters"
    return ""
