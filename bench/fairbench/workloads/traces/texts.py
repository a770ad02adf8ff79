"""Texts of prompts as blocks: what begins alike in text begins with the same blocks.

Each block's identity is a hash of its characters and of all blocks before it, so nothing of the
text is kept. Where a log has texts and no ``hash_ids``, its prompts share what their texts share.
How many tokens a block is says the median of the log's own counts, if it has some.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from fairbench.workloads.tokens import ApproximateCounter

CHARACTERS = 92
"""Of a block: at 4.6 characters a token just ``BLOCK_TOKENS``, as ``ApproximateCounter`` has it."""
BLOCK_TOKENS = 20
MOST_TOKENS = 2 * CHARACTERS  # of a block

Ints = npt.NDArray[np.int64]

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


def fitted(counts: Ints, ids: Ints, tokens: Ints, estimated: Ints) -> tuple[Ints, Ints, int]:
    """Blocks of texts that cover prompts of ``tokens``; how many each prompt has, and their size.

    One size for all texts, by the median of ``tokens`` to ``estimated``; 0 there is no text.
    """
    rows = np.flatnonzero(estimated)
    ratio = float(np.median(tokens[rows] / estimated[rows]))
    size = min(MOST_TOKENS, max(1, round(BLOCK_TOKENS * ratio)))
    parts = np.split(ids, np.cumsum(counts)[:-1])
    wanted = -(-tokens // size)
    for row in rows[counts[rows] != wanted[rows]].tolist():
        parts[row] = np.array(_covering(parts[row].tolist(), int(wanted[row])), np.int64)
    return np.array([len(part) for part in parts]), np.concatenate(parts), size


def _covering(ids: list[int], wanted: int) -> list[int]:
    """As many blocks, so that the same text of the same length is shared as a whole.

    The last one stands for all that is cut off, or others follow from it. A log that has far less
    text than tokens has shortened it: nothing is known of the rest.
    """
    if wanted > 2 * len(ids):
        return ids
    found = [*ids[: wanted - 1], ids[-1]] if wanted < len(ids) else list(ids)
    while len(found) < wanted:
        after = blake2b(found[-1].to_bytes(8), digest_size=8).digest()
        found.append(int.from_bytes(after) >> 1)
    return found
