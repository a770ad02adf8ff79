"""The bounded tree: a location tree that keeps a limited number of recently used nodes."""

from __future__ import annotations

from typing import Self

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt
from fairbench.schedulers.location_tree import Found, LocationNode, LocationTree
from fairbench.schedulers.prefix_tree import Edge, Place

MAX_NODES = 1_000_000
NOBODY = -1


@mypyc_attr(allow_interpreted_subclasses=True)
class RecentNode(LocationNode):
    """A node that is linked in a ring with the nodes used just before and after it."""

    __slots__ = ("newer", "older")

    newer: Self
    older: Self

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.newer = self.older = self

    def unlink(self) -> None:
        """Out of the ring."""
        self.older.newer, self.newer.older = self.newer, self.older

    def link_before(self, joint: Self) -> None:
        """Insert this node into the ring before ``joint``, as the node used last."""
        self.newer, self.older = joint, joint.older
        joint.older.newer = joint.older = self


@mypyc_attr(allow_interpreted_subclasses=True)
class BoundedTree(LocationTree[RecentNode]):
    """A location tree that keeps at most ``limit`` nodes, or the nodes of one prompt if more.

    A prompt that is added uses its whole path, whichever worker it goes to. Beyond the limit the
    longest unused leaf is forgotten, marks and all, so that what is kept of a prompt is always a
    prefix of it, with the marks it would have in an unbounded tree but for those that were
    forgotten meanwhile. A router that forgets a prefix that a worker has loses a hit there, and no
    more: the next request is routed as if it were new. Each call takes the same time as unbounded.
    """

    def __init__(self, limit: int = MAX_NODES) -> None:
        super().__init__(RecentNode)
        self.limit = limit
        self.size = 0  # nodes but the root
        # The prompt that was added last, and its end while that is there: programs branch, and so
        # the next prompt is often the very same one.
        self._latest: tuple[Prompt, RecentNode] | None = None
        self._marked = NOBODY  # for whom it was added, if there has been no news since

    def find(self, prompt: Prompt) -> Found[RecentNode]:
        if (latest := self._latest) is not None and latest[0] is prompt:
            return Found(latest[1], (len(prompt), 0))
        return super().find(prompt)

    def add(self, found: Found[RecentNode], prompt: Prompt, worker: int) -> RecentNode:
        latest = self._latest
        if latest is not None and latest[0] is prompt and worker == self._marked:
            return latest[1]  # all of it is marked, and was used last
        end = super().add(found, prompt, worker)
        if self.size > self.limit:
            self._shrink(end)
        self._latest, self._marked = (prompt, end), worker
        return end

    def evict(self, prefix: Prompt, evicted_tokens: int, worker: int) -> None:
        super().evict(prefix, evicted_tokens, worker)
        self._shrink(self.root)

    def mark_path(self, end: RecentNode, worker: int) -> None:
        """Mark a path as just used, from the leaf up, so that the oldest node is always a leaf.

        The effect is that of ``mark``, ``unlink`` and ``link_before``, without three calls per
        node.
        """
        bit, root, node = 1 << worker, self.root, end
        newest = root.older
        while (parent := node.parent) is not None:
            node.workers |= bit
            if newest is not node:
                older, newer = node.older, node.newer
                older.newer, newer.older = newer, older
                node.older, newest.newer = newest, node
                newest = node
            node = parent
        newest.newer, root.older = root, newest

    def unmark(self, node: RecentNode, worker: int) -> None:
        super().unmark(node, worker)
        self._marked = NOBODY

    def extend(self, node: RecentNode, prompt: Prompt, place: Place, depth: int) -> RecentNode:
        child = super().extend(node, prompt, place, depth)
        child.link_before(self.root)
        self.size += 1
        return child

    def on_split(self, upper: RecentNode, lower: RecentNode) -> None:
        super().on_split(upper, lower)
        upper.link_before(lower.newer)
        self.size += 1

    def remove(self, leaf: RecentNode) -> RecentNode:
        if self._latest is not None and self._latest[1] is leaf:
            self._latest = None
        leaf.unlink()
        self.size -= 1
        return super().remove(leaf)

    def _shrink(self, newest: RecentNode) -> None:
        """Forget the leaves that were unused for longest, except ``newest``."""
        while self.size > self.limit and (node := self.root.newer) is not newest:
            node.workers = 0
            self.prune(node)
