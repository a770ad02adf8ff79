"""The wire format of KV cache events in SGLang and vLLM: ZMQ frames and msgpack.

A message of the PUB socket has three frames: topic, sequence number (8 bytes, big-endian, starting
at 0) and batch. To ask for missed messages again, a DEALER socket sends ``replay_request``. The
ROUTER socket answers with the stored messages, each after an empty frame. The last message of a
replay has the sequence number ``END``.

This module writes SGLang's format (disaggregation/kv_events.py), in which a batch is an array and
an event is a map. The module also reads three formats of vLLM (distributed/kv_events.py):

- Until 2025, vLLM encoded a batch as an array of events, and an event as an array.
- Some commits of vLLM's main branch encoded batches and events as maps, and sent replays without a
  topic.
- vLLM 0.28 to 0.32 uses SGLang's format.

Unknown fields are ignored, because new releases add fields to events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

END = -1  # sequence number of the last message of a replay
SEQ_BYTES = 8

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
BlockHash: TypeAlias = int | bytes


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """A KV event: consecutive blocks were stored, the first after ``parent_block_hash``.

    ``token_ids`` contains the tokens of all blocks; each entry of ``block_hashes`` stands for
    ``block_size`` tokens. If a model has several kinds of attention, ``group_idx`` is a group of
    layers with one kind; such groups store and remove blocks independently.
    """

    block_hashes: Sequence[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[TokenId]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Any = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """A KV event: blocks were removed from the cache."""

    block_hashes: Sequence[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """A KV event: all blocks were removed from the cache."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False):
    """The KV events of a scheduler step at time ``ts``, in seconds on the worker's clock."""

    ts: float
    events: list[Event]
    attn_dp_rank: int | None = None


class NumberedBatch(NamedTuple):
    """A batch of KV events, with its sequence number among the worker's messages."""

    seq: int
    batch: EventBatch


class _StoredArray(BlockStored, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    """A batch of undecoded events, in which unknown events can be skipped."""

    ts: float
    events: list[msgspec.Raw]
    attn_dp_rank: int | None = None


class _BatchMap(msgspec.Struct, rename={"attn_dp_rank": "data_parallel_rank"}):
    ts: float
    events: list[msgspec.Raw]
    attn_dp_rank: int | None = None


class _Kind(msgspec.Struct):
    type: str


_encoder = msgspec.msgpack.Encoder()
_batch, _batch_map = msgspec.msgpack.Decoder(_Batch), msgspec.msgpack.Decoder(_BatchMap)
_event_map: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
_event_array: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(
    _StoredArray | _RemovedArray | _ClearedArray
)
_kind_map = msgspec.msgpack.Decoder(_Kind)
_kind_array = msgspec.msgpack.Decoder(list[Any])
_KINDS = {cls.__name__ for cls in (BlockStored, BlockRemoved, AllBlocksCleared)}


def encode(seq: int, batch: EventBatch, topic: bytes = b"") -> tuple[bytes, bytes, bytes]:
    """Return the three frames of the message with sequence number ``seq``."""
    return topic, _seq_bytes(seq), _encoder.encode(batch)


def decode(frames: Sequence[bytes]) -> NumberedBatch | None:
    """Return a message's batch of events, or None for the message that ends a replay.

    Events of unknown kinds are skipped. Raises ValueError if the frames are not a message, or if
    all events are of unknown kinds.
    """
    if len(frames) not in (2, 3) or len(frames[-2]) != SEQ_BYTES:
        raise ValueError("a message must have three frames: topic, sequence number, batch")
    seq = int.from_bytes(frames[-2], "big", signed=True)
    if seq == END:
        return None
    try:
        batch = (_batch_map if _is_map(frames[-1]) else _batch).decode(frames[-1])
        events = [event for raw in batch.events if (event := _event(bytes(raw))) is not None]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"message {seq}: {error}") from None
    if batch.events and not events:
        raise ValueError(f"message {seq}: has no event of a known kind")
    return NumberedBatch(seq, EventBatch(batch.ts, events, batch.attn_dp_rank))


def _is_map(packed: bytes) -> bool:
    first = packed[:1]
    return b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf")


def _event(packed: bytes) -> Event | None:
    """Return the decoded KV event, or None for an event of an unknown kind."""
    is_map = _is_map(packed)
    try:
        return (_event_map if is_map else _event_array).decode(packed)
    except msgspec.ValidationError:
        kind = _kind_map.decode(packed).type if is_map else (_kind_array.decode(packed) or [""])[0]
        if not isinstance(kind, str) or kind in _KINDS:
            raise
    return None


def replay_request(first: int) -> tuple[bytes, bytes]:
    """Return the ZMQ frames that request all messages from sequence number ``first`` on."""
    return b"", _seq_bytes(first)


def end_of_replay() -> tuple[bytes, bytes, bytes]:
    """Return the frames of the message that marks the end of replayed KV events."""
    return b"", _seq_bytes(END), b""


def _seq_bytes(seq: int) -> bytes:
    return seq.to_bytes(SEQ_BYTES, "big", signed=True)
