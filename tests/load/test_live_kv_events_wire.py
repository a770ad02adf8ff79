"""Test that KV events have the same bytes on the wire as SGLang's."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_load.kv_event_wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    NumberedBatch,
    decode,
    encode,
    end_of_replay,
    replay_request,
)

HASH = st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=32)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=5)
MEDIUM = st.sampled_from([None, "GPU", "CPU_PINNED"])
STORED = st.builds(
    BlockStored,
    st.lists(HASH, max_size=3),
    st.none() | HASH,
    TOKENS,
    st.integers(1, 64),
    st.none() | st.integers(0, 9),
    MEDIUM,
)
EVENTS = STORED | st.builds(BlockRemoved, st.lists(HASH), MEDIUM) | st.builds(AllBlocksCleared)


@given(st.integers(0, 2**62), st.lists(EVENTS, max_size=4), st.none() | st.integers(0, 7))
def test_encoded_values_are_decoded(seq, events, rank):
    batch = EventBatch(1.5, events, rank)
    assert decode(encode(seq, batch, b"kv")) == NumberedBatch(seq, batch)


def test_the_bytes_are_as_sglang_writes_them():
    """Events are maps with their type's name, in an array. Unset optional fields are left out."""
    topic, seq, payload = encode(
        258, EventBatch(0.5, [BlockStored([7], None, [1, 2], 2, None, "GPU"), AllBlocksCleared()])
    )
    assert (topic, seq) == (b"", bytes([0, 0, 0, 0, 0, 0, 1, 2]))
    stored = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
    }
    assert msgspec.msgpack.decode(payload) == [0.5, [stored, {"type": "AllBlocksCleared"}], None]


def test_fields_of_later_versions_are_ignored():
    event = {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU", "new": 1}
    payload = msgspec.msgpack.encode([0.5, [event], 0, "more"])
    assert decode([b"", bytes(8), payload]).batch.events == [BlockRemoved([3], "GPU")]


STORED_FIELDS = {
    "block_hashes": [b"a" * 32, 2**64 - 1],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 1,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None, ("salt",)],
    "group_idx": 3,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": None,
    "locality": "LOCAL",
    "a_field_of_tomorrow": {"a": 1},
}
REMOVED_FIELDS = {"block_hashes": [7], "medium": "GPU", "group_idx": 3, "locality": "LOCAL"}
IN_MAPS = [
    {"type": "BlockStored", **STORED_FIELDS},
    {"type": "BlockRemoved", **REMOVED_FIELDS},
    {"type": "AllBlocksCleared"},
]
IN_ARRAYS = [
    ["BlockStored", *STORED_FIELDS.values()],
    ["BlockRemoved", *REMOVED_FIELDS.values()],
    ["AllBlocksCleared"],
]


@pytest.mark.parametrize(
    "batch",
    [
        [0.5, IN_ARRAYS, 0],  # vLLM up to 2025
        {"ts": 0.5, "events": IN_MAPS, "data_parallel_rank": 0},  # vLLM's main branch for a while
        [0.5, IN_MAPS, 0],  # vLLM 0.28 to 0.32
    ],
    ids=["arrays", "maps", "array of maps"],
)
@pytest.mark.parametrize("topic", [[b"kv"], []], ids=["topic", "no topic"])
def test_every_vllm_format_decodes_to_the_same_events(batch, topic):
    message = decode([*topic, (5).to_bytes(8, "big"), msgspec.msgpack.encode(batch)])
    stored = BlockStored(
        *([b"a" * 32, 2**64 - 1], None, [1, 2], 1, None, "GPU"),
        extra_keys=[None, ["salt"]],
        group_idx=3,
    )
    events = [stored, BlockRemoved([7], "GPU", 3), AllBlocksCleared()]
    assert message.seq == 5
    assert (message.batch.ts, message.batch.attn_dp_rank) == (0.5, 0)
    assert list(map(msgspec.structs.asdict, message.batch.events)) == list(
        map(msgspec.structs.asdict, events)
    )
    assert all(map(isinstance, message.batch.events, map(type, events)))


def test_the_oldest_arrays_have_fewer_fields():
    payload = msgspec.msgpack.encode([0.5, [["BlockStored", [7], 6, [1], 1, None]]])
    (event,) = decode([b"", bytes(8), payload]).batch.events
    assert (event.parent_block_hash, event.medium, event.group_idx) == (6, None, None)


@pytest.mark.parametrize("other", [{"type": "Moved", "to": 1}, ["Moved", 1]])
def test_events_of_unknown_kinds_are_ignored(other):
    removed = {"type": "BlockRemoved", "block_hashes": [3], "medium": None}
    payload = msgspec.msgpack.encode([0.5, [other, removed]])
    assert decode([b"", bytes(8), payload]).batch.events == [BlockRemoved([3])]


def test_the_end_of_a_replay_is_not_a_message():
    assert decode(end_of_replay()) is None
    assert end_of_replay()[1] == b"\xff" * 8
    assert replay_request(5) == (b"", bytes([0, 0, 0, 0, 0, 0, 0, 5]))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"", bytes(8)],
        [b"", bytes(7), b""],
        [b"", bytes(8), b"nonsense"],
        [b"", bytes(8), msgspec.msgpack.encode([0.5, [{"type": "Other"}], 0])],
        [b"", bytes(8), msgspec.msgpack.encode([0.5, [["Other", 1]]])],
        [b"", bytes(8), msgspec.msgpack.encode([0.5, [7]])],
        [b"", bytes(8), msgspec.msgpack.encode([0.5, [{"type": 7}]])],
        [b"", bytes(8), msgspec.msgpack.encode([0.5, [[]]])],
        [b"", bytes(8), b""],
        encode(0, EventBatch(0.5, [BlockStored([7], None, [-1], 1, None)])),
        encode(0, EventBatch(0.5, [BlockStored([7], None, [2**32], 1, None)])),
    ],
)
def test_malformed_messages_are_value_errors(frames):
    with pytest.raises(ValueError, match="message"):
        decode(frames)
