"""The command of an external router, with placeholders for a run's values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fairbench.errors import unknown_name

PORT, WORKER_URLS, WORKER_URL_LIST = "port", "worker_urls", "worker_url_list"
PLACEHOLDERS: Mapping[str, str] = {
    PORT: "the port on which the router listens",
    "port2": "another free port, for the router's metrics",
    "host": "the address on which the router listens",
    WORKER_URLS: "the URL of a worker; the word that contains it is repeated for each worker",
    WORKER_URL_LIST: "the URLs of all workers, separated by commas",
    "model": "the model's name",
}
PORTS = 2  # the first is PORT's
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def check_router_command(words: Sequence[str]) -> None:
    """Raise ValueError unless the command has the required, and only known, placeholders."""
    if not words:
        raise ValueError("must not be empty: write the command that starts the router")
    used = {name for word in words for name in _PLACEHOLDER.findall(word)}
    for name in sorted(used):
        if name not in PLACEHOLDERS:
            raise ValueError(str(unknown_name("placeholder", name, PLACEHOLDERS)))
    if PORT not in used:
        raise ValueError(f"must contain {{{PORT}}}, the port on which the router is to listen")
    if used.isdisjoint({WORKER_URLS, WORKER_URL_LIST}):
        raise ValueError(
            f"must contain {{{WORKER_URLS}}} or {{{WORKER_URL_LIST}}}, the URLs of the workers"
        )


def filled(
    words: Sequence[str], *, host: str, ports: Sequence[int], workers: Sequence[str], model: str
) -> list[str]:
    """Return the command with its placeholders filled in.

    Args:
        words: Words of the command, with placeholders in braces.
        host: Address on which the router listens.
        ports: Free ports, first for requests and then for metrics.
        workers: URLs of the workers.
        model: Name of the model.
    """
    values = {
        PORT: str(ports[0]),
        "port2": str(ports[1]),
        "host": host,
        WORKER_URL_LIST: ",".join(workers),
        "model": model,
        WORKER_URLS: f"{{{WORKER_URLS}}}",
    }
    return [
        one
        for word in words
        for one in _repeated(_PLACEHOLDER.sub(lambda found: values[found[1]], word), workers)
    ]


def _repeated(word: str, workers: Sequence[str]) -> list[str]:
    mark = f"{{{WORKER_URLS}}}"
    return [word.replace(mark, url) for url in workers] if mark in word else [word]
