"""Texts of prompts: their approximate tokens, and the text of a chat's messages."""

from __future__ import annotations

import json
from typing import Any


def tokens_of(text: str) -> int:
    """Return the approximate number of tokens in a text, as ``ApproximateCounter`` counts them."""
    return max(1, -(-10 * len(text) // 46))  # rounded up, without floats


def text_of(value: Any) -> str:
    """Return the text of a prompt, or the joined texts of a chat's messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_message, value))
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _message(value: Any) -> str:
    if not isinstance(value, dict):
        return f"{text_of(value)}\n"
    content = value.get("content")
    return f"{value.get('role', '')}\n{'' if content is None else text_of(content)}\n"
