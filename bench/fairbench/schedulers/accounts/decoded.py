"""Tokens of decode steps, booked only when a scheduler asks for the account of a client."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Decoded:
    """A buffer that adds ``each`` per decoded token to a client's entry in ``sums`` when needed.

    For sums of whole numbers, which are the same whenever that is. Otherwise every step would go
    over the whole batch, for the sake of the few clients in it that also wait. ``changed`` are
    those of whom there was news, as ``LocalScheduler.on_steps`` says.
    """

    sums: dict[str, float]
    each: int
    changed: set[str] = field(default_factory=set)
    _steps: int = 0
    _requests: dict[str, int] = field(default_factory=dict)  # that run
    _booked: dict[str, int] = field(default_factory=dict)  # up to which step

    def on_steps(self, steps: int, running: Mapping[str, int]) -> None:
        """Account steps, as ``LocalScheduler.on_steps`` does."""
        if self.changed:
            self.settle(self.changed)
            for client in self.changed:
                if client in running:
                    self._requests[client], self._booked[client] = running[client], self._steps
                else:
                    self._requests.pop(client, None)
            self.changed.clear()
        self._steps += steps

    def settle(self, clients: Collection[str]) -> None:
        """Book the tokens that these clients have decoded until now."""
        self._book(self._requests.keys() & clients)

    def settle_all(self) -> None:
        """Settle the accounts of all clients."""
        self._book(self._requests)

    def forget(self, client: str) -> None:
        """Remove a client that has no running requests."""
        self.settle((client,))
        self.changed.discard(client)
        self._requests.pop(client, None)
        self._booked.pop(client, None)

    def _book(self, clients: Iterable[str]) -> None:
        steps, requests, booked, sums = self._steps, self._requests, self._booked, self.sums
        for client in clients:
            if (since := booked[client]) != steps:
                sums[client] += self.each * requests[client] * (steps - since)
                booked[client] = steps
