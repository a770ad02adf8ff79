"""The load cap as a parameter of every engine (see ``schedulers.load_cap``)."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import PlainValidator


def _checked(value: Any) -> str | int | None:
    tokens = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value in ("auto", "none", None) or tokens:
        found: str | int | None = value
        return found
    raise ValueError("must be auto, none or a number of tokens above 0")


LoadCapSetting: TypeAlias = Annotated[str | int | None, PlainValidator(_checked)]
