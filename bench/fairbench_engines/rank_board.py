"""The board of a data-parallel rank: a file with totals by client that all ranks can read.

A rank alone writes its board, without locks, and all other ranks map the file into memory. A rank
that reads a board during an update gets outdated totals of some clients until its next read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

# maximum number of clients whose charges the ranks exchange
SLOTS = 1 << 16
# bytes for the names of all clients
NAME_BYTES = 64 * SLOTS
# bits of a client's state: RUNS with any request at the rank, WAITS with a queued request
RUNS, WAITS = 1, 2
# Each column of the board has a name, a type and a number of entries. ``ends`` holds the byte
# offsets in ``names`` at which clients' names end. The board's file is sparse: unused slots take no
# memory.
COLUMNS = (
    *(("clients", "i8", 1), ("version", "i8", 1), ("told_s", "f8", 1)),
    *(("charged", "f8", SLOTS), ("raised", "f8", SLOTS), ("waived", "f8", SLOTS)),
    ("service", "f8", SLOTS),
    *(("ends", "i8", SLOTS), ("state", "u1", SLOTS), ("names", "u1", NAME_BYTES)),
)

# columns with each client's total charges, total raises of its counter (or rounds of quanta), and
# total waived credit
TOTALS = ("charged", "raised", "waived")


def _columns(path: Path, mode: Literal["r", "w+"]) -> dict[str, Any]:
    # Numpy is imported here, because only a server with several ranks needs it.
    import numpy as np

    sizes = {name: np.dtype(kind).itemsize * count for name, kind, count in COLUMNS}
    memory: Any = np.memmap(path, np.uint8, mode, shape=(sum(sizes.values()),))
    found, start = {}, 0
    for name, kind, _ in COLUMNS:
        found[name] = memory[start : start + sizes[name]].view(kind)
        start += sizes[name]
    return found


class RankBoard:
    """The board that this data-parallel rank writes; each client has a fixed slot."""

    def __init__(self, path: Path) -> None:
        made = path.with_suffix(".new")
        self._columns = _columns(made, "w+")
        # Renaming the complete file ensures that other ranks find no incomplete file.
        made.rename(path)
        self._slots: dict[str, int] = {}
        self._states: Mapping[str, int] = {}

    def _slot(self, client: str) -> int | None:
        """Return the client's slot, or assign a free slot; return None if the board is full."""
        if (slot := self._slots.get(client)) is not None:
            return slot
        slot, name = len(self._slots), client.encode(errors="surrogatepass")
        start = int(self._columns["ends"][slot - 1]) if slot else 0
        if slot == SLOTS or start + len(name) > NAME_BYTES:
            return None
        self._columns["names"][start : start + len(name)] = list(name)
        self._columns["ends"][slot] = start + len(name)
        self._columns["clients"][0] = slot + 1
        self._slots[client] = slot
        return slot

    def put(self, column: str, values: Iterable[tuple[str, float]]) -> None:
        """Write a value for each client into a column of the rank's board file."""
        column_of = self._columns[column]
        for client, value in values:
            if (slot := self._slot(client)) is not None:
                column_of[slot] = value

    def show(self, states: Mapping[str, int]) -> None:
        """Publish the state (running, waiting) of each client that has requests at this rank."""
        before = self._states
        if states != before:
            self.put("state", ((client, 0) for client in before if client not in states))
            self.put("state", states.items() - before.items())
            self._states = states

    @property
    def charged(self) -> float:
        """The sum of all charges on the board."""
        return float(self._columns["charged"][: len(self._slots)].sum())

    def tell(self, version: int, now_s: float) -> None:
        """Announce a new version of the board, so that other ranks read the board."""
        self._columns["told_s"][0] = now_s
        self._columns["version"][0] = version


class Reader:
    """A reader of the totals that another data-parallel rank publishes on its ``RankBoard``."""

    def __init__(self, path: Path) -> None:
        self._columns = _columns(path, "r")
        self._names: list[str] = []
        self._seen: dict[str, Any] = {}
        self.version = 0

    @property
    def told_s(self) -> float:
        """The time of the board's last update, in seconds on the host's monotonic clock."""
        return float(self._columns["told_s"][0])

    @property
    def charged(self) -> float:
        """The sum of all charges read so far from the other rank's board."""
        return float(self._seen["charged"].sum()) if self._seen else 0.0

    def has_news(self) -> bool:
        return bool(self._columns["version"][0] != self.version)

    def read(self) -> tuple[dict[str, float], ...]:
        """Return the changed values by client, for each column in ``TOTALS``."""
        self.version = int(self._columns["version"][0])
        ends, names = self._columns["ends"], self._columns["names"]
        for slot in range(len(self._names), int(self._columns["clients"][0])):
            start = int(ends[slot - 1]) if slot else 0
            name = names[start : int(ends[slot])].tobytes()
            self._names.append(name.decode(errors="surrogatepass"))
        return tuple(self._changed(column) for column in TOTALS)

    def states(self) -> dict[str, int]:
        """Return the state (``RUNS``, ``WAITS``) of each client with requests at the other rank."""
        state = self._columns["state"][: len(self._names)]
        return {self._names[slot]: int(state[slot]) for slot in state.nonzero()[0].tolist()}

    def service(self) -> dict[str, float]:
        """Return the weighted tokens computed for each client at the rank that writes the board."""
        found = self._columns["service"][: len(self._names)].tolist()
        return dict(zip(self._names, found, strict=True))

    def _changed(self, column: str) -> dict[str, float]:
        now = self._columns[column][: len(self._names)].copy()
        before = self._seen.get(column, now[:0])
        known = len(before)
        slots = [*(now[:known] != before).nonzero()[0].tolist(), *range(known, len(now))]
        self._seen[column] = now
        return {self._names[slot]: float(now[slot]) for slot in slots}
