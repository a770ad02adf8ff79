"""Parameters of a program kind, from the tables of a workload file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fairbench.errors import unknown_name
from fairbench.errors.validation import explain
from fairbench.workloads.programs import program_class

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
