"""The keys file: the client of each API key, and the weights and quotas of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.files.reader import is_key, read_key
from fairbench.files.toml_text import read_toml
from fairbench.live.router.identity import is_name
from fairbench.live.router.quotas import REQUESTS, TOKENS, Quota
from fairbench.live.router.worker_keys import WorkerKeys
from fairbench.schedulers.setup import checked_weights
from fairbench.tenants import tenants_of, with_tenants

CLIENTS = "clients"
WEIGHT = "weight"
FIELDS = (WEIGHT, TOKENS, REQUESTS)
MOST = 10**12  # a minute


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
    """Return the admin endpoint's key, or None. Raises UsageError or DataError.

    If clients have keys, the endpoint needs a key of its own that no client has. The endpoint also
    needs a key if workers have keys, since an added worker is shown its key.

    Args:
        port: Port of the admin endpoint, or None for no endpoint.
        file: File with the admin key, or None if not given.
        clients: The keys file of clients, or None if not given.
        of_workers: Keys of the workers.
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
