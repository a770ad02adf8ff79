"""Percentiles of latency that the user chose, in addition to the standard ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairbench.errors import UsageError

KEY = "percentiles"  # of a summary, and of an experiment

ALLOWED = "must be different whole numbers from 1 to 99 with commas between, such as 50,90,95,99"


def parse_percentiles(text: str) -> tuple[int, ...]:
    """Parse ``50,90,99`` as ascending numbers. Raises UsageError for another text."""
    if not isinstance(text, str):  # of a file that someone edited
        raise UsageError(f"{KEY} = {text!r}: {ALLOWED}")
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    ranks = sorted(int(word) for word in words if re.fullmatch(r"[0-9]{1,2}", word))
    if len(set(ranks)) < len(words) or 0 in ranks:
        raise UsageError(f"{KEY} = {text!r}: {ALLOWED}")
    return tuple(ranks)


def written_percentiles(ranks: tuple[int, ...]) -> str:
    """Return the text that ``parse_percentiles`` reads."""
    return ",".join(map(str, ranks))


def chosen_percentiles(summary: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chosen percentiles of a run, or of several combined runs."""
    return parse_percentiles(summary.get(KEY) or "")
