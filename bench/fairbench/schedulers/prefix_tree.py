"""The prefix tree: a radix tree over prompts, for the simulated KV cache and for the routers.

Edges hold slices ``(key, start, length)`` of segments, so the tree splits wherever two prompts
part, inside a segment too, without ever listing tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from fairbench.compiled import mypyc_attr
from fairbench.core import Prompt, Segment

Slice = tuple[str, int, int]
Place = tuple[int, int]  # where a walk stopped in its prompt: segment index, offset in the segment


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A tree node: the slices on the edge above it, and ``depth``, the tokens down to its end."""

    __slots__ = ("children", "depth", "edge", "length", "parent")

    parent: Self | None
    children: dict[tuple[str, int], Self]

    def __init__(self, parent: Self | None, edge: tuple[Slice, ...], length: int) -> None:
        self.parent = parent
        self.edge = edge
        self.length = length
        self.depth: int = length if parent is None else parent.depth + length
        self.children = {}

    @property
    def key(self) -> tuple[str, int]:
        """The key under which the parent holds this node."""
        name, start, _ = self.edge[0]
        return name, start


N = TypeVar("N", bound=Node)


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixTree(Generic[N]):
    """A radix tree of nodes of one type. Subclass to react to splits."""

    def __init__(self, node_type: type[N]) -> None:
        self._node_type = node_type
        self.root: N = node_type(None, (), 0)

    def descend(
        self, node: N, prompt: Prompt, place: Place, limit: int, *, split: bool = True
    ) -> tuple[N, Place]:
        """Walk down from ``node``, which ends at ``place`` of the prompt, to depth ``limit``.

        Returns the deepest node whose whole path is a prefix of the prompt, and where it ends.
        A node that matches in part is split there (or, with ``split=False``, not entered).
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
            length, left = child.length, whole - offset
            if length <= left and length <= remaining and length == child.edge[0][2]:
                # The common case: one slice, which the child's key has identified, all of it.
                node, remaining = child, remaining - length
                index, offset = (index, offset + length) if length < left else (index + 1, 0)
                continue
            taken, end = _common(child.edge, prompt, index, offset, remaining)
            if taken < child.length:
                if split:
                    node, (index, offset) = self.split(child, taken), end
                break
            node, (index, offset) = child, end
            remaining -= taken
        return node, (index, offset)

    def match(self, prompt: Prompt, limit: int) -> tuple[N, Place]:
        """``descend`` from the root: the longest stored prefix, at most ``limit`` tokens."""
        return self.descend(self.root, prompt, (0, 0), limit)

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        """The length of the match, at most ``limit``, without splitting the tree for it."""
        node, (index, offset) = self.descend(self.root, prompt, (0, 0), limit, split=False)
        if index == len(prompt):
            return node.depth
        child = node.children.get((prompt[index].key, offset))
        if child is None:
            return node.depth
        return node.depth + _common(child.edge, prompt, index, offset, limit - node.depth)[0]

    def extend(self, node: N, prompt: Prompt, place: Place, depth: int) -> N:
        """Add the prompt from ``place`` to ``depth`` tokens as one new child of ``node``.

        Precondition: a walk along this prompt stopped at ``node`` and ``place``.
        """
        length = depth - node.depth
        child = self._node_type(node, _slices(prompt, place, length), length)
        index, offset = place
        node.children[prompt[index].key, offset] = child
        return child

    def split(self, node: N, tokens: int) -> N:
        """Cut the edge above ``node`` after ``tokens``; returns the new upper node.

        ``node`` stays the lower part, so whoever holds it still holds the same prefix.
        """
        upper_edge, lower_edge = _cut(node.edge, tokens)
        parent = node.parent
        assert parent is not None
        upper = self._node_type(parent, upper_edge, tokens)
        parent.children[upper.key] = upper
        node.parent, node.edge, node.length = upper, lower_edge, node.length - tokens
        upper.children[node.key] = node
        self.on_split(upper, node)
        return upper

    def on_split(self, upper: N, lower: N) -> None:
        """Copy to ``upper`` what holds for the part of ``lower`` that it took over."""

    def remove(self, leaf: N) -> N:
        """Take a childless node out; returns its parent."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        name, start, _ = leaf.edge[0]
        del parent.children[name, start]
        return parent

    def nodes(self) -> Iterator[N]:
        """Every node but the root, parents first."""
        stack: list[N] = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


def path(node: Node) -> Prompt:
    """The prefix that ends at ``node``, as a prompt."""
    segments: list[Segment] = []
    at: Node | None = node
    goes_on = False  # the slice below is of the same segment, which is in the list
    while at is not None:
        for key, start, length in reversed(at.edge):
            if not goes_on:
                segments.append(Segment(key, start + length))
            goes_on = start > 0
        at = at.parent
    segments.reverse()
    return tuple(segments)


def place_at(prompt: Prompt, depth: int) -> Place:
    """Where a prefix of ``depth`` tokens ends in the prompt."""
    for index, (_, length) in enumerate(prompt):
        if depth < length:
            return index, depth
        depth -= length
    return len(prompt), 0


def truncate(prompt: Prompt, tokens: int) -> Prompt:
    """The first ``tokens`` tokens of a prompt."""
    return tuple(Segment(key, length) for key, _, length in _slices(prompt, (0, 0), tokens))


def _common(
    edge: tuple[Slice, ...], prompt: Prompt, index: int, offset: int, limit: int
) -> tuple[int, Place]:
    """Tokens that an edge and a prompt share from ``index, offset`` on, and where that ends."""
    taken, count = 0, len(prompt)
    for key, start, length in edge:
        if index == count:
            break
        segment_key, left = prompt[index]
        if key != segment_key or start != offset:
            break
        left -= offset
        if length == left and length <= limit - taken:  # all that is left, as of most segments
            taken += length
            index, offset = index + 1, 0
            continue
        step = min(length, left, limit - taken)
        taken += step
        index, offset = (index, offset + step) if step < left else (index + 1, 0)
        if step < length:
            break
    return taken, (index, offset)


def _slices(prompt: Prompt, place: Place, tokens: int) -> tuple[Slice, ...]:
    """``tokens`` tokens of a prompt from ``place`` on."""
    if tokens <= 0:
        return ()
    index, offset = place
    key, length = prompt[index]
    if tokens <= length - offset:  # as of most outputs and many questions
        return ((key, offset, tokens),)
    slices = [(key, offset, length - offset)]
    tokens -= length - offset
    for key, length in prompt[index + 1 :]:
        if tokens <= length:
            slices.append((key, 0, tokens))
            break
        slices.append((key, 0, length))
        tokens -= length
    return tuple(slices)


def _cut(edge: tuple[Slice, ...], tokens: int) -> tuple[tuple[Slice, ...], tuple[Slice, ...]]:
    """An edge as its first ``tokens`` tokens and the rest."""
    for position, (key, start, length) in enumerate(edge):
        if tokens < length:
            head = (*edge[:position], (key, start, tokens)) if tokens else edge[:position]
            return head, ((key, start + tokens, length - tokens), *edge[position + 1 :])
        tokens -= length
    raise AssertionError("a cut lies inside its edge")
