"""Changes: which clients changed after which version, so that only these are reported."""

from __future__ import annotations

MOST = 100_000  # clients that are remembered to have changed


class Changes:
    """Versions of an origin's export. Clients are kept in the order of their last change."""

    def __init__(self, most: int = MOST) -> None:
        self.version = 0  # of what was exported last
        self._most = most
        self._noted: dict[str, int] = {}  # client -> the first version that has its last change
        self._forgotten = 0  # the latest version of what is noted no more

    def note(self, client: str) -> None:
        """Record that something of the client has changed since the last export."""
        self._noted.pop(client, None)
        self._noted[client] = self.version + 1
        if len(self._noted) > self._most:
            self._forgotten = self._noted.pop(next(iter(self._noted)))

    def exported(self, since: int) -> list[str] | None:
        """Start a new version; return the clients changed after ``since``, the latest change last.

        Returns None if all clients have to be exported. O(clients returned).
        """
        whole = not max(1, self._forgotten) <= since <= self.version
        self.version += 1
        if whole:
            return None
        found = []
        for client in reversed(self._noted):
            if self._noted[client] <= since:
                break
            found.append(client)
        return found[::-1]
