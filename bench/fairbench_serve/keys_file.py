"""Files of API keys: for clients, with weights and quotas, and for workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.formats import read_toml
from fairbench.files.reader import is_key, read_key
from fairbench.schedulers.base import checked_weights
from fairbench.tenants import tenants_of, with_tenants
from fairbench_load.processes.addresses import WorkerAddress, parse_worker
from fairbench_serve.client_limits import REQUESTS, TOKENS, Quota, Quotas
from fairbench_serve.identity import Keyring, is_name

OTHERS = "*"
CLIENTS = "clients"
WEIGHT = "weight"
FIELDS = (WEIGHT, TOKENS, REQUESTS)
MOST = 10**12  # highest allowed quota of a client, in tokens or requests per minute


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """API keys by worker URL; ``default`` is the key for all other workers, or None."""

    named: Mapping[str, str] = field(default_factory=dict, repr=False)
    default: str | None = field(default=None, repr=False)

    def signed(self, worker: WorkerAddress) -> WorkerAddress:
        return replace(worker, key=self.named.get(worker.url, self.default))

    def check_named(self, urls: Collection[str]) -> None:
        """Raise UsageError if a key is for a URL that is not in ``urls``."""
        for url in self.named:
            if url not in urls:
                raise unknown_name("worker in --worker-key-file", url, urls)


def worker_keys(key: str | None, path: Path | None) -> WorkerKeys:
    """Return the workers' API keys from ``--worker-key`` and ``--worker-key-file``.

    Raises UsageError or DataError for an invalid key or file.
    """
    if key is not None and not is_key(key):
        raise UsageError(
            "--worker-key: must be printable ASCII, without leading or trailing spaces"
        )
    if path is None:
        return WorkerKeys(default=key)
    filed = _read(path)
    if key is not None and filed.default is not None:
        raise UsageError(
            f"--worker-key cannot be combined with {path}, which also has a key for "
            f'"{OTHERS}" (all other workers); give only one of the two keys'
        )
    return replace(filed, default=key or filed.default)


def _read(path: Path) -> WorkerKeys:
    """Read a TOML file of lines ``"URL" = "KEY"``, where ``"*"`` stands for all other workers."""
    keys = read_toml(path, str(path), secret=True)
    for number, key in enumerate(keys.values(), 1):
        if not isinstance(key, str) or not is_key(key):
            raise DataError(
                f"{path}: key {number}: must consist of printable ASCII, without leading or "
                "trailing spaces"
            )
    if not keys:
        raise DataError(f"{path}: must contain at least one key")
    default = keys.pop(OTHERS, None)
    return WorkerKeys(
        {_url(path, n, url): key for n, (url, key) in enumerate(keys.items(), 1)}, default
    )


def _url(path: Path, number: int, text: str) -> str:
    """Return the URL of a worker in a line of the key file.

    Error messages do not quote ``text``, which may be a misplaced API key.
    """
    try:
        worker = parse_worker(text)
    except UsageError:
        worker = None
    if worker is None or worker.kv_events is not None:
        raise DataError(
            f'{path}: key {number}: write "http://HOST:PORT" = "KEY", or "{OTHERS}" = "KEY" for '
            "all other workers"
        )
    return worker.url


@dataclass(frozen=True, slots=True)
class KeysFile:
    """The content of a key file: the client of each API key, and each client's weight and quota."""

    keys: Mapping[str, str]
    weights: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)


def read_keys(path: Path) -> KeysFile:
    """Read a TOML file of lines ``"KEY" = "CLIENT"`` and optional tables ``[clients.CLIENT]``.

    Raises DataError with a message that omits every text that may be a key.
    """
    data = read_toml(path, str(path), secret=True)
    tables = data.pop(CLIENTS) if isinstance(data.get(CLIENTS), dict) else {}
    for number, (key, client) in enumerate(data.items(), 1):
        if not isinstance(client, str):
            raise DataError(f"{path}: key {number}: the client must be a string")
        if not is_name(client):
            raise DataError(f"{path}: key {number}: the client must be a name, not {client!r}")
        if not is_key(key):
            raise DataError(
                f"{path}: key {number}: must be printable ASCII, without leading or trailing spaces"
            )
    if not data:
        raise DataError(f"{path}: must contain at least one key")
    for number, (client, table) in enumerate(tables.items(), 1):
        if not isinstance(table, dict) or client not in with_tenants(data.values()):
            raise DataError(
                f"{path}: {CLIENTS}: entry {number} must be a table named after a client that has "
                "a key in this file, or after a tenant of such a client"
            )
        _check_client_table(table, f"{path}: {CLIENTS}.{client}")
        if client in tenants_of(data.values()) and table.keys() - {WEIGHT}:
            raise DataError(
                f"{path}: {CLIENTS}.{client}: a tenant can have a {WEIGHT}, and no other field"
            )
    quotas = {client: Quota(one.get(TOKENS), one.get(REQUESTS)) for client, one in tables.items()}
    return KeysFile(
        data,
        {client: float(one[WEIGHT]) for client, one in tables.items() if WEIGHT in one},
        {client: quota for client, quota in quotas.items() if any(quota)},
    )


def admin_key_of(
    port: int | None, file: Path | None, clients: KeysFile | None, of_workers: WorkerKeys
) -> str | None:
    """Return the admin port's API key from ``file``, or None if there is no port or no file.

    If clients have API keys, the admin port needs a key that no client has. The admin port also
    needs a key if the router has API keys for workers, because the router sends such a key to each
    added worker. Raises UsageError or DataError for an unusable key.
    """
    if file is None:
        keys = "--keys" if clients is not None else "keys of workers"
        if port is not None and (clients is not None or of_workers != WorkerKeys()):
            raise UsageError(f"--admin-port {port} needs --admin-key-file if {keys} is given")
        return None
    if port is None:
        raise UsageError("--admin-key-file needs --admin-port")
    key = read_key(file, str(file))
    if clients is not None and key in clients.keys:
        raise UsageError(f"--admin-key-file {file}: holds the key of a client; choose another key")
    return key


def _check_client_table(table: Mapping[str, Any], where: str) -> None:
    for number, name in enumerate(table, 1):
        if name not in FIELDS:
            names = ", ".join(FIELDS)
            raise DataError(
                f"{where}: field {number} must be one of {names}; write API keys above the "
                "first table"
            )
    try:
        checked_weights({WEIGHT: table.get(WEIGHT, 1)})
    except UsageError as error:
        raise DataError(f"{where}: {str(error).removeprefix('weights.')}") from None
    for name in (TOKENS, REQUESTS):
        most = table.get(name, 1)
        if type(most) is not int or not 1 <= most <= MOST:
            raise DataError(f"{where}: {name} = {most!r}: must be a whole number from 1 to {MOST}")


LOOK_S = 1.0  # seconds between two checks of whether the key file has changed

log = logging.getLogger(__name__)


class Access:
    """The API keys, weights and quotas that are in force at present.

    After a change, the key file is read once two successive checks find the same content, so that a
    half-written file is never used. A changed file that is invalid is ignored. Weights in the
    configuration override weights in the file.

    ``weights`` is a dict that is updated in place. ``keys`` is None if requests name their clients
    without API keys. ``on_weights`` is called each time ``weights`` may have changed. Raises
    DataError if the file is invalid when the router starts.
    """

    def __init__(
        self,
        keys: Mapping[str, str] | None,
        path: Path | None,
        weights: Mapping[str, float],
        now_s: Callable[[], float],
    ) -> None:
        self.weights = dict(weights)
        self.on_weights: Callable[[], None] = lambda: None
        self.quotas = Quotas(now_s)
        self.keys = None if keys is None else Keyring(keys)
        self._own = weights
        self._path = path
        self._read = self._seen = None if self._path is None else _stamp(self._path)
        if self._path is not None:
            self._apply(read_keys(self._path))

    async def watch_file(self) -> None:
        """Check the key file every second until this task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Read the key file again if it has changed; log an error if the file is invalid."""
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
        self.quotas.replace_limits(file.quotas)
        weights = {**file.weights, **self._own}
        self.weights.clear()
        self.weights.update(weights)
        self.on_weights()


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
