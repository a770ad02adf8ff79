"""Charging for a prefix that several clients share ([DLPM] §9 leaves the rule open)."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, Self

from fairbench.core import Prompt, Request, prompt_tokens
from fairbench.schedulers.prefix_tree import Edge, Node, PrefixTree

Sharing = Literal["split", "owner", "each"]
REMEMBERED_TOKENS = 5_000_000  # limit on stored shared prefixes; beyond it all are forgotten


class SharedNode(Node):
    """A stretch of tokens with its owner and the clients that have paid a part of it."""

    __slots__ = ("owner", "sharers")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.sharers: tuple[str, ...] = ()
        self.owner: str | None = None


class _SharedTree(PrefixTree[SharedNode]):
    def on_split(self, upper: SharedNode, lower: SharedNode) -> None:
        upper.sharers, upper.owner = lower.sharers, lower.owner


class SharedCharges:
    """The tokens that each client pays for a request that computes a part of its prompt.

    ``split``: all users of a prefix have paid equal parts of it: the n-th client pays 1/n, and the
    n - 1 clients before it are refunded the excess. When the prefix is computed again, the division
    restarts. ``owner``: the client that first sent the prefix pays for each computation. ``each``:
    every user pays the whole prefix, cached or not. Under the first two rules the charged tokens
    always equal the computed tokens. Without sharing, the client that computes a prefix pays for
    it, and a client that finds it cached pays nothing.
    """

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._tree = _SharedTree(SharedNode)
        self._stored = 0

    def charges(self, request: Request, computed_tokens: int) -> dict[str, float]:
        """Return client -> tokens to pay for the last ``computed_tokens``; negative is a refund."""
        if self._sharing == "each":
            return {request.client: request.input_tokens}
        known = prompt_tokens(request.prompt)
        cached = min(known, request.input_tokens - computed_tokens)
        due: defaultdict[str, float] = defaultdict(float)
        # Tokens computed beyond the known prompt belong to the request alone.
        due[request.client] = float(computed_tokens - (known - cached))
        for node in self._path(request.prompt, cached, known):
            if node.depth > cached:
                self._compute(node, request.client, due)
            elif self._sharing == "split" and request.client not in node.sharers:
                self._join(node, request.client, due)
        return due

    def _path(self, prompt: Prompt, cached: int, known: int) -> list[SharedNode]:
        """Return the prompt's nodes from the root on; a node ends where the cached part ends."""
        if self._stored > REMEMBERED_TOKENS:
            self._tree, self._stored = _SharedTree(SharedNode), 0
        end, place = self._tree.match(prompt, cached)
        for limit in (cached, known):
            end, place = self._tree.descend(end, prompt, place, limit)
            if end.depth < limit:
                self._stored += limit - end.depth
                end = self._tree.extend(end, prompt, place, limit)
                _, place = self._tree.match(prompt, limit)
        path = []
        while end.parent is not None:
            path.append(end)
            end = end.parent
        return path[::-1]

    def _compute(self, node: SharedNode, client: str, due: defaultdict[str, float]) -> None:
        node.owner = node.owner or client
        node.sharers = (client,)
        due[client if self._sharing == "split" else node.owner] += node.length

    def _join(self, node: SharedNode, client: str, due: defaultdict[str, float]) -> None:
        """Add a sharer of a cached stretch; a stretch with no known payer is free."""
        before = len(node.sharers)
        if not before:
            return
        part = node.length / (before + 1)
        due[client] += part
        for other in node.sharers:
            due[other] -= node.length / before - part
        node.sharers = (*node.sharers, client)
