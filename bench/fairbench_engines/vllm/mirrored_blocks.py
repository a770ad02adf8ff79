"""A copy of vLLM's block pool, in which an eviction policy chooses the block to overwrite.

Like vLLM, the copy (mirror) stores single blocks under chained hashes. A node holds all blocks with
equal hashes, and thus with equal tokens. The simulator's code decides which client claims a block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fairbench.core import Request
from fairbench.engine.client_cache import Claims
from fairbench.schedulers.eviction.policies import Access, EvictionPolicy
from fairbench_engines.mirrored_cache import OTHERS, LiveMemoryLog

Theirs = Any  # the type of vLLM's blocks


class MirroredBlock:
    """A block of vLLM's pool; ``client`` is the client of the request that first used it.

    ``given_back`` orders the blocks by their return to the pool.
    """

    __slots__ = ("client", "given_back", "node", "theirs", "users")

    def __init__(self, theirs: Theirs, client: str) -> None:
        self.theirs = theirs
        self.client = client
        self.users = 1
        self.given_back = 0
        self.node: HashNode | None = None  # the block's node, set when the block is full


class HashNode:
    """All blocks with the chained hash ``key``, which hold equal tokens after equal prefixes.

    The class implements ``Claimed``, the interface of cached tokens that clients claim.
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
        """Return the unused block to evict first, or None if all blocks are in use."""
        unused = (block for block in self.blocks if not block.users)
        return min(unused, key=lambda block: block.given_back, default=None)

    @property
    def last_access(self) -> Access:
        """The count of returned blocks when the node's oldest unused block was returned."""
        block = self.oldest()
        return (0 if block is None else block.given_back), 0, 0


class MirroredBlocks:
    """A pool of ``blocks`` blocks of ``size`` tokens, from which ``policy`` evicts.

    The function ``overwrite`` must empty a block of vLLM, and make this block the next that vLLM
    allocates. Tokens of clients that the policy does not know are evicted first.
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
        self._of: dict[int, MirroredBlock] = {}
        self._nodes: dict[bytes, HashNode] = {}  # all nodes except the root, by their hashes
        self._given_back = self._created = 0

    @property
    def free(self) -> int:
        """The number of tokens that fit into the empty blocks."""
        return self._blank * self._size

    def found(self, hashes: Sequence[bytes]) -> tuple[int, int]:
        """Return how many tokens of a prompt are cached, and how many of these are in use.

        ``hashes`` are the chained hashes of the prompt's blocks. If a block is cached or in use,
        all previous blocks are also cached or in use.
        """
        nodes, range_ = self._nodes, range(len(hashes))
        cached = bisect_left(range_, True, key=lambda at: hashes[at] not in nodes)
        used = bisect_left(
            range_, True, hi=cached, key=lambda at: self._is_unused(nodes[hashes[at]])
        )
        return cached * self._size, used * self._size

    @staticmethod
    def _is_unused(node: HashNode) -> bool:
        return not any(block.users for block in node.blocks)

    def make_room(self, count: int, client: str) -> None:
        """Let the policy evict blocks for a client's request until ``count`` blocks are empty."""
        tokens = count * self._size
        self.claims.keep_within_limit(client, tokens)
        while self._blank < count and self.claims.end_next({client: tokens}, client):
            pass

    def take(self, blocks: Iterable[Theirs], client: str) -> None:
        """Record that vLLM has given empty blocks to a request of the client."""
        for theirs in blocks:
            self._of[theirs.block_id] = MirroredBlock(theirs, client)
            self._blank -= 1
            self.residency.add_private(client, self._size)

    def use(self, blocks: Sequence[Theirs], request: Request) -> HashNode:
        """Record that an admitted request uses cached blocks; return the node of the last block."""
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
        """Store full blocks as a path below ``node``, a hash per block; return the last node."""
        for key, block in zip(hashes, map(self._mine, blocks), strict=True):
            child = node.children.get(key)
            if child is None:
                self._created += 1
                child = node.children[key] = HashNode(node, key, self._created)
                self._nodes[key] = child
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
        """Record the end of a request whose stored tokens end at ``node``."""
        self.claims.finish(node, request)

    def give_back(self, blocks: Iterable[Theirs]) -> None:
        """Record that a request returns its blocks, in vLLM's order of reuse."""
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
            # The node's position in the eviction order depends on its oldest unused block.
            self.claims.list_again(node)
        self.claims.list_if_leaf(node)

    # The following methods implement ``ClaimedMemory``.

    def tokens_of(self, node: HashNode) -> tuple[int, int]:
        """Return how many of the node's tokens are in use, and how many are unused."""
        used = sum(1 for block in node.blocks if block.users)
        return used * self._size, (len(node.blocks) - used) * self._size

    def is_pinned(self, node: HashNode) -> bool:
        """Return whether running requests use all blocks of the node."""
        return all(block.users for block in node.blocks)

    def spare_tokens(self, node: HashNode) -> int:
        """Return how many evictable tokens of the node have a copy in another block."""
        return self._size if len(node.blocks) > 1 and not self.is_pinned(node) else 0

    def access_of(self, node: HashNode) -> Access:
        return node.last_access

    def is_awaited(self, node: HashNode) -> bool:
        """Return False, because no eviction policy that runs in vLLM calls this method."""
        return False

    def end_use(self, node: HashNode) -> None:
        """Do nothing, because vLLM itself returns a request's blocks from the last to the first."""

    def cut(self, node: HashNode, tokens: int) -> None:
        """Do nothing, because a node with the tokens of a single block cannot be split."""

    def drop(self, node: HashNode) -> None:
        """Evict the least recently used block among the blocks of ``node``."""
        block, parent = node.oldest(), node.parent
        assert block is not None
        assert parent is not None
        node.blocks.remove(block)
        del self._of[block.theirs.block_id]
        self._blank += 1
        self._overwrite(block.theirs)
        if not node.blocks:
            del parent.children[node.key], self._nodes[node.key]
            if parent is not self.root:
                self.claims.list_if_leaf(parent)
