"""Parameters of a program kind, from the tables of a workload file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from fairbench.errors import unknown_name
from fairbench.errors.validation import explain, validated
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
        return validated(params_class, dict(values))
    except ValidationError as error:
        raise ValueError(explain(error, where)) from None
    except TypeError:
        raise ValueError(f"parameters in {where} are numbers: dates are not allowed") from None
