"""The program kinds by name, bundled or defined by users.

To add a bundled kind, write a file with its class and add a line to ``_HOMES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fairbench.errors import UsageError, explain, unknown_name, validated
from fairbench.files.reader import classes_in, files_named
from fairbench.named import Named, imported, named
from fairbench.workloads.programs.base import Program

VARIABLE = "FAIRBENCH_PROGRAMS"


def program_files() -> list[Path]:
    """Return the Python files that the environment variable ``FAIRBENCH_PROGRAMS`` names."""
    return files_named(VARIABLE)


def user_kinds(bundled: Mapping[str, type[Program]]) -> dict[str, type[Program]]:
    """Return the program kinds in the files of ``FAIRBENCH_PROGRAMS``, by name.

    Raises UsageError if a file cannot be run, a kind is incomplete, or two kinds have equal names.
    """
    found: dict[str, type[Program]] = {}
    for path in program_files():
        for _, program in classes_in(path, VARIABLE, Program, "kind"):
            if program.kind in bundled or program.kind in found:
                raise UsageError(
                    f"{path}: the program kind {program.kind!r} exists already; choose another name"
                )
            found[program.kind] = program
    return found


_HERE = "fairbench.workloads.programs"
_HOMES = {
    "tree-of-thought": f"{_HERE}.tree_of_thought:TreeOfThought",
    "judge": f"{_HERE}.judge:Judge",
    "long-qa": f"{_HERE}.long_qa:LongQA",
    "chat": f"{_HERE}.chat:Chat",
    "single": f"{_HERE}.single:Single",
    "tool-use": f"{_HERE}.tool_use:ToolUse",
    "agent": f"{_HERE}.agent:Agent",
    "samples": f"{_HERE}.samples:Samples",
    "replay": f"{_HERE}.replay:ReplayProgram",
    "session": f"{_HERE}.replay:Session",
}


KINDS: Named[type[Program]] = named(_HOMES, lambda kind: imported(_HOMES[kind]))


def program_class(kind: str) -> type[Program]:
    """Return the class that implements a kind of program.

    Raises UsageError for an unknown kind of program.
    """
    if kind in KINDS:
        return KINDS[kind]
    own = user_kinds(KINDS)
    if kind not in own:
        raise unknown_name("program kind", kind, [*KINDS, *own])
    return own[kind]


Value = bool | int | float | str


def make_params(kind: str, values: Mapping[str, Value], where: str) -> Any:
    """Return an object of the class ``Params`` of a program kind.

    Raises ValueError for an invalid parameter; the message names ``where``.
    """
    params_class = program_class(kind).Params
    names = [field.name for field in fields(params_class)]
    for name in values:
        if name not in names:
            raise ValueError(str(unknown_name(f"parameter in {where}", name, names)))
    try:
        return validated(params_class, dict(values))
    except ValidationError as error:
        raise ValueError(explain(error, where)) from None
    except TypeError:
        raise ValueError(f"the parameters in {where} must be numbers, not dates") from None
