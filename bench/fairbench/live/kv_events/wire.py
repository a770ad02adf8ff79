"""KV events as they travel: SGLang's frames and msgpack maps (disaggregation/kv_events.py there).

A message of the PUB socket is three frames: topic, sequence number (8 bytes, big-endian, from 0 on)
and a batch. For a replay a DEALER sends ``replay_request``; the ROUTER answers with the messages
it still has, each behind an empty frame, and ends with the sequence number ``END``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

END = -1  # the sequence number that ends a replay
SEQ_BYTES = 8

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """A run of blocks, each the child of the one before, the first that of ``parent_block_hash``.

    ``token_ids`` are those of all the blocks, ``block_size`` for each of ``block_hashes``.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[TokenId]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """Blocks that have left the cache."""

    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """Events of one scheduler step; ``ts`` is the worker's clock in seconds."""

    ts: float
    events: list[Event]
    attn_dp_rank: int | None = None


class NumberedBatch(NamedTuple):
    """A batch and its place in the worker's sequence."""

    seq: int
    batch: EventBatch


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EventBatch)


def encode(seq: int, batch: EventBatch, topic: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """The frames of one message."""
    return topic, _seq_bytes(seq), _encoder.encode(batch)


def decode(frames: Sequence[bytes]) -> NumberedBatch | None:
    """The message in these frames, or None for the one that ends a replay.

    Raises ValueError if they are not one.
    """
    if len(frames) != 3 or len(frames[1]) != SEQ_BYTES:
        raise ValueError("a message has three frames: topic, sequence number, batch")
    seq = int.from_bytes(frames[1], "big", signed=True)
    if seq == END:
        return None
    try:
        return NumberedBatch(seq, _decoder.decode(frames[2]))
    except msgspec.MsgspecError as error:
        raise ValueError(f"message {seq}: {error}") from None


def replay_request(first: int) -> tuple[bytes, bytes]:
    """What to send on a DEALER to get the messages from sequence number ``first`` on."""
    return b"", _seq_bytes(first)


def end_of_replay() -> tuple[bytes, bytes, bytes]:
    """The frames that end a replay."""
    return b"", _seq_bytes(END), b""


def _seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(SEQ_BYTES, "big", signed=True)
