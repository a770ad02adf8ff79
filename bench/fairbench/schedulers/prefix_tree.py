"""The prefix tree: a radix tree over prompts, for the simulated KV cache and for routers.

An edge of the tree stores a part of a prompt as a tuple of segments instead of single tokens. An
edge is split where two prompts differ, even inside a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, Segment, new_tuple, prompt_tokens

# the tokens of a tree edge, as segments; the first segment may begin before the edge
Edge = Prompt
# A position in a prompt: the index of a segment, and the offset in this segment in tokens.
Place = tuple[int, int]


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A tree node with the edge that leads to it.

    The edge has ``length`` tokens and begins ``start`` tokens into its first segment. ``depth`` is
    the number of tokens from the root to the node.
    """

    __slots__ = ("children", "depth", "edge", "length", "parent", "start")

    parent: Self | None
    children: dict[tuple[str, int], Self]

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        self.parent = parent
        self.edge = edge
        self.start = 0
        self.length = length
        self.depth: int = length if parent is None else parent.depth + length
        self.children = {}

    @property
    def key(self) -> tuple[str, int]:
        """The node's key among its siblings: the first segment's name, and the offset in it."""
        return self.edge[0].key, self.start


N = TypeVar("N", bound=Node)


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixTree(Generic[N]):
    """A radix tree over prompts, with nodes of type ``node_type``."""

    def __init__(self, node_type: type[N]) -> None:
        self._node_type = node_type
        self.root: N = node_type(None, (), 0)

    def descend(
        self, node: N, prompt: Prompt, place: Place, limit: int, *, split: bool = True
    ) -> tuple[N, Place]:
        """Follow a prompt down the tree from ``node`` to depth ``limit``.

        ``place`` is the position in the prompt at which ``node`` ends. Return the deepest node
        whose whole path is a prefix of the prompt, and the position in the prompt at which this
        node ends. With ``split``, a node that matches the prompt only in part is split at the end
        of the match.
        """
        index, offset = place
        count = len(prompt)
        remaining = limit - node.depth
        while index < count and remaining > 0:
            if not node.children:
                break
            name, whole = prompt[index]
            child = node.children.get((name, offset))
            if child is None:
                break
            edge, length = child.edge, child.length
            if length <= remaining:
                # Fast path: most edges lie within one segment, or end at the end of a segment.
                if len(edge) == 1 and (end := offset + length) <= whole:
                    node, remaining = child, remaining - length
                    index, offset = (index, end) if end < whole else (index + 1, 0)
                    continue
                if prompt[index : index + len(edge)] == edge:
                    node, remaining = child, remaining - length
                    index, offset = index + len(edge), 0
                    continue
            taken, place = _common(edge, prompt, index, offset, remaining)
            if taken < length:
                if split:
                    node, (index, offset) = self.split(child, taken), place
                break
            node, (index, offset) = child, place
            remaining -= taken
        return node, (index, offset)

    def match(self, prompt: Prompt, limit: int) -> tuple[N, Place]:
        """Match at most ``limit`` tokens of a prompt; return the last node and the match's end."""
        return self.descend(self.root, prompt, (0, 0), limit)

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """Return the length of the prompt's longest stored prefix, at most ``limit`` tokens."""
        node, (index, offset) = self.descend(self.root, prompt, (0, 0), limit, split=False)
        if index == len(prompt):
            return node.depth
        child = node.children.get((prompt[index].key, offset))
        if child is None:
            return node.depth
        return node.depth + _common(child.edge, prompt, index, offset, limit - node.depth)[0]

    def extend(self, node: N, prompt: Prompt, place: Place, depth: int) -> N:
        """Add the prompt's tokens from ``place`` to depth ``depth`` as a new child of ``node``.

        Precondition: ``descend`` along this prompt has returned ``node`` and ``place``.
        """
        length = depth - node.depth
        child = self._node_type(node, _stretch(prompt, place, length), length)
        index, child.start = place
        # Reading a segment's name by index is faster than by attribute.
        node.children[prompt[index][0], child.start] = child
        return child

    def split(self, node: N, tokens: int) -> N:
        """Split the edge above ``node`` after ``tokens`` tokens; return the new upper node.

        The object ``node`` becomes the child of the new upper node.
        """
        upper_edge, lower_edge = _cut(node.edge, node.start + tokens)
        parent = node.parent
        assert parent is not None
        upper = self._node_type(parent, upper_edge, tokens)
        upper.start = node.start
        parent.children[upper.key] = upper
        node.parent, node.edge, node.length = upper, lower_edge, node.length - tokens
        node.start = prompt_tokens(lower_edge) - node.length
        upper.children[node.key] = node
        self.on_split(upper, node)
        return upper

    def on_split(self, upper: N, lower: N) -> None:
        """Copy the properties that the new node ``upper`` shares with ``lower`` after a split."""

    def remove(self, leaf: N) -> N:
        """Remove a node without children, and return its parent."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        del parent.children[leaf.key]
        return parent

    def nodes(self) -> Iterator[N]:
        """Yield every node except the root; parents come first."""
        stack: list[N] = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def path(node: Node) -> Prompt:
    """Return the prefix that ends at ``node``, as a prompt."""
    segments: list[Segment] = []
    # ``goes_on`` is true if the last segment of this edge continues in the edge below.
    goes_on = False
    while (parent := node.parent) is not None:
        edge = node.edge
        segments += reversed(edge[:-1] if goes_on else edge)
        goes_on = node.start > 0
        node = parent
    segments.reverse()
    return tuple(segments)


def place_at(prompt: Prompt, depth: int) -> Place:
    """Return the position in the prompt at which a prefix of ``depth`` tokens ends."""
    for index, (_, length) in enumerate(prompt):
        if depth < length:
            return index, depth
        depth -= length
    return len(prompt), 0


def truncate(prompt: Prompt, tokens: int) -> Prompt:
    """Return the first ``tokens`` tokens of a prompt."""
    return _stretch(prompt, (0, 0), tokens)


def _common(edge: Edge, prompt: Prompt, index: int, offset: int, limit: int) -> tuple[int, Place]:
    """Return the number of tokens that an edge and a prompt share, and the end of the match.

    The comparison starts ``offset`` tokens into the segment ``prompt[index]``. Precondition: the
    edge starts at token ``offset`` of a segment with the same key as ``prompt[index]``.
    """
    taken, count = 0, len(prompt)
    for key, end in edge:
        if index == count:
            break
        segment_key, whole = prompt[index]
        if key != segment_key:
            break
        reached = min(end, whole, offset + limit - taken)
        taken += reached - offset
        index, offset = (index, reached) if reached < whole else (index + 1, 0)
        if reached < end or offset:
            break
    return taken, (index, offset)


def _stretch(prompt: Prompt, place: Place, tokens: int) -> Edge:
    if tokens <= 0:
        return ()
    index, upto = place
    upto += tokens
    at = index
    for key, length in prompt[index:] if index else prompt:
        if upto == length:
            return prompt[index : at + 1]
        if upto < length:
            return (*prompt[index:at], new_tuple(Segment, (key, upto)))
        upto -= length
        at += 1
    return prompt[index:]


def _cut(edge: Edge, upto: int) -> tuple[Edge, Edge]:
    """Split an edge at ``upto``, a number of tokens from the start of its first segment."""
    for position, (key, end) in enumerate(edge):
        if upto < end:
            return (*edge[:position], Segment(key, upto)), edge[position:]
        if upto == end:
            return edge[: position + 1], edge[position + 1 :]
        upto -= end
    raise AssertionError("the edge of the prefix tree ends before the position of the split")


IN_BATCH_TOKENS = 32  # the threshold of SGLang's in-batch prefix check


def head_of(prompt: Prompt) -> Prompt | None:
    """Return the first 32 tokens of a prompt, or None for a prompt of fewer tokens."""
    if prompt_tokens(prompt) < IN_BATCH_TOKENS:
        return None
    return truncate(prompt, IN_BATCH_TOKENS)
