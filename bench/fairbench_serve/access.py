"""Access: the clients of API keys, and their weights and quotas, from the current keys file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from fairbench.errors import DataError
from fairbench_serve.client_limits import Quotas
from fairbench_serve.config import RouterConfig
from fairbench_serve.identity import Keyring
from fairbench_serve.keys_file import KeysFile, read_keys

LOOK_S = 1.0

log = logging.getLogger(__name__)


class Access:
    """Keys, weights and quotas. The object ``weights`` never changes identity, only its content.

    The keys file is read again after it has changed and was then equal in two checks, so a
    half-written file is not read. An invalid file has no effect at all. Weights of the
    configuration override the file's. ``keys`` is None if requests name their client.
    ``on_weights`` is called when ``weights`` may have changed. Raises DataError for a file that is
    wrong from the start.
    """

    def __init__(self, config: RouterConfig, now_s: Callable[[], float]) -> None:
        self.weights = dict(config.weights)
        self.on_weights: Callable[[], None] = lambda: None
        self.quotas = Quotas(now_s)
        self.keys = None if config.keys is None else Keyring(config.keys)
        self._own = config.weights
        self._path = config.keys_file
        self._read = self._seen = None if self._path is None else _stamp(self._path)
        if self._path is not None:
            self._apply(read_keys(self._path))

    async def watch(self) -> None:
        """Check the file every second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Read the file if it has changed; an invalid file is reported and changes nothing."""
        if self._path is None:
            return
        before, self._seen = self._seen, _stamp(self._path)
        if self._seen == self._read or self._seen != before:
            return
        self._read = self._seen
        try:
            file = read_keys(self._path)
        except DataError as error:
            log.warning("%s: the previous content stays in force", error)
            return
        self._apply(file)
        clients = len(set(file.keys.values()))
        log.info("%s: reloaded: %d keys of %d clients", self._path, len(file.keys), clients)

    def _apply(self, file: KeysFile) -> None:
        self.keys = Keyring(file.keys)
        self.quotas.change(file.quotas)
        weights = {**file.weights, **self._own}
        self.weights.clear()
        self.weights.update(weights)
        self.on_weights()


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return a stamp that changes with the file, following links; None if it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
