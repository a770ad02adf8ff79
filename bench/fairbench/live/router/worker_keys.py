"""Keys of workers: the API keys that the router sends to workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.reader import is_key
from fairbench.files.toml_text import read_toml
from fairbench.live.processes.addresses import WorkerAddress, parse_worker

OTHERS = "*"


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """Keys by worker URL, and a ``default`` for all other workers (None for no key)."""

    named: Mapping[str, str] = field(default_factory=dict, repr=False)
    default: str | None = field(default=None, repr=False)

    def signed(self, worker: WorkerAddress) -> WorkerAddress:
        """Return the address of a worker, with its API key."""
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
