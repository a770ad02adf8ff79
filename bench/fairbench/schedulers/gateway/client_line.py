"""A line before the gateway: who has the highest priority first, else in order of arrival."""

from __future__ import annotations

from fairbench.core import Request


class ClientLine:
    """The requests of one client that wait until it may have more."""

    def __init__(self) -> None:
        self._bands: dict[int, dict[Request, None]] = {}  # none is empty

    def __len__(self) -> int:
        return sum(map(len, self._bands.values()))

    def add(self, request: Request, priority: int) -> None:
        """It comes last of its priority."""
        self._bands.setdefault(priority, {})[request] = None

    def first(self) -> Request:
        """Whose turn is next. Raises ValueError if nobody waits."""
        return next(iter(self._bands[max(self._bands)]))

    def leave(self, request: Request) -> bool:
        """It waits no more; False if it did not."""
        for priority, band in self._bands.items():
            if request in band:
                del band[request]
                if not band:
                    del self._bands[priority]
                return True
        return False
