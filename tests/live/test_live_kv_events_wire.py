"""KV events on the wire: the bytes are SGLang's."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.live.kv_events.wire import (
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

HASH = st.integers(-(2**63), 2**63 - 1)
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
def test_what_is_encoded_is_decoded(seq, events, rank):
    batch = EventBatch(1.5, events, rank)
    assert decode(encode(seq, batch, b"kv")) == NumberedBatch(seq, batch)


def test_the_bytes_are_as_sglang_writes_them():
    """Maps with their type's name, in an array; optional fields only if they are set."""
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


def test_fields_of_later_versions_are_passed_over():
    event = {"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU", "new": 1}
    payload = msgspec.msgpack.encode([0.5, [event], 0, "more"])
    assert decode([b"", bytes(8), payload]).batch.events == [BlockRemoved([3], "GPU")]


def test_the_end_of_a_replay_is_no_message():
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
        encode(0, EventBatch(0.5, [BlockStored([7], None, [-1], 1, None)])),
        encode(0, EventBatch(0.5, [BlockStored([7], None, [2**32], 1, None)])),
    ],
)
def test_anything_else_is_a_value_error(frames):
    with pytest.raises(ValueError, match="message"):
        decode(frames)
