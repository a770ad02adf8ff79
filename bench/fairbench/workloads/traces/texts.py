"""Texts of prompts as blocks: texts with equal beginnings begin with equal blocks.

Each block's identity is a hash of its characters and of all blocks before it, so nothing of the
text is kept. In a log with texts and no ``hash_ids``, prompts share the common parts of their
texts. The number of tokens in a block is the median of the log's own counts, if it has any.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

CHARACTERS = 92
"""The characters of a block: ``BLOCK_TOKENS`` at 4.6 a token, as in ``ApproximateCounter``."""
BLOCK_TOKENS = 20
MOST_TOKENS = 2 * CHARACTERS  # limit on the tokens of a block

Ints = npt.NDArray[np.int64]


def blocks_of(text: str) -> list[int]:
    """Return the identities of a text's blocks; the last block may be shorter."""
    found, before = [], b""
    for start in range(0, len(text), CHARACTERS):
        part = text[start : start + CHARACTERS].encode("utf-8", "surrogatepass")
        before = blake2b(before + part, digest_size=8).digest()
        found.append(int.from_bytes(before) >> 1)
    return found


def fitted(counts: Ints, ids: Ints, tokens: Ints, estimated: Ints) -> tuple[Ints, Ints, int]:
    """Return text blocks that cover prompts: counts per prompt, ids and block size.

    All texts share one block size, from the median of ``tokens`` to ``estimated``; 0 without text.
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
    """Return ``wanted`` blocks, so that equal texts of equal length are shared completely.

    The last block represents a cut-off remainder, or further blocks follow from it. A log with far
    less text than tokens was shortened: the remainder is unknown.
    """
    if wanted > 2 * len(ids):
        return ids
    found = [*ids[: wanted - 1], ids[-1]] if wanted < len(ids) else list(ids)
    while len(found) < wanted:
        after = blake2b(found[-1].to_bytes(8), digest_size=8).digest()
        found.append(int.from_bytes(after) >> 1)
    return found
