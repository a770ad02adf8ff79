"""The cached blocks of a pool as a tree of prefixes, like vLLM's chained block hashes.

Two blocks have the same hash in vLLM exactly if they hold the same tokens behind the same tokens;
here, if their prompts lead to the same node. Several blocks may hold the same: vLLM keeps both.
"""

from __future__ import annotations

from typing import Self

from fairbench.core import Prompt, Segment
from fairbench.schedulers.prefix_tree import Place, place_at
from fairbench.sim.prefix_cache import Waiter as AnyWaiter

Slice = tuple[str, int, int]  # of a segment: its key, and where in it how many tokens begin
Key = tuple[Slice, ...]  # the tokens of one block


class Block:
    """Memory for some tokens. ``node`` is set once the block is full and indexed.

    ``client`` is the client whose request took the block, where the cache knows clients.
    """

    __slots__ = ("client", "node", "users")

    client: str

    def __init__(self) -> None:
        self.users = 1
        self.node: BlockNode | None = None


class BlockNode:
    """A prefix of whole blocks, ``depth`` tokens long, with the blocks of its last part.

    The prefix is the part of ``prompt`` before ``end``: the prompt that first filled the node.
    """

    __slots__ = (
        "awaited", "blocks", "children", "depth", "end", "key", "parent", "prompt", "waiters",
    )  # fmt: skip

    parent: Self | None
    children: dict[Key, Self]

    def __init__(
        self, parent: Self | None, key: Key, depth: int, prompt: Prompt, end: Place
    ) -> None:
        self.parent = parent
        self.key = key
        self.depth = depth
        self.prompt = prompt
        self.end = end
        self.children = {}
        self.blocks: list[Block] = []  # the first is the one that is used; most often alone
        # Requests whose match ends here, and the same by what would extend it; most have none.
        self.waiters: dict[Waiter, None] | None = None
        self.awaited: dict[Key, dict[Waiter, None]] | None = None


Waiter = AnyWaiter[BlockNode]


class BlockTree:
    """Nodes of blocks of ``block_size`` tokens. A node exists while a block holds its last part."""

    def __init__(self, block_size: int, node_type: type[BlockNode] = BlockNode) -> None:
        self.block_size = block_size
        self.node_type = node_type
        self.root = node_type(None, (), 0, (), (0, 0))

    def descend(
        self, node: BlockNode, prompt: Prompt, place: Place, limit: int
    ) -> tuple[BlockNode, Place]:
        """Walk on from ``node``, which ends at ``place`` of the prompt, to depth ``limit``."""
        size = self.block_size
        while node.children and node.depth + size <= limit:
            key, end = next_block(prompt, place, size)
            child = node.children.get(key)
            if child is None:
                break
            node, place = child, end
        return node, place

    def store(
        self, node: BlockNode, prompt: Prompt, place: Place, block: Block
    ) -> tuple[BlockNode, Place]:
        """Index the full ``block``, which follows ``node``; return its node and end.

        ``place`` is where ``node`` ends in the prompt.
        """
        size = self.block_size
        key, end = next_block(prompt, place, size)
        child = node.children.get(key)
        if child is None:
            child = node.children[key] = self.node_type(node, key, node.depth + size, prompt, end)
        child.blocks.append(block)
        block.node = child
        return child, end

    def drop(self, block: Block) -> BlockNode | None:
        """Drop an overwritten ``block``; return its node if no other block holds the content.

        The node then has no children. Requests that used a later block also used a block of this
        node, and gave it back later.
        """
        node, block.node = block.node, None
        assert node is not None
        node.blocks.remove(block)
        if node.blocks:
            return None
        assert not node.children, "a prefix goes after what follows it"
        assert node.parent is not None
        del node.parent.children[node.key]
        return node


def next_block(prompt: Prompt, place: Place, tokens: int) -> tuple[Key, Place]:
    """Return slices of ``tokens`` tokens from ``place``, which must exist, and their end."""
    index, offset = place
    key, length = prompt[index]
    if length - offset > tokens:  # most often a block lies within one segment
        return ((key, offset, tokens),), (index, offset + tokens)
    slices = []
    while True:
        taken = min(length - offset, tokens)
        if taken:
            slices.append((key, offset, taken))
        tokens -= taken
        if offset + taken == length:
            index, offset = index + 1, 0
        else:
            offset += taken
        if not tokens:
            return tuple(slices), (index, offset)
        key, length = prompt[index]


def prefix_of(node: BlockNode) -> Prompt:
    """Return all tokens up to the end of ``node``, as a prompt, without walking its parents."""
    index, offset = node.end
    whole = tuple(segment for segment in node.prompt[:index] if segment.length)
    return (*whole, Segment(node.prompt[index].key, offset)) if offset else whole


# Waiting requests, attached where their match ended.


def file(waiter: Waiter, node: BlockNode, block_size: int) -> None:
    """Attach ``waiter`` to ``node``, at which its match ends."""
    waiter.node = node
    waiter.place = place_at(waiter.prompt, node.depth)
    if node.waiters is None or node.awaited is None:
        node.waiters, node.awaited = {}, {}
    node.waiters[waiter] = None
    if node.depth + block_size < waiter.total:
        key, _ = next_block(waiter.prompt, waiter.place, block_size)
        node.awaited.setdefault(key, {})[waiter] = None


def unfile(waiter: Waiter, block_size: int) -> None:
    """Undo ``file``."""
    node = waiter.node
    assert node is not None
    assert node.waiters is not None
    assert node.awaited is not None
    del node.waiters[waiter]
    if node.depth + block_size < waiter.total:
        key, _ = next_block(waiter.prompt, waiter.place, block_size)
        group = node.awaited[key]
        del group[waiter]
        if not group:
            del node.awaited[key]
