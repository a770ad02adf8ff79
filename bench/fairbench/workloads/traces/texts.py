"""Texts of prompts as blocks: what begins alike in text begins with the same blocks.

Each block's identity is a hash of its characters and of all blocks before it, so nothing of the
text is kept. Where a log has texts and no ``hash_ids``, its prompts share what their texts share.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from fairbench.workloads.tokens import ApproximateCounter

CHARACTERS = 92
"""Of a block: at 4.6 characters a token just ``BLOCK_TOKENS``, as ``ApproximateCounter`` has it."""
BLOCK_TOKENS = 20

_count = ApproximateCounter().count


def text_of(value: Any) -> str:
    """The text of a prompt, or of the messages of a chat one after the other."""
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


def tokens_of(text: str) -> int:
    """About how many tokens it has."""
    return _count(text)


def blocks_of(text: str) -> list[int]:
    """Identities of its blocks, the last of which may be shorter."""
    found, before = [], b""
    for start in range(0, len(text), CHARACTERS):
        part = text[start : start + CHARACTERS].encode("utf-8", "surrogatepass")
        before = blake2b(before + part, digest_size=8).digest()
        found.append(int.from_bytes(before) >> 1)
    return found
