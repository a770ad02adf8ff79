"""Program kinds in a user's files: ``FAIRBENCH_PROGRAMS=mine.py``; ``:`` separates files.

A variable of the environment and no flag, so that every process of a run knows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from inspect import isabstract
from pathlib import Path
from re import fullmatch

from fairbench.errors import UsageError
from fairbench.files.python_file import module_of
from fairbench.workloads.programs.base import Program

VARIABLE = "FAIRBENCH_PROGRAMS"


def program_files() -> list[Path]:
    """Return the files that the environment variable names, as absolute paths."""
    return [Path(text).resolve() for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text]


def user_kinds(bundled: Mapping[str, type[Program]]) -> dict[str, type[Program]]:
    """Return the program kinds that those files define, by name.

    Raises UsageError if a file cannot be run, a kind is incomplete, or two kinds have one name.
    """
    found: dict[str, type[Program]] = {}
    for path in program_files():
        for program in _programs_in(path):
            if program.kind in bundled or program.kind in found:
                raise UsageError(
                    f"{path}: the program kind {program.kind!r} exists already; choose another name"
                )
            found[program.kind] = program
    return found


def _programs_in(path: Path) -> Iterator[type[Program]]:
    module = module_of(path, VARIABLE)
    for attribute, value in vars(module).items():
        if not (isinstance(value, type) and issubclass(value, Program)):
            continue
        if value.__module__ != module.__name__ or (isabstract(value) and not _named(value)):
            continue
        if lacks := _lacks(value):
            raise UsageError(f"{path}: class {attribute} needs {lacks}")
        yield value


def _named(program: type[Program]) -> bool:
    return isinstance(getattr(program, "kind", None), str)


def _lacks(program: type[Program]) -> str:
    """Return what a class lacks to be a program kind, or "" if it is complete."""
    if not (_named(program) and fullmatch(r"[\w-]+", program.kind)):
        return 'a kind of letters, digits and -, such as kind = "mine"'
    if isabstract(program):
        return f"a method {min(program.__abstractmethods__)}"
    if not is_dataclass(getattr(program, "Params", None)):
        return "a dataclass Params, empty if it has no parameters"
    return ""
