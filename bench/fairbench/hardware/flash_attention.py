"""Attention of FlashAttention 2, which vLLM uses on GPUs of compute capability 8.x.

A timing profile charges the same time for every token of decode context. FlashAttention 2 is slower
in two cases, both found in its public code (``csrc/flash_attn``: ``flash_api.cpp``,
``flash_fwd_launch_template.h``). FlashAttention 3 (H100, H200) has a scheduler of tiles that avoids
both.

1. A step that also prefills is a single call of the kernel. Only a call in which every query has
   length 1 packs the query heads of a KV head into one tile (``seqlenq_ngroups_swapped``). In a
   mixed call each query head reads the context by itself (vllm-project/vllm#58013 describes and
   repairs this).
2. A step that only decodes gives each sequence and KV head one thread block for each split of the
   context. A block works through its context in order, so the longest sequence may still run when
   all other blocks are done. The time lies between that of the mean load and the same plus one
   longest block (Graham's bound for list scheduling); the middle is charged.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

SMS = {"a100-80gb": 108, "a10g-24gb": 80, "l40s-48gb": 142}
"""Streaming multiprocessors of the GPUs on which vLLM uses FlashAttention 2."""

HEADS = {
    "llama-2-7b": (32, 32),
    "llama-3.2-3b": (24, 8),
    "llama-3.1-8b": (32, 8),
    "llama-3.1-70b": (64, 8),
    "qwen3-8b": (32, 8),
    "qwen3-14b": (40, 8),
    "qwen3-32b": (64, 8),
    "qwen3-30b-a3b": (32, 4),
    "mixtral-8x7b": (32, 8),
}
"""Query heads and KV heads of models with heads of 128, from their ``config.json``."""

TILE_ROWS, TILE_KEYS = 64, 128  # tile sizes of the split-KV kernel, for heads of 128 elements
BLOCKS_PER_SM = 2  # as the heuristic for splits assumes
MOST_SPLITS, FULL_SHARE, GOOD_SHARE = 128, 0.8, 0.85  # constants of that heuristic
TAIL_SHARE = 0.5  # the charged part of the longest block, see above


class FlashAttention2(NamedTuple):
    """The kernel's geometry on one GPU: multiprocessors, query heads and KV heads of a TP rank."""

    sms: int
    heads: int
    kv_heads: int

    @property
    def extra_reads(self) -> int:
        """How many more times a mixed step reads each context token of decoding requests."""
        return self.heads // self.kv_heads - 1

    def tail_tokens(self, sequences: int, longest: int) -> float:
        """Return the context tokens that a query attends to in an equally long tail.

        A decode step of ``sequences`` whose longest context has ``longest`` tokens keeps one
        multiprocessor busy with a tile of ``TILE_ROWS`` rows. Multiply the result by a profile's
        ``c_A``.
        """
        splits = 1
        if self.heads > self.kv_heads:
            splits = _splits(sequences * self.kv_heads, -(-longest // TILE_KEYS), self.sms)
        return TAIL_SHARE * TILE_ROWS * self.sms / self.heads * longest / splits


def flash_attention_2(profile_id: str) -> FlashAttention2 | None:
    """Return the kernel of a profile ``gpu/model/tp/source``; None if vLLM uses another."""
    gpu, model, parallel, *_ = (*profile_id.split("/"), "", "")
    if gpu not in SMS or model not in HEADS:
        return None
    heads, kv_heads = HEADS[model]
    degree = int(parallel.removeprefix("tp"))
    return FlashAttention2(SMS[gpu], heads // degree, max(1, kv_heads // degree))


@cache
def _splits(tiles: int, key_tiles: int, sms: int) -> int:
    """Return the number of parts of a context: the fewest that fill the GPU well.

    Args:
        tiles: Tiles of queries in the call, without splits.
        key_tiles: Tiles of keys in the longest context.
        sms: Streaming multiprocessors.
    """
    slots = BLOCKS_PER_SM * sms
    if tiles >= FULL_SHARE * slots:
        return 1
    shares: dict[int, float] = {}
    for splits in range(1, min(MOST_SPLITS, slots, key_tiles) + 1):
        if splits == 1 or -(-key_tiles // splits) != -(-key_tiles // (splits - 1)):
            waves = -(-tiles * splits // slots)
            shares[splits] = tiles * splits / slots / waves
    good = GOOD_SHARE * max(shares.values(), default=0.0)
    return next((splits for splits, share in shares.items() if share >= good), 1)
