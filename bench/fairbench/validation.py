"""Pydantic's complaints as the one line that fairbench shows."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fairbench.errors import unknown_name

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def explain(error: ValidationError, owner: str = "", known: Iterable[str] = ()) -> str:
    """The first complaint as one line: which key, its value, what is allowed, nearest match.

    ``owner`` goes before the key (``dlpm`` makes ``dlpm.quantum``); ``known`` are the keys that an
    unknown top-level one is compared with.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in ([owner] if owner else []) + list(first["loc"]))
    if first["type"] == "extra_forbidden":
        return str(unknown_name("key", key, known)) if known else f"unknown key {key!r}"
    if first["type"] == "missing":
        return f"{key}: missing"
    where = f"{key} = {first['input']!r}" if first["loc"] else key
    return f"{where}: {_complaint(first)}" if where else _complaint(first)


def _complaint(details: ErrorDetails) -> str:
    message = details["msg"].removeprefix("Input should ").removeprefix("Value error, ")
    message = f"must {message}" if message != details["msg"] and message[:3] == "be " else message
    if details["type"] != "literal_error":
        return message
    choices = re.findall(r"'([^']*)'", details["ctx"]["expected"])
    near = get_close_matches(str(details["input"]), choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"choose from {', '.join(choices)}.{hint}"
