"""Residency: exact counts of the tokens of a KV pool that each client holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol


class ResidencyLog(Protocol):
    """A log of one replica that receives every change in its clients' residency."""

    @property
    def now_ps(self) -> int:
        """The time in picoseconds."""

    def change(self, client: str, holders: int, change: int, by: str | None = None) -> None:
        """Record that the client holds ``change`` more tokens with ``holders`` - 1 others."""


class Residency:
    """Tokens by client, and by the number of clients that hold them.

    A token held by k clients counts 1/k for each, so tokens are stored by k, as integers: sums of
    fractions would drift. ``log`` receives every change.
    """

    def __init__(self, clients: Iterable[str], log: ResidencyLog) -> None:
        self._log = log
        self._held: dict[str, Counter[int]] = {client: Counter() for client in clients}
        self._unpinned: dict[str, Counter[int]] = {client: Counter() for client in self._held}
        self._private = Counter[str]()  # tokens of running requests, not in the tree

    @property
    def clients(self) -> Iterable[str]:
        return self._held

    def held(self, client: str) -> float:
        return _sum(self._held[client]) + self._private[client]

    def unpinned(self, client: str) -> float:
        """Return the client's cached tokens that no running request uses."""
        return _sum(self._unpinned[client])

    def add_private(self, client: str, tokens: int) -> None:
        """Add tokens of a running request that are not in the tree; negative to remove."""
        self._private[client] += tokens
        self._log.change(client, 1, tokens)

    def store(self, client: str, tokens: int) -> None:
        """Count private tokens of the client as cached, in use by its request."""
        self._private[client] -= tokens
        self._held[client][1] += tokens

    def add_copy(self, holders: Iterable[str], client: str, tokens: int) -> None:
        """Count private tokens of the client as a copy, in use, of what ``holders`` hold."""
        self.add_private(client, -tokens)
        everyone = list(holders)
        for holder in everyone:
            self._add(holder, len(everyone), tokens, pinned=True)

    def share(self, holders: Iterable[str], client: str, tokens: int, *, pinned: bool) -> None:
        """Count tokens of ``holders`` for one more client."""
        everyone = [*holders, client]
        self._move(everyone[:-1], len(everyone) - 1, len(everyone), tokens, pinned=pinned)
        self._add(client, len(everyone), tokens, pinned=pinned)

    def give_up(self, holders: Iterable[str], client: str, tokens: int, by: str | None) -> None:
        """Remove ``client`` from the holders of unpinned tokens."""
        others = [one for one in holders if one != client]
        self._add(client, len(others) + 1, -tokens, by, pinned=False)
        self._move(others, len(others) + 1, len(others), tokens, pinned=False)

    def drop(self, holders: Mapping[str, None], tokens: int, by: str | None) -> None:
        for client in holders:
            self._add(client, len(holders), -tokens, by, pinned=False)

    def pin(self, holders: Mapping[str, None], tokens: int) -> None:
        """Record that a running request uses the tokens; below 0, none uses them any more."""
        for client in holders:
            self._unpinned[client][len(holders)] -= tokens

    def _move(self, clients: list[str], old: int, new: int, tokens: int, *, pinned: bool) -> None:
        for client in clients:
            self._add(client, old, -tokens, pinned=pinned)
            self._add(client, new, tokens, pinned=pinned)

    def _add(
        self, client: str, holders: int, tokens: int, by: str | None = None, *, pinned: bool
    ) -> None:
        self._held[client][holders] += tokens
        if not pinned:
            self._unpinned[client][holders] += tokens
        self._log.change(client, holders, tokens, by)


def _sum(by_holders: Counter[int]) -> float:
    return sum(tokens / holders for holders, tokens in by_holders.items())
