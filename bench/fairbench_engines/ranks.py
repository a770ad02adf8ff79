"""The link of a data-parallel rank to all other ranks of its server, on the same host."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from fairbench.errors import UsageError
from fairbench.schedulers.accounts.deficit_credits import HERE
from fairbench.schedulers.peers import WAIVED, Totals
from fairbench_engines.rank_accounts import RankAccount
from fairbench_engines.rank_board import RUNS, TOTALS, WAITS, RankBoard, Reader

# environment variable with the folder through which the ranks of a server exchange totals
FOLDER = "FAIRBENCH_RANKS"
EVERY_S = 0.05  # seconds between two exchanges of service totals while a rank is busy
FIND_EVERY_S = 1.0
# If a rank has written no totals for ``FORGET_S`` seconds, its clients do not count as waiting.
FORGET_S = 10.0


def open_folder() -> None:
    """Create the folder for the boards of the server's ranks, which start later."""
    if FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="fairbench-ranks-")
        os.environ[FOLDER] = folder
        atexit.register(_remove, folder, os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class RankLink:
    """A rank's link to all other ranks: it publishes its own totals and reads their totals.

    ``shared`` is the account of the rank's scheduler, which includes other ranks' charges, or None.
    Each rank writes its clients' totals into a file, the rank's *board*. A board's file name
    contains the rank's number and process id. A restarted rank therefore writes a new board, and
    also reads the board of its previous process.
    """

    def __init__(self, folder: Path, rank: int, shared: RankAccount | None) -> None:
        self.rank = rank
        self._folder = folder
        self._own = f"{rank}-{os.getpid()}"
        try:
            self._board = RankBoard(folder / self._own)
        except OSError as error:
            raise UsageError(
                f"{FOLDER} = {folder}: must be a folder to which all ranks of the server can "
                f"write ({error.strerror or error})"
            ) from None
        self._shared = shared
        self._readers: dict[str, Reader] = {}
        self._version = 0
        self._told_s = self._looked_s = self._found_s = -FORGET_S
        self._was_idle = False
        self._elsewhere: dict[str, bool] = {}
        self.lag_s = 0.0  # age (s) of another rank's charge totals when last read

    def look(self, now_s: float) -> None:
        """Apply new charge totals of all other ranks, at most once every ``EVERY_S`` seconds."""
        if now_s < self._looked_s + EVERY_S:
            return
        self._looked_s = now_s
        if now_s >= self._found_s + FIND_EVERY_S:
            self._found_s = now_s
            for path in sorted(self._folder.glob("*")):
                if path.suffix != ".new" and path.name not in (self._own, *self._readers):
                    self._readers[path.name] = Reader(path)
        told: dict[str, Totals] = {}
        for origin, reader in self._readers.items():
            if reader.has_news():
                self.lag_s = now_s - reader.told_s
                since, (charged, raised, waived) = reader.version, reader.read()
                levels = _placed(raised, HERE)
                for client, of in _placed(waived, WAIVED).items():
                    levels.setdefault(client, {}).update(of)
                told[origin] = Totals(reader.version, _placed(charged, HERE), levels, since=since)
        before, self._elsewhere = self._elsewhere, self._states(now_s)
        if self._shared is not None and (told or self._elsewhere != before):
            self._shared.merge_ranks(told, self._elsewhere, now_s)

    def _states(self, now_s: float) -> dict[str, bool]:
        found: dict[str, bool] = {}
        for reader in self._readers.values():
            if now_s - reader.told_s < FORGET_S:
                for client, bits in reader.states().items():
                    found[client] = found.get(client, False) or bool(bits & WAITS)
        return found

    @property
    def waiting(self) -> Collection[str]:
        """The clients whose requests wait at other data-parallel ranks."""
        return [client for client, waits in self._elsewhere.items() if waits]

    def arriving(self, client: str) -> AbstractContextManager[None]:
        """Return a context manager for the handling of a client's new or retracted request."""
        return nullcontext() if self._shared is None else self._shared.arriving(client)

    def served(self, service: Mapping[str, float]) -> dict[str, float]:
        """Publish clients' service (weighted tokens) at this rank; return sums over all ranks."""
        self._board.put("service", service.items())
        sums = dict(service)
        for reader in self._readers.values():
            for client, tokens in reader.service().items():
                if tokens:
                    sums[client] = sums.get(client, 0.0) + tokens
        return sums

    @property
    def sent(self) -> float:
        """The sum of the charges that this rank has sent to all other ranks."""
        return self._board.charged

    @property
    def received(self) -> float:
        return sum(reader.charged for reader in self._readers.values())

    def tell(self, now_s: float, waiting: Collection[str], *, idle: bool) -> None:
        """Publish this rank's totals every ``EVERY_S`` seconds, and when the rank becomes idle."""
        ends, self._was_idle = idle and not self._was_idle, idle
        if now_s < self._told_s + EVERY_S and not ends:
            return
        self._told_s = now_s
        if self._shared is None:
            self._version += 1
            active: Collection[str] = ()
        else:
            totals = self._shared.export_totals(self._version)
            self._version = totals.version
            levels = totals.raised
            sums = (totals.charged, levels, levels)
            for column, of, place in zip(TOTALS, sums, (HERE, HERE, WAIVED), strict=True):
                self._board.put(column, ((c, at[place]) for c, at in of.items() if place in at))
            active = self._shared.active()
        self._board.show(dict.fromkeys(active, RUNS) | dict.fromkeys(waiting, RUNS | WAITS))
        self._board.tell(self._version, now_s)


def _placed(sums: Mapping[str, float], place: int) -> dict[str, dict[int, float]]:
    return {client: {place: total} for client, total in sums.items()}
