"""Validation of the files of a search, which users may edit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fairbench.errors import DataError, unknown_name
from fairbench.errors.validation import explain

T = TypeVar("T")
NO_MORE = ConfigDict(extra="forbid")
"""The ``__pydantic_config__`` of a dataclass that refuses unknown keys."""


def checked(shape: type[T], data: Any, where: str) -> T:
    """Return ``data`` validated as ``shape``, a dataclass or named tuple of numbers and texts.

    Raises DataError: one line that names ``where``, the key, its value and what is allowed.
    """
    plain: type = shape
    try:
        # Through JSON, because strict mode then accepts a table for a dataclass.
        made: T = _adapter(plain).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise DataError(f"{where}: {explain(error)}") from None
    return made


def one_of(what: str, value: str, allowed: Iterable[str]) -> str:
    """Return the value if it is allowed. Raises ValueError with the nearest match."""
    names = [str(one) for one in allowed]
    if value not in names:
        raise ValueError(str(unknown_name(what, value, names)))
    return value


@cache
def _adapter(shape: type) -> TypeAdapter[Any]:
    return TypeAdapter(shape)
