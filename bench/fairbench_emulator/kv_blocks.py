"""A KV cache that reports the blocks that it stores and drops, as SGLang's KV events."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from hashlib import blake2b

from fairbench.core import Prompt
from fairbench.live.kv_event_wire import AllBlocksCleared, BlockRemoved, BlockStored, Event
from fairbench.schedulers.prefix_tree import Place
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.kv_node import KVNode
from fairbench_emulator.tokens import TokenStreams

BLOCK_TOKENS = 8
MEDIUM = "GPU"


class PublishingCache(KVCache):
    """A cache that passes the events since the last ``publish`` to ``send``, in order.

    Blocks are of 8 tokens and named by a hash of all tokens up to their end. The cache itself
    matches by the token, so a prefix's last, incomplete block is cached but not reported.
    """

    def __init__(
        self, capacity: int, streams: TokenStreams, send: Callable[[list[Event]], None] | None
    ) -> None:
        super().__init__(capacity)
        self._streams = streams
        self._send = send
        self._hashes: dict[KVNode, list[int]] = {}  # node -> hashes of the blocks that end in it
        self._events: list[Event] = []

    def publish(self) -> None:
        if self._events and self._send is not None:
            self._send(self._events)
            self._events = []

    def clear(self) -> None:
        """Drop all blocks. Precondition: nothing is locked."""
        self._hashes.clear()
        self.evict(self.capacity)
        if self._send is not None:
            self._events.append(AllBlocksCleared())
            self.publish()

    def extend(self, node: KVNode, prompt: Prompt, place: Place, depth: int) -> KVNode:
        child = super().extend(node, prompt, place, depth)
        first, last = node.depth // BLOCK_TOKENS, depth // BLOCK_TOKENS
        if self._send is None or first == last:
            return child
        ids = self._streams.ids_of(prompt, first * BLOCK_TOKENS, last * BLOCK_TOKENS)
        parent = self._last_hash(node)
        hashes = self._hashes[child] = _chain(parent, ids)
        self._events.append(BlockStored(hashes, parent, ids, BLOCK_TOKENS, None, MEDIUM))
        return child

    def on_split(self, upper: KVNode, lower: KVNode) -> None:
        super().on_split(upper, lower)
        if (hashes := self._hashes.get(lower)) is not None:
            start = upper.depth - upper.length
            blocks = upper.depth // BLOCK_TOKENS - start // BLOCK_TOKENS
            self._hashes[upper], self._hashes[lower] = hashes[:blocks], hashes[blocks:]

    def remove(self, leaf: KVNode) -> KVNode:
        if hashes := self._hashes.pop(leaf, None):
            self._events.append(BlockRemoved(hashes, MEDIUM))
        return super().remove(leaf)

    def _last_hash(self, node: KVNode) -> int | None:
        """Return the hash of the last whole block at or above a node, or None."""
        at: KVNode | None = node
        while at is not None:
            if hashes := self._hashes.get(at):
                return hashes[-1]
            at = at.parent
        return None


def _chain(parent: int | None, ids: list[int]) -> list[int]:
    """Return hashes of whole blocks, each over its tokens and the previous hash."""
    data = memoryview(array("I", ids)).cast("B")
    size = len(data) // len(ids) * BLOCK_TOKENS
    hashes = []
    chain = b"" if parent is None else parent.to_bytes(8, "little", signed=True)
    for start in range(0, len(data), size):
        chain = blake2b(data[start : start + size], digest_size=8, key=chain).digest()
        hashes.append(int.from_bytes(chain, "little", signed=True))
    return hashes
