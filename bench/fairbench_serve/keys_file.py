"""Keys files: the client of each API key with weights and quotas, and the keys of workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.reader import is_key, read_key
from fairbench.files.toml_text import read_toml
from fairbench.live.processes.addresses import WorkerAddress, parse_worker
from fairbench.schedulers.setup import checked_weights
from fairbench.tenants import tenants_of, with_tenants
from fairbench_serve.client_limits import REQUESTS, TOKENS, Quota
from fairbench_serve.identity import is_name

OTHERS = "*"
CLIENTS = "clients"
WEIGHT = "weight"
FIELDS = (WEIGHT, TOKENS, REQUESTS)
MOST = 10**12  # per minute


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """Keys by worker URL, and a ``default`` for all other workers (None for no key)."""

    named: Mapping[str, str] = field(default_factory=dict, repr=False)
    default: str | None = field(default=None, repr=False)

    def signed(self, worker: WorkerAddress) -> WorkerAddress:
        return replace(worker, key=self.named.get(worker.url, self.default))

    def check_named(self, urls: Collection[str]) -> None:
        """Raise UsageError if a key is for an unknown worker."""
        for url in self.named:
            if url not in urls:
                raise unknown_name("worker in --worker-key-file", url, urls)


def worker_keys(key: str | None, path: Path | None) -> WorkerKeys:
    """Return the keys of the flags. Raises UsageError or DataError, which never show a key."""
    if key is not None and not is_key(key):
        raise UsageError("--worker-key: must be printable ASCII, without spaces at its ends")
    if path is None:
        return WorkerKeys(default=key)
    filed = _read(path)
    if key is not None and filed.default is not None:
        raise UsageError(
            f'--worker-key cannot be combined with {path}, which has a key for "{OTHERS}", '
            "too; give only one of them"
        )
    return replace(filed, default=key or filed.default)


def _read(path: Path) -> WorkerKeys:
    """Read a TOML file of lines ``"URL" = "KEY"``, where ``"*"`` stands for all other workers."""
    keys = read_toml(path, str(path), secret=True)
    for number, key in enumerate(keys.values(), 1):
        if not isinstance(key, str) or not is_key(key):
            raise DataError(
                f"{path}: key {number}: must be a text of printable ASCII, without spaces "
                "at its ends"
            )
    if not keys:
        raise DataError(f"{path}: must hold at least one key")
    default = keys.pop(OTHERS, None)
    return WorkerKeys(
        {_url(path, n, url): key for n, (url, key) in enumerate(keys.items(), 1)}, default
    )


def _url(path: Path, number: int, text: str) -> str:
    """Return a worker's URL. Raises DataError without the text, which may be a key by mistake."""
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
    """Clients by API key; weights and quotas by client, if they are given."""

    keys: Mapping[str, str]
    weights: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)


def read_keys(path: Path) -> KeysFile:
    """Read a TOML file of lines ``"KEY" = "CLIENT"`` and optional tables ``[clients.CLIENT]``.

    Raises DataError, which never shows a key, nor a name where a key may stand by mistake.
    """
    data = read_toml(path, str(path), secret=True)
    tables = data.pop(CLIENTS) if isinstance(data.get(CLIENTS), dict) else {}
    for number, (key, client) in enumerate(data.items(), 1):
        if not isinstance(client, str):
            raise DataError(f"{path}: key {number}: the client must be a text")
        if not is_name(client):
            raise DataError(f"{path}: key {number}: the client must be a name, not {client!r}")
        if not is_key(key):
            raise DataError(
                f"{path}: key {number}: must be printable ASCII, without spaces at its ends"
            )
    if not data:
        raise DataError(f"{path}: must hold at least one key")
    for number, (client, table) in enumerate(tables.items(), 1):
        if not isinstance(table, dict) or client not in with_tenants(data.values()):
            raise DataError(
                f"{path}: {CLIENTS}: entry {number} must be the table of a client that has a key"
            )
        _check(table, f"{path}: {CLIENTS}.{client}")
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
    """Return the admin endpoint's key from its ``file``, or None. Raises UsageError or DataError.

    If clients have keys, the endpoint needs its own key, which no client has. The endpoint also
    needs a key if workers have keys, since an added worker is shown its key. Without a ``port``
    there is no endpoint.
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
        raise UsageError(
            f"--admin-key-file {file}: this is the key of a client; choose another key"
        )
    return key


def _check(table: Mapping[str, Any], where: str) -> None:
    for number, name in enumerate(table, 1):
        if name not in FIELDS:
            names = ", ".join(FIELDS)
            raise DataError(
                f"{where}: entry {number} must be one of {names}; keys must stand above the tables"
            )
    try:
        checked_weights({WEIGHT: table.get(WEIGHT, 1)})
    except UsageError as error:
        raise DataError(f"{where}: {str(error).removeprefix('weights.')}") from None
    for name in (TOKENS, REQUESTS):
        most = table.get(name, 1)
        if type(most) is not int or not 1 <= most <= MOST:
            raise DataError(f"{where}: {name} = {most!r}: must be a whole number from 1 to {MOST}")
