"""A mirror of vLLM's block pool, in which an eviction policy chooses the block to overwrite.

The simulator keeps runs of blocks, and vLLM single blocks under chained hashes. The mirror does so
too: a node is a hash with the blocks that have its tokens. Claims are the simulator's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fairbench.core import Request
from fairbench.engine.client_cache import Claims
from fairbench.schedulers.eviction.policies import Access, EvictionPolicy
from fairbench_engines.mirrored_cache import OTHERS, LiveMemoryLog

Theirs = Any  # vLLM's block


class MirroredBlock:
    """A block of a request of ``client``, unless unused.

    ``given_back`` increases with each return of a block.
    """

    __slots__ = ("client", "given_back", "node", "theirs", "users")

    def __init__(self, theirs: Theirs, client: str) -> None:
        self.theirs = theirs
        self.client = client
        self.users = 1
        self.given_back = 0
        self.node: HashNode | None = None  # set once the block is full


class HashNode:
    """A prefix of whole blocks under the hash ``key``, with the blocks of its last tokens.

    A ``Claimed``.
    """

    __slots__ = (
        "blocks", "children", "claimed_below", "holders", "keep_s", "key", "listed_for", "number",
        "parent", "uses",
    )  # fmt: skip

    def __init__(self, parent: HashNode | None, key: bytes, number: int) -> None:
        self.parent = parent
        self.key = key
        self.number = number
        self.children: dict[bytes, HashNode] = {}
        self.blocks: list[MirroredBlock] = []
        self.holders: dict[str, None] = {}
        self.claimed_below: dict[str, int] = {}
        self.listed_for: set[str] = set()
        self.uses = 0
        self.keep_s = 0.0

    def oldest(self) -> MirroredBlock | None:
        """Return the unused block that is evicted first, None if all are used."""
        unused = (block for block in self.blocks if not block.users)
        return min(unused, key=lambda block: block.given_back, default=None)

    @property
    def last_access(self) -> Access:
        """The time at which the next block to be evicted was given back."""
        block = self.oldest()
        return (0 if block is None else block.given_back), 0, 0


class MirroredBlocks:
    """The pool of ``blocks`` blocks of ``size`` tokens, from which ``policy`` evicts.

    ``overwrite(theirs)`` must empty a block of vLLM's, and make vLLM take it next. Tokens of
    clients that the policy does not know are evicted first.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        policy: EvictionPolicy,
        now_s: Callable[[], float],
        overwrite: Callable[[Theirs], None],
    ) -> None:
        self.root = HashNode(None, b"", 0)
        self.claims: Claims[HashNode] = Claims(policy, LiveMemoryLog(now_s), self, OTHERS)
        self.residency = self.claims.residency
        self._size = size
        self._blank = blocks
        self._overwrite = overwrite
        self._of: dict[int, MirroredBlock] = {}  # number of vLLM's block -> its mirror
        self._given_back = self._created = 0

    # Memory.

    def make_room(self, count: int, client: str) -> None:
        """Have the policy overwrite blocks until ``count`` are blank, for the client's request."""
        tokens = count * self._size
        self.claims.keep_within_limit(client, tokens)
        while self._blank < count and self.claims.end_next({client: tokens}, client):
            pass

    def take(self, blocks: Iterable[Theirs], client: str) -> None:
        """Mirror blank blocks that vLLM has given to a request of the client."""
        for theirs in blocks:
            self._of[theirs.block_id] = MirroredBlock(theirs, client)
            self._blank -= 1
            self.residency.add_private(client, self._size)

    def use(self, blocks: Sequence[Theirs], request: Request) -> HashNode:
        """Mirror the use of a cached prefix by an admitted request; return the prefix's end."""
        node = self.root
        for block in map(self._mine, blocks):
            assert block.node is not None
            node = block.node
            if not block.users:
                self.residency.pin(node.holders, self._size)
            block.users += 1
        self.claims.start(node, request)
        return node

    def store(self, node: HashNode, hashes: Iterable[bytes], blocks: Iterable[Theirs]) -> HashNode:
        """Mirror full blocks behind ``node``, each with its hash; return the end of the last."""
        for key, block in zip(hashes, map(self._mine, blocks), strict=True):
            child = node.children.get(key)
            if child is None:
                self._created += 1
                child = node.children[key] = HashNode(node, key, self._created)
                child.blocks.append(block)
                self.claims.claim(child, block.client)
            else:
                self.claims.claim(child, block.client)
                child.blocks.append(block)
                self.residency.add_copy(child.holders, block.client, self._size)
                self._list_anew(child)
            node = block.node = child
        return node

    def retain(self, node: HashNode, request: Request) -> None:
        """Mirror the end of a request whose path ends at ``node``."""
        self.claims.finish(node, request)

    def give_back(self, blocks: Iterable[Theirs]) -> None:
        """Mirror blocks that a request no longer needs, in the order in which vLLM reuses them."""
        for block in map(self._mine, blocks):
            block.users -= 1
            if (node := block.node) is None:
                self._blank += 1
                self.residency.add_private(block.client, -self._size)
                del self._of[block.theirs.block_id]
            elif not block.users:
                self._given_back += 1
                block.given_back = self._given_back
                self.residency.pin(node.holders, -self._size)
                self._list_anew(node)

    def _mine(self, theirs: Theirs) -> MirroredBlock:
        return self._of[theirs.block_id]

    def _list_anew(self, node: HashNode) -> None:
        if len(node.blocks) > 1:
            self.claims.list_again(node)  # a node with a spare block may rank lower
        self.claims.list_if_leaf(node)

    # A ``ClaimedMemory``.

    def tokens_of(self, node: HashNode) -> tuple[int, int]:
        """Return the node's tokens that running requests use, and its other tokens."""
        used = sum(1 for block in node.blocks if block.users)
        return used * self._size, (len(node.blocks) - used) * self._size

    def is_pinned(self, node: HashNode) -> bool:
        """Return whether running requests use all blocks of the node."""
        return all(block.users for block in node.blocks)

    def spare_tokens(self, node: HashNode) -> int:
        """Return the size of an unused block if the hash has another block, else 0."""
        return self._size if len(node.blocks) > 1 and not self.is_pinned(node) else 0

    def access_of(self, node: HashNode) -> Access:
        return node.last_access

    def is_awaited(self, node: HashNode) -> bool:
        """Return False: policies that ask this do not run in vLLM."""
        return False

    def end_use(self, node: HashNode) -> None:
        """Do nothing: the blocks above a block were given back after it."""

    def cut(self, node: HashNode, tokens: int) -> None:
        """Do nothing: a node has the tokens of one block."""

    def drop(self, node: HashNode) -> None:
        """Overwrite the node's least recently used block."""
        block, parent = node.oldest(), node.parent
        assert block is not None
        assert parent is not None
        node.blocks.remove(block)
        del self._of[block.theirs.block_id]
        self._blank += 1
        self._overwrite(block.theirs)
        if not node.blocks:
            del parent.children[node.key]
            if parent is not self.root:
                self.claims.list_if_leaf(parent)
