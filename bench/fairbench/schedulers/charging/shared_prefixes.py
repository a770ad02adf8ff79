"""Charging for a prefix that several clients share, for which [DLPM] §9 defines no rule."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal, Self

from fairbench.core import Prompt, Request, prompt_tokens
from fairbench.schedulers.prefix_tree import Edge, Node, PrefixTree

Sharing = Literal["split", "owner", "each"]
# maximum number of prompt tokens in the prefix tree; a larger tree is emptied
REMEMBERED_TOKENS = 5_000_000


class SharedNode(Node):
    """A node of the prefix tree, with its owner and the clients that have paid for its tokens."""

    __slots__ = ("owner", "sharers")

    def __init__(self, parent: Self | None, edge: Edge, length: int) -> None:
        super().__init__(parent, edge, length)
        self.sharers: tuple[str, ...] = ()
        self.owner: str | None = None


class _SharedTree(PrefixTree[SharedNode]):
    def on_split(self, upper: SharedNode, lower: SharedNode) -> None:
        upper.sharers, upper.owner = lower.sharers, lower.owner


class SharedCharges:
    """The division of computed prompt tokens among the clients that share a prefix.

    Under the rule ``split``, all clients that use a prefix pay equal parts: the n-th client pays
    1/n, and earlier clients get a refund. If an evicted prefix is computed again, clients that used
    it before the eviction no longer count. Under the rule ``owner``, the client that first sent the
    prefix pays for each computation. Under the rule ``each``, every client pays for the whole
    prefix, cached or not. Under ``split`` and ``owner``, the charged tokens always equal the
    computed tokens.
    """

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing
        self._tree = _SharedTree(SharedNode)
        self._stored = 0

    def tokens_by_client(self, request: Request, computed_tokens: int) -> dict[str, float]:
        """Return the tokens charged to each client; negative numbers are refunds.

        The last ``computed_tokens`` tokens of the prompt were not cached.
        """
        if self._sharing == "each":
            return {request.client: request.input_tokens}
        known = prompt_tokens(request.prompt)
        cached = min(known, request.input_tokens - computed_tokens)
        due: defaultdict[str, float] = defaultdict(float)
        # The request's client pays for computed tokens that ``request.prompt`` does not contain.
        due[request.client] = float(computed_tokens - (known - cached))
        for node in self._path(request.prompt, cached, known):
            if node.depth > cached:
                node.owner = node.owner or request.client
                node.sharers = (request.client,)
                payer = request.client if self._sharing == "split" else node.owner
                due[payer] += node.length
            elif self._sharing == "split" and request.client not in node.sharers:
                self._add_sharer(node, request.client, due)
        return due

    def _path(self, prompt: Prompt, cached: int, known: int) -> list[SharedNode]:
        """Return the nodes on the prompt's path, from the root down, and add missing nodes."""
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

    def _add_sharer(self, node: SharedNode, client: str, due: defaultdict[str, float]) -> None:
        """Charge a client for cached tokens, and refund the clients that have paid for them."""
        before = len(node.sharers)
        if not before:
            return
        part = node.length / (before + 1)
        due[client] += part
        for other in node.sharers:
            due[other] -= node.length / before - part
        node.sharers = (*node.sharers, client)
