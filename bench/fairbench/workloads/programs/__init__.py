"""The program kinds, by their names in workload files. A new kind is one file and one line here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fairbench.errors import unknown_name
from fairbench.errors.validation import explain
from fairbench.named import Named, imported, named
from fairbench.workloads.programs.base import Program
from fairbench.workloads.programs.user_files import user_kinds

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
    "replay": f"{_HERE}.replay:Replay",
    "session": f"{_HERE}.session:Session",
}


def _bundled(kind: str) -> type[Program]:
    found: type[Program] = imported(_HOMES[kind])
    return found


KINDS: Named[type[Program]] = named(_HOMES, _bundled)


def program_class(kind: str) -> type[Program]:
    """Return the class of a program kind, also a user's. Raises UsageError for an unknown kind."""
    if kind in KINDS:
        return KINDS[kind]
    own = user_kinds(KINDS)
    if kind not in own:
        raise unknown_name("program kind", kind, [*KINDS, *own])
    return own[kind]


Value = bool | int | float | str


def make_params(kind: str, values: Mapping[str, Value], where: str) -> Any:
    """Build the ``Params`` of a kind. Raises ValueError: one line naming ``where`` and the key."""
    params_class = program_class(kind).Params
    names = [field.name for field in fields(params_class)]
    for name in values:
        if name not in names:
            raise ValueError(str(unknown_name(f"parameter in {where}", name, names)))
    try:
        # Through JSON, because strict mode then accepts a table for a dataclass.
        return _adapter(params_class).validate_json(json.dumps(dict(values)), strict=True)
    except ValidationError as error:
        raise ValueError(explain(error, where)) from None
    except TypeError:
        raise ValueError(f"parameters in {where} are numbers: dates are not allowed") from None


@lru_cache(maxsize=32)
def _adapter(params_class: type) -> TypeAdapter[Any]:
    return TypeAdapter(params_class)
