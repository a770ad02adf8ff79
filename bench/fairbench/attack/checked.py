"""Validation of the files of a search, which users may edit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import ConfigDict, ValidationError

from fairbench.errors import DataError, unknown_name
from fairbench.errors.validation import explain, validated

T = TypeVar("T")
NO_MORE = ConfigDict(extra="forbid")
"""The ``__pydantic_config__`` of a dataclass that refuses unknown keys."""


def checked(shape: type[T], data: Any, where: str) -> T:
    """Return ``data`` validated as ``shape``, a dataclass or named tuple of numbers and texts.

    Raises DataError: one line that names ``where``, the key, its value and what is allowed.
    """
    try:
        return validated(shape, data)
    except ValidationError as error:
        raise DataError(f"{where}: {explain(error)}") from None


def one_of(what: str, value: str, allowed: Iterable[str]) -> str:
    """Return the value if it is allowed. Raises ValueError with the nearest match."""
    names = [str(one) for one in allowed]
    if value not in names:
        raise ValueError(str(unknown_name(what, value, names)))
    return value
