"""Cells of tables from users: which are empty, and which hold a number."""

from __future__ import annotations

import re
from math import isnan
from typing import Any

NOTHING = frozenset({"", "-", "null", "none", "nan", "na", "n/a", "#n/a", "<na>"})
"""Texts, in lower case, that tools write where there is no value."""


_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty: null, NaN, blanks, or a word for missing.

    A name is only missing if it ``is_blank``: somebody may be called None.
    """
    return is_blank(value) or (isinstance(value, str) and value.strip().lower() in NOTHING)


def is_blank(value: Any) -> bool:
    """Return whether a cell is completely empty: null, NaN (not as text), or blanks."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and isnan(value))


def number_of(value: Any) -> int | float | None:
    """Return a number, or a text that is one (``1,000`` too), as a number; None for the rest."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or len(value) > 40 or "_" in value:
        return None
    if _THOUSANDS.fullmatch(value.strip()):
        value = value.replace(",", "")
    try:
        return int(value)
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return None
