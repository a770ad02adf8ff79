"""The cached blocks of a pool as a radix tree of whole blocks, like vLLM's chained block hashes.

In vLLM, two blocks have the same hash exactly if they hold the same tokens after the same tokens;
here, if their prompts lead to the same node of the tree. A node is a run of blocks, so the work for
a prompt depends on the number of places where prompts differ, not on its length. Several copies of
a run may be in memory, because vLLM keeps them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Self

from fairbench.core import Prompt
from fairbench.schedulers.prefix_tree import Place, place_at
from fairbench.sim.engine.vllm.block_keys import Key, advance, common_tokens, next_block
from fairbench.sim.prefix_cache import Waiter as AnyWaiter


class RunCopy:
    """A copy of a node's blocks in memory.

    ``users`` are the owners of requests that hold them all.

    Unused copies are linked in the order of their eviction, each with its last block first.
    ``stamp`` is the time at which a copy was given back, in a cache that numbers these times.
    """

    __slots__ = ("after", "before", "node", "stamp", "users")

    def __init__(self, node: BlockNode, users: set[object], stamp: int = 0) -> None:
        self.node = node
        self.users = users
        self.stamp = stamp
        self.before: RunCopy | None = None
        self.after: RunCopy | None = None

    def link(self, before: RunCopy, after: RunCopy) -> None:
        self.before, self.after = before, after
        before.after = after.before = self

    def unlink(self) -> None:
        before, after = self.before, self.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        self.before = self.after = None

    def split(self, upper: BlockNode) -> RunCopy:
        """Return a copy of the ``upper`` part, with the same users and a later eviction."""
        copy = RunCopy(upper, set(self.users), self.stamp)
        if self.after is not None:
            copy.link(self, self.after)
        return copy


class BlockNode:
    """A prefix of ``depth`` tokens in whole blocks, of which the last ``blocks`` are the node's.

    The prefix begins ``prompt``, in which the node's own blocks begin at ``start``. The parent
    holds the node under ``key``, its first block.
    """

    __slots__ = (
        "awaited", "blocks", "children", "copies", "depth", "key", "parent", "prompt", "start",
        "waiters",
    )  # fmt: skip

    parent: Self | None
    children: dict[Key, Self]

    def __init__(
        self, parent: Self | None, key: Key, prompt: Prompt, start: Place, depth: int
    ) -> None:
        self.parent = parent
        self.key = key
        self.prompt = prompt
        self.start = start
        self.depth = depth
        self.blocks = 0
        self.children = {}
        # the first copy is the one that is used; usually there is only one
        self.copies: list[RunCopy] = []
        # Requests whose match ends here, also by the key that would extend it; most nodes have
        # none.
        self.waiters: dict[Waiter, None] | None = None
        self.awaited: dict[Key, dict[Waiter, None]] | None = None

    def path(self) -> Iterator[BlockNode]:
        """Yield the nodes from this one up to the root, without the root."""
        node = self
        while (parent := node.parent) is not None:
            yield node
            node = parent


Waiter = AnyWaiter[BlockNode]


class BlockTree:
    """Nodes of blocks of ``block_size`` tokens. A node exists while memory holds a copy of it."""

    def __init__(self, block_size: int, node_type: type[BlockNode] = BlockNode) -> None:
        self.block_size = block_size
        self.node_type = node_type
        self.root = node_type(None, (), (), (0, 0), 0)
        self.on_moved: Callable[[Waiter], None] | None = None
        self.refresh_stamp = 0

    def match(self, prompt: Prompt, limit: int) -> tuple[BlockNode, Place]:
        return self.descend(self.root, prompt, (0, 0), limit)

    def descend(
        self, node: BlockNode, prompt: Prompt, place: Place, limit: int
    ) -> tuple[BlockNode, Place]:
        """Walk on from ``node`` to depth ``limit``; split a node that matches in part."""
        size = self.block_size
        while node.children and (most := (limit - node.depth) // size) > 0:
            child = node.children.get(next_block(prompt, place, size))
            if child is None:
                break
            node, place = self._enter(child, prompt, place, most)
            if node is not child:
                break
        return node, place

    def store(
        self, owner: object, node: BlockNode, prompt: Prompt, place: Place, blocks: int
    ) -> tuple[BlockNode, Place]:
        """Index full ``blocks`` of ``owner`` that follow ``node``; return the end of the last.

        ``place`` is where ``node`` ends in the prompt; the returned end is also a node and a place.
        """
        while blocks:
            key = next_block(prompt, place, self.block_size)
            child = node.children.get(key)
            if child is None:
                return self._append(owner, node, key, prompt, place, blocks)
            node, place = self._enter(child, prompt, place, blocks)
            self.add_copy(owner, node)
            blocks -= node.blocks
        return node, place

    def add_copy(self, owner: object, node: BlockNode) -> None:
        """Index blocks of ``owner`` of the same tokens as those of ``node``."""
        node.copies.append(RunCopy(node, {owner}))

    def split(self, node: BlockNode, blocks: int) -> BlockNode:
        """Cut a node after its first ``blocks`` blocks; return the new upper node.

        ``node`` stays the lower part, so its holders still hold the same prefix. Every copy is cut
        as well, and its lower part is evicted before the upper one.
        """
        parent, tokens = node.parent, blocks * self.block_size
        assert parent is not None
        upper = self.node_type(parent, node.key, node.prompt, node.start, parent.depth + tokens)
        upper.blocks = blocks
        parent.children[node.key] = upper
        node.parent, node.blocks = upper, node.blocks - blocks
        node.start = advance(node.prompt, node.start, tokens)
        node.key = next_block(node.prompt, node.start, self.block_size)
        upper.children[node.key] = node
        upper.copies = [copy.split(upper) for copy in node.copies]
        return upper

    def shorten(self, node: BlockNode, blocks: int) -> None:
        """Drop the last ``blocks`` blocks of a childless node, but not all of its blocks."""
        waiters = self._unfiled(node)
        node.blocks -= blocks
        node.depth -= blocks * self.block_size
        self._moved(waiters, node)

    def remove(self, node: BlockNode) -> None:
        """Drop a childless node; requests whose match ended there move to its parent."""
        assert not node.children, "a prefix is evicted after its continuations"
        assert node.parent is not None
        del node.parent.children[node.key]
        self._moved(self._unfiled(node), node.parent)

    def may_grow(self, node: BlockNode, owner: object) -> bool:
        """Return whether only ``owner`` uses the node, waits for it or follows it."""
        if node.children or node.waiters or len(node.copies) != 1:
            return False
        users = node.copies[0].users
        return len(users) == 1 and owner in users

    def _enter(
        self, child: BlockNode, prompt: Prompt, place: Place, most: int
    ) -> tuple[BlockNode, Place]:
        """Walk into a child whose first block matches, at most ``most`` blocks far."""
        blocks = min(child.blocks, most)
        if blocks > 1:
            tokens = blocks * self.block_size
            shared = common_tokens(child.prompt, child.start, prompt, place, tokens)
            blocks = shared // self.block_size
        place = advance(prompt, place, blocks * self.block_size)
        return (child if blocks == child.blocks else self.split(child, blocks)), place

    def _append(
        self, owner: object, node: BlockNode, key: Key, prompt: Prompt, place: Place, blocks: int
    ) -> tuple[BlockNode, Place]:
        """Add blocks that no node has: to ``node`` if only ``owner`` knows it, or as a child."""
        if not self.may_grow(node, owner):
            parent, node = node, self.node_type(node, key, prompt, place, node.depth)
            parent.children[key] = node
            node.copies.append(RunCopy(node, {owner}))
            if parent.awaited and (group := parent.awaited.get(key)) and self.on_moved:
                for waiter in group:
                    self.on_moved(waiter)
        node.prompt, tokens = prompt, blocks * self.block_size
        node.depth += tokens
        node.blocks += blocks
        return node, advance(prompt, place, tokens)

    # Waiting requests, attached where their match ended.

    def refresh(self, waiters: Iterable[Waiter]) -> None:
        self.refresh_stamp += 1
        for waiter in waiters:
            start, place = self.root, (0, 0)
            if waiter.node is not None:
                start, place = waiter.node, waiter.place
                self._unfile(waiter)
            node, _ = self.descend(start, waiter.prompt, place, waiter.total - 1)
            self._file(waiter, node)

    def detach(self, waiter: Waiter) -> None:
        self._unfile(waiter)
        waiter.node = None

    def _file(self, waiter: Waiter, node: BlockNode) -> None:
        waiter.node = node
        waiter.place = place_at(waiter.prompt, node.depth)
        if node.waiters is None or node.awaited is None:
            node.waiters, node.awaited = {}, {}
        node.waiters[waiter] = None
        if node.depth + self.block_size < waiter.total:
            key = next_block(waiter.prompt, waiter.place, self.block_size)
            node.awaited.setdefault(key, {})[waiter] = None

    def _unfile(self, waiter: Waiter) -> None:
        node = waiter.node
        assert node is not None
        assert node.waiters is not None
        assert node.awaited is not None
        del node.waiters[waiter]
        if node.depth + self.block_size < waiter.total:
            key = next_block(waiter.prompt, waiter.place, self.block_size)
            group = node.awaited[key]
            del group[waiter]
            if not group:
                del node.awaited[key]

    def _unfiled(self, node: BlockNode) -> list[Waiter]:
        waiters = list(node.waiters or ())
        for waiter in waiters:
            self._unfile(waiter)
        return waiters

    def _moved(self, waiters: Iterable[Waiter], node: BlockNode) -> None:
        for waiter in waiters:
            self._file(waiter, node)
            if self.on_moved is not None:
                self.on_moved(waiter)
