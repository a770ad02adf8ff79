"""The KV memory of a vLLM replica: blocks, a prefix cache and the free list.

The cached blocks form a radix tree of whole blocks, which corresponds to vLLM's chained block
hashes. Blocks with the same hash belong to the same node of the tree. A node is a series of
consecutive blocks, so the cost of a look-up does not depend on the prompt's length. Several copies
of a node's blocks may be in memory, because vLLM keeps all copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Self, cast

from fairbench.core import Prompt, Request
from fairbench.engine.client_cache import Claims, ResidencyLog
from fairbench.engine.kv_cache import AttachedRequest
from fairbench.engine.sequence import Sequence
from fairbench.schedulers.eviction.policies import Access, EvictionPolicy
from fairbench.schedulers.prefix_tree import Place, place_at, truncate

# A slice of a prompt segment consists of the segment's key and the slice's offset and length.
Slice = tuple[str, int, int]
Key = tuple[Slice, ...]


def prefix_of(prompt: Prompt, depth: int) -> Prompt:
    """Return the first ``depth`` tokens of a prompt, without empty segments."""
    return tuple(one for one in truncate(prompt, depth) if one.length)


def next_block(prompt: Prompt, place: Place, tokens: int) -> Key:
    """Return the key of the block of ``tokens`` tokens at position ``place`` of a prompt.

    A block's key lists slices of prompt segments. Precondition: the prompt contains the whole
    block.
    """
    index, offset = place
    key, length = prompt[index]
    # A block usually lies within one segment of the prompt.
    if length - offset >= tokens:
        return ((key, offset, tokens),)
    slices = []
    while tokens:
        key, length = prompt[index]
        taken = min(length - offset, tokens)
        if taken:
            slices.append((key, offset, taken))
        tokens -= taken
        index, offset = index + 1, 0
    return tuple(slices)


def advance(prompt: Prompt, place: Place, tokens: int) -> Place:
    """Return the position in a prompt that is ``tokens`` tokens after the position ``place``."""
    index, upto = place
    upto += tokens
    while index < len(prompt) and upto >= (length := prompt[index][1]):
        index, upto = index + 1, upto - length
    return index, upto


def common_tokens(one: Prompt, at: Place, other: Prompt, place: Place, most: int) -> int:
    """Return how many tokens of two prompts agree from the positions ``at`` and ``place`` on.

    The function compares at most ``most`` tokens of each prompt. Precondition: the first prompt has
    at least ``most`` tokens after position ``at``.
    """
    (left, start), (right, offset), taken = at, place, 0
    while taken < most and right < len(other):
        key, length = one[left]
        name, size = other[right]
        if start == length:
            left, start = left + 1, 0
        elif offset == size:
            right, offset = right + 1, 0
        elif key != name or start != offset:
            break
        else:
            step = min(length - start, size - offset, most - taken)
            start, offset, taken = start + step, offset + step, taken + step
    return taken


class RunCopy:
    """A copy of a tree node's blocks in memory.

    ``users`` contains the owners of the requests that use the copied blocks. Unused copies are
    linked in the order of eviction; within a copy, the last block is evicted first. ``stamp`` is
    the number of returns of blocks to the pool before the copy became unused, if the cache counts
    returns.
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
        """Return a copy of the node's first part ``upper``, which is evicted after this copy."""
        copy = RunCopy(upper, set(self.users), self.stamp)
        if self.after is not None:
            copy.link(self, self.after)
        return copy


class BlockNode:
    """A node of the block tree, at which a prefix of ``depth`` tokens ends.

    The prefix consists of the first ``depth`` tokens of ``prompt``. The node holds the last
    ``blocks`` blocks of the prefix, which begin at position ``start``. ``key`` identifies the
    node's first block among the parent's ``children``.
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
        # copies of the node's blocks, usually only one; requests use the first copy
        self.copies: list[RunCopy] = []
        # ``waiters`` holds the requests whose cached prefix ends at the node, and ``awaited``
        # groups them by the block that would extend the prefix. For most nodes, ``waiters`` and
        # ``awaited`` are None.
        self.waiters: dict[BlockWaiter, None] | None = None
        self.awaited: dict[Key, dict[BlockWaiter, None]] | None = None

    def path(self) -> Iterator[BlockNode]:
        """Yield this node and all its ancestors except the root."""
        node = self
        while (parent := node.parent) is not None:
            yield node
            node = parent


BlockWaiter = AttachedRequest[BlockNode]


class BlockTree:
    """A radix tree whose edges are series of blocks of ``block_size`` tokens.

    The blocks of every node have at least one copy in memory.
    """

    def __init__(self, block_size: int, node_type: type[BlockNode] = BlockNode) -> None:
        self.block_size = block_size
        self.node_type = node_type
        self.root = node_type(None, (), (), (0, 0), 0)
        self.on_moved: Callable[[BlockWaiter], None] | None = None
        self.refresh_stamp = 0

    def match(self, prompt: Prompt, limit: int) -> tuple[BlockNode, Place]:
        return self.descend(self.root, prompt, (0, 0), limit)

    def descend(
        self, node: BlockNode, prompt: Prompt, place: Place, limit: int
    ) -> tuple[BlockNode, Place]:
        """Follow ``prompt`` from ``node`` to depth ``limit``; split the last node if needed."""
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
        """Add the next ``blocks`` full blocks of ``owner`` to the tree after ``node``.

        ``place`` is the position in the prompt at which ``node`` ends. Return the node at which the
        added blocks end, and the position of this end in the prompt.
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
        """Record that ``owner`` uses its own copy of the blocks of ``node``."""
        node.copies.append(RunCopy(node, {owner}))

    def split(self, node: BlockNode, blocks: int) -> BlockNode:
        """Split a node after its first ``blocks`` blocks; return the new upper node.

        ``node`` keeps its later blocks, so the prefix that ends at ``node`` stays the same. Every
        copy of the node is split, too, and the lower part of a copy is evicted first.
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
        """Remove the last ``blocks`` blocks of a node without children; one block must remain."""
        waiters = self._unfiled(node)
        node.blocks -= blocks
        node.depth -= blocks * self.block_size
        self._moved(waiters, node)

    def remove(self, node: BlockNode) -> None:
        """Remove a node without children, and attach its waiting requests to its parent."""
        assert not node.children, "a prefix is evicted after its continuations"
        assert node.parent is not None
        del node.parent.children[node.key]
        self._moved(self._unfiled(node), node.parent)

    def may_grow(self, node: BlockNode, owner: object) -> bool:
        """Return whether ``owner`` may append new blocks to the node instead of adding a child.

        Requests of owners other than ``owner`` must neither use the node nor wait for it.
        """
        if node.children or node.waiters or len(node.copies) != 1:
            return False
        users = node.copies[0].users
        return len(users) == 1 and owner in users

    def _enter(
        self, child: BlockNode, prompt: Prompt, place: Place, most: int
    ) -> tuple[BlockNode, Place]:
        """Match the prompt with the blocks of ``child``; split ``child`` if only some blocks match.

        Return the node and the position in the prompt at which the match ends.
        """
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
        """Append new blocks to ``node`` if it may grow, or else to a new child of ``node``."""
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

    # Waiting requests

    def refresh(self, waiters: Iterable[BlockWaiter]) -> None:
        self.refresh_stamp += 1
        for waiter in waiters:
            start, place = self.root, (0, 0)
            if waiter.node is not None:
                start, place = waiter.node, waiter.place
                self._unfile(waiter)
            node, _ = self.descend(start, waiter.prompt, place, waiter.total - 1)
            self._file(waiter, node)

    def detach(self, waiter: BlockWaiter) -> None:
        self._unfile(waiter)
        waiter.node = None

    def _file(self, waiter: BlockWaiter, node: BlockNode) -> None:
        waiter.node = node
        waiter.place = place_at(waiter.prompt, node.depth)
        if node.waiters is None or node.awaited is None:
            node.waiters, node.awaited = {}, {}
        node.waiters[waiter] = None
        if node.depth + self.block_size < waiter.total:
            key = next_block(waiter.prompt, waiter.place, self.block_size)
            node.awaited.setdefault(key, {})[waiter] = None

    def _unfile(self, waiter: BlockWaiter) -> None:
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

    def _unfiled(self, node: BlockNode) -> list[BlockWaiter]:
        waiters = list(node.waiters or ())
        for waiter in waiters:
            self._unfile(waiter)
        return waiters

    def _moved(self, waiters: Iterable[BlockWaiter], node: BlockNode) -> None:
        for waiter in waiters:
            self._file(waiter, node)
            if self.on_moved is not None:
                self.on_moved(waiter)


class BlockCache(BlockTree):
    """vLLM's pool of ``blocks`` KV blocks of ``block_size`` tokens each.

    Each block is either in the tree, or blank (without cached tokens).

    The cache calls ``on_evict(prefix, tokens)`` when it evicts the last ``tokens`` tokens of a
    prefix. One call reports all blocks of a prefix that are evicted in succession.

    vLLM's free list begins with the blank blocks, followed by the unused cached blocks, the least
    recently used first. Freed full blocks go to the tail of the free list, and other freed blocks
    go to its head. If ``prefix_caching`` is off, no free block has cached tokens.
    """

    # If ``knows_clients`` is true, the cache counts memory by client. If ``knows_clients`` is
    # false, ``claim`` and ``retain`` do nothing.
    knows_clients = False

    def __init__(
        self,
        blocks: int,
        block_size: int,
        on_evict: Callable[[Prompt, int], None] | None = None,
        *,
        prefix_caching: bool = True,
        node_type: type[BlockNode] = BlockNode,
    ) -> None:
        super().__init__(block_size, node_type)
        self.blocks = self.blank = blocks
        # ``unused_blocks`` is the number of cached blocks that no running request uses.
        self.unused_blocks = 0
        # ``shared`` sums, over all blocks in use, the number of a block's users minus 1.
        self.shared = 0
        self.on_evict = on_evict
        self.prefix_caching = prefix_caching
        # ``_end`` closes the circular list of unused copies of blocks.
        self._end = RunCopy(self.root, set())
        self._end.before = self._end.after = self._end
        # ``_row`` describes adjacent evicted blocks that are not reported yet: the prompt of the
        # blocks, and the position in the prompt at which the last block ends. ``_row_tokens``
        # counts the tokens of unreported blocks.
        self._row: tuple[Prompt, int] = ((), 0)
        self._row_tokens = 0
        # If ``_above`` (the parent of ``_row``) is evicted next, one report covers the blocks of
        # ``_above`` and ``_row``.
        self._above: BlockNode | None = None

    # Memory in tokens

    @property
    def capacity(self) -> int:
        return self.blocks * self.block_size

    @property
    def free(self) -> int:
        return self.blank * self.block_size

    @property
    def evictable(self) -> int:
        return self.unused_blocks * self.block_size

    def abandon(self) -> None:
        nodes = [self.root]
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            node.parent = None
            for copy in node.copies:
                copy.before = copy.after = None
            node.children.clear()
            node.copies.clear()
            node.waiters = node.awaited = None
        self._end.before = self._end.after = self._end

    # Memory in blocks

    @property
    def free_blocks(self) -> int:
        """The number of blocks that a request could get: blank blocks and unused cached blocks."""
        return self.blank + self.unused_blocks

    def unused(self) -> Iterator[RunCopy]:
        """Yield the unused copies of cached blocks in the order in which they are evicted."""
        copy = self._end.after
        while copy is not None and copy is not self._end:
            yield copy
            copy = copy.after

    @property
    def tells_evictions(self) -> bool:
        """Whether each eviction must be reported immediately."""
        return self.on_evict is not None

    def claim(self, node: BlockNode, request: Request) -> None:
        """Record that the request uses the path to ``node``."""

    def retain(self, node: BlockNode, request: Request) -> None:
        """Record that a request has finished, and that its tokens end at ``node``."""

    def take_blocks(self, count: int, owner: object = None) -> None:
        """Take ``count`` free blocks for ``owner``, blank blocks first.

        Precondition: enough blocks are free.
        """
        blank = min(count, self.blank)
        self.blank -= blank
        count -= blank
        while count:
            copy = self._end.after
            assert copy is not None
            blocks = min(count, copy.node.blocks)
            count -= blocks
            self._evict(copy, blocks)
        self._report()

    def use(self, copy: RunCopy, owner: object) -> None:
        """Record that a request of ``owner`` uses a cached copy."""
        if copy.users:
            self.shared += copy.node.blocks
        else:
            copy.unlink()
            self.unused_blocks -= copy.node.blocks
        copy.users.add(owner)

    def give_back(self, owner: object, node: BlockNode, blank: int) -> None:
        """Free ``blank`` uncached blocks of ``owner``; release its cached blocks up to ``node``."""
        self.blank += blank
        for copy in held_by(owner, node):
            copy.users.remove(owner)
            if copy.users:
                self.shared -= copy.node.blocks
            else:
                last = self._end.before
                assert last is not None
                copy.link(last, self._end)
                self.unused_blocks += copy.node.blocks

    def _evict(self, copy: RunCopy, blocks: int) -> None:
        node = copy.node
        self.unused_blocks -= blocks
        alone = len(node.copies) == 1
        if alone:
            if node is not self._above:
                self._report()
                self._row = node.prompt, node.depth
            self._above = node.parent
            self._row_tokens += blocks * self.block_size
        if alone and blocks < node.blocks:
            self.shorten(node, blocks)
            return
        if blocks < node.blocks:
            self.split(node, node.blocks - blocks)
        copy.unlink()
        node.copies.remove(copy)
        if alone:
            self.remove(node)

    def _report(self) -> None:
        """Report a series of blocks evicted one after another in a single call of ``on_evict``."""
        if self._row_tokens and self.on_evict is not None:
            self.on_evict(prefix_of(*self._row), self._row_tokens)
        self._row_tokens, self._above = 0, None

    # Interface ``PrefixCache``

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        return self.match(prompt, limit)[0].depth

    def touch(self, node: BlockNode) -> None:
        """Do nothing, because a look-up in vLLM does not count as a use of a block."""


def held_by(owner: object, node: BlockNode) -> Iterator[RunCopy]:
    """Yield the block copies that ``owner`` uses on the path to ``node``, deepest copy first."""
    for each in node.path():
        yield next(copy for copy in each.copies if owner in copy.users)


class ClaimedRun(BlockNode):
    """Consecutive cached blocks with the clients that claim them (see ``Claimed``)."""

    __slots__ = ("claimed_below", "holders", "keep_s", "listed_for", "number", "uses")

    def __init__(
        self, parent: Self | None, key: Key, prompt: Prompt, start: Place, depth: int
    ) -> None:
        super().__init__(parent, key, prompt, start, depth)
        self.holders: dict[str, None] = {}
        self.claimed_below: dict[str, int] = {}
        self.listed_for: set[str] = set()
        self.uses = 0
        self.keep_s = 0.0
        self.number = 0

    def oldest(self) -> RunCopy | None:
        """Return the unused copy of the node's blocks that will be evicted first, or None."""
        unused = (copy for copy in self.copies if not copy.users)
        return min(unused, key=_stamp, default=None)

    @property
    def last_access(self) -> Access:
        """The sort key of eviction: the oldest unused copy first, then the deepest node."""
        copy = self.oldest()
        return (0 if copy is None else copy.stamp), -self.depth, 0


class ClientBlockCache(BlockCache):
    """A pool of ``blocks`` blocks of ``block_size`` tokens, with evictions by ``policy``.

    The policy chooses among nodes with an unused copy and without a cached continuation, and the
    last block of the chosen node is evicted. Each copy of a node's tokens has its own time of last
    use. Look-ups use only a node's first copy, so its other copies can be evicted even if the node
    has cached children. The ``owner`` of a block is the sequence of a running request.
    """

    knows_clients = True
    # The memory log needs the exact time of each eviction.
    tells_evictions = True

    def __init__(
        self,
        blocks: int,
        block_size: int,
        policy: EvictionPolicy,
        log: ResidencyLog,
        *,
        prefix_caching: bool = True,
    ) -> None:
        super().__init__(blocks, block_size, prefix_caching=prefix_caching, node_type=ClaimedRun)
        self.claims: Claims[ClaimedRun] = Claims(policy, log, self)
        self.residency = self.claims.residency
        self._given_back = 0
        self._created = 0

    # Memory by client

    def prefix_tokens(self, prompt: Prompt, limit: int) -> tuple[int, int]:
        """Return how many tokens of a prompt are cached, and how many are cached and in use."""
        node = self.match(prompt, limit)[0]
        used = (one for one in node.path() if self.tokens_of(cast(ClaimedRun, one))[0])
        return node.depth, next((one.depth for one in used), 0)

    def take_blocks(self, count: int, owner: object = None) -> None:
        client, tokens = _client_of(owner), count * self.block_size
        self.claims.keep_within_limit(client, tokens)
        wanted, size = {client: tokens}, self.block_size
        if count > self.blank:
            self.claims.check_pins(wanted)
        while (short := count - self.blank) > 0:
            if not self.claims.end_next(wanted, client, short * size):
                break
        super().take_blocks(count, owner)
        self.residency.add_private(client, tokens)

    def use(self, copy: RunCopy, owner: object) -> None:
        if not copy.users:
            self._pin(copy, 1)
        super().use(copy, owner)

    def give_back(self, owner: object, node: BlockNode, blank: int) -> None:
        held = list(held_by(owner, node))
        super().give_back(owner, node, blank)
        self.residency.add_private(_client_of(owner), -blank * self.block_size)
        self._given_back += 1
        for copy in held:
            if not copy.users:
                copy.stamp = self._given_back
                self._pin(copy, -1)
                self._list_anew(cast(ClaimedRun, copy.node))

    def _pin(self, copy: RunCopy, sign: int) -> None:
        node = cast(ClaimedRun, copy.node)
        self.residency.pin(node.holders, sign * node.blocks * self.block_size)

    def _list_anew(self, node: ClaimedRun) -> None:
        if len(node.copies) > 1:
            # A node may be evicted earlier once another copy of the node is unused, so its rank is
            # updated.
            self.claims.list_again(node)
        self.claims.list_if_leaf(node)

    # Claims on nodes

    def claim(self, node: BlockNode, request: Request) -> None:
        self.claims.start(cast(ClaimedRun, node), request)

    def retain(self, node: BlockNode, request: Request) -> None:
        self.claims.finish(cast(ClaimedRun, node), request)

    # Prefix tree

    def add_copy(self, owner: object, node: BlockNode) -> None:
        mine, client = cast(ClaimedRun, node), _client_of(owner)
        self.claims.claim(mine, client)
        super().add_copy(owner, node)
        self.residency.add_copy(mine.holders, client, node.blocks * self.block_size)
        self._list_anew(mine)

    def may_grow(self, node: BlockNode, owner: object) -> bool:
        """Return whether no other sequence uses the node, and no other client has used the node."""
        mine = cast(ClaimedRun, node)
        only = super().may_grow(node, owner) and not mine.uses
        return only and [*mine.holders] == [_client_of(owner)]

    def _append(
        self, owner: object, node: BlockNode, key: Key, prompt: Prompt, place: Place, blocks: int
    ) -> tuple[BlockNode, Place]:
        end, place = super()._append(owner, node, key, prompt, place, blocks)
        mine, client = cast(ClaimedRun, end), _client_of(owner)
        if end is node:
            self.residency.store(client, blocks * self.block_size)
        else:
            self._number(mine)
            self.claims.claim(mine, client)
        return end, place

    def split(self, node: BlockNode, blocks: int) -> BlockNode:
        """Split a node as the base class does; every client of the node then claims both parts."""
        upper = super().split(node, blocks)
        above, below = cast(ClaimedRun, upper), cast(ClaimedRun, node)
        self._number(above)
        above.holders = dict(below.holders)
        above.claimed_below = dict.fromkeys(below.holders, 1)
        if len(upper.copies) > 1:
            self.claims.list_if_leaf(above)
        return upper

    def _number(self, node: ClaimedRun) -> None:
        self._created += 1
        node.number = self._created

    def _unfile(self, waiter: BlockWaiter) -> None:
        """Detach a waiting request from its node, whose eviction rank may fall as a result."""
        node = cast(ClaimedRun, waiter.node)
        super()._unfile(waiter)
        self.claims.list_again(node)

    def abandon(self) -> None:
        super().abandon()
        self.claims.abandon()

    # Interface ``ClaimedMemory``

    def tokens_of(self, node: ClaimedRun) -> tuple[int, int]:
        used, tokens = sum(1 for copy in node.copies if copy.users), node.blocks * self.block_size
        return used * tokens, (len(node.copies) - used) * tokens

    def is_pinned(self, node: ClaimedRun) -> bool:
        return all(copy.users for copy in node.copies)

    def spare_tokens(self, node: ClaimedRun) -> int:
        spare = len(node.copies) > 1 and not self.is_pinned(node)
        return node.blocks * self.block_size if spare else 0

    def access_of(self, node: ClaimedRun) -> Access:
        return node.last_access

    def is_awaited(self, node: ClaimedRun) -> bool:
        return bool(node.waiters)

    def end_use(self, node: ClaimedRun) -> None:
        """Do nothing, because requests already free child blocks before parent blocks."""

    def cut(self, node: ClaimedRun, tokens: int) -> None:
        """Split ``node`` so that it keeps only its last ``tokens`` tokens, in whole blocks."""
        blocks = max(1, -(-tokens // self.block_size))
        if node.blocks > blocks:
            self.split(node, node.blocks - blocks)

    def drop(self, node: ClaimedRun) -> None:
        """Free the blocks of a node's least recently used copy."""
        copy, parent = node.oldest(), node.parent
        assert copy is not None
        assert parent is not None
        last = len(node.copies) == 1
        self.blank += node.blocks
        self._evict(copy, node.blocks)
        if last and parent is not self.root:
            self.claims.list_if_leaf(parent)


def _client_of(owner: object) -> str:
    return cast(Sequence, owner).request.client


def _stamp(copy: RunCopy) -> int:
    return copy.stamp
