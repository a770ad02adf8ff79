"""Single cells of traces: names, texts of prompts and identities of blocks."""

from __future__ import annotations

from typing import Any

from fairbench.errors import DataError, shortened
from fairbench.files.json_text import INTEGERS
from fairbench.files.times import is_blank
from fairbench.records.names import given
from fairbench.records.texts import text_of
from fairbench.workloads.traces.rows import ALL, MAX_NAME


def client_name(value: Any, where: str) -> str:
    """Return a client's name, or ``ALL`` for none; numbers are names."""
    if is_blank(value):
        return ALL
    text = str(value).strip() if isinstance(value, str | int | float) else None
    if text is None or len(text) > MAX_NAME:
        raise DataError(f"{where}: client = {shortened(repr(value))}: must be a text or a number")
    return text


def prompt_text(value: Any, where: str) -> str:
    """Return the text of a prompt, or "" for none."""
    if is_blank(value) or value in ("[]", "{}", [], {}):
        return ""
    if not isinstance(value, str | list):
        raise DataError(f"{where}: text = {shortened(repr(value))}: must be a text or messages")
    return text_of(value)


def check_fit(blocks: int, size: int, tokens: int, where: str) -> None:
    """Raise DataError if there are more blocks than the prompt's tokens allow."""
    if blocks > -(-tokens // size):
        raise DataError(
            f"{where}: hash_ids: {blocks} blocks of {size} tokens are more than the "
            f"{tokens} input tokens of the request; give the number of tokens of a block "
            "with --trace-block-size"
        )


def _block_id(value: Any) -> Any:
    """Return an identity as an integer, if the value is one. Raises ValueError for other texts."""
    if isinstance(value, str):
        return int(value, 16 if value.lower().startswith("0x") else 10)
    exact = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if exact else value


def block_ids(value: Any, where: str) -> list[int]:
    """Return block identities: a JSON list, or numbers in CSV separated by spaces or commas.

    Unsigned 64-bit identities are read as the signed numbers with the same bits. Identities may be
    strings or whole floats, because not every tool writes 64-bit integers exactly.
    """
    if given(value) is None:
        return []
    try:
        listed = value if isinstance(value, list) else value.strip("[]").replace(",", " ").split()
        found = [_block_id(one) for one in listed]
        if all(type(one) is int and one in INTEGERS for one in found):
            return [one - 2**64 if one >= 2**63 else one for one in found]
    except (AttributeError, ValueError):
        pass
    raise DataError(f"{where}: hash_ids = {shortened(repr(value))}: must be a list of integers")
