"""Command lines from users: options of servers, and the command of an external router.

Secrets among them are passed on but never stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.errors import UsageError, unknown_name

PORT, WORKER_URLS, WORKER_URL_LIST = "port", "worker_urls", "worker_url_list"
PLACEHOLDERS: Mapping[str, str] = {
    PORT: "the port on which the router listens",
    "port2": "another free port, for the router's metrics",
    "host": "the address on which the router listens",
    WORKER_URLS: "the URL of a worker; the word that contains it is repeated for each worker",
    WORKER_URL_LIST: "the URLs of all workers, separated by commas",
    "model": "the model's name",
}
PORTS = 2  # the first replaces PORT
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
    """Return the command with its placeholders filled in."""
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


# Options that the launcher passes to every server.
MANAGED_ARGS = frozenset(
    {"--host", "--port", "--model-path", "--model", "--tp-size", "--tp", "--load-format"}
    | {"--schedule-policy", "--kv-events-config", "--kv-events-port", "--time-scale", "--local"}
    | {"--scheduler-cls", "--tensor-parallel-size", "--enable-prompt-tokens-details"}
)
# Data parallelism within a server (SGLang, vLLM), by how its flags begin.
RANK_ARGS = ("--dp", "--data-parallel", "--enable-dp")


def check_server_args(args: Sequence[str]) -> None:
    """Raise ValueError for an option that fairbench sets itself or does not support."""
    for arg in args:
        flag = arg.partition("=")[0]
        if flag.startswith("--") and len(words := flag.split()) > 1:
            raise ValueError(
                f"server_args: {flag!r} has {len(words)} words, and each item must be one word"
            )
        if flag in MANAGED_ARGS:
            raise ValueError(f"server_args: {flag} is set by fairbench itself; leave it out")
        if flag.startswith(RANK_ARGS):
            raise ValueError(
                f"server_args: {flag} is not supported: each rank has its own queue, "
                "so credits and deficits would be counted per rank; start more "
                "servers with dp instead"
            )


REDACTED = "***"
ARGS = "server_args"
COMMAND = "router_command"
_SECRET = frozenset({"key", "secret", "password", "passwd", "credential", "credentials"})


def is_secret(flag: str) -> bool:
    """Return whether the value of a flag is secret, as of ``--api-key`` or ``--hf-token``."""
    words = flag.lstrip("-").replace("_", "-").lower().split("-")
    return flag.startswith("--") and (not _SECRET.isdisjoint(words) or words[-1] == "token")


def without_secrets(args: Sequence[str]) -> list[str]:
    """Return the words of a command line, with ``***`` in place of each secret."""
    kept: list[str] = []
    hides_next = False
    for word in args:
        flag, equals, _ = word.partition("=")
        if hides_next and not word.startswith("--"):
            kept.append(REDACTED)
        elif equals and is_secret(flag):
            kept.append(f"{flag}={REDACTED}")
        else:
            kept.append(word)
        hides_next = not equals and is_secret(word)
    return kept


def storable(content: Any) -> Any:
    """Return a file's content with the secrets of ``server_args`` and ``router_command`` removed.

    Nested occurrences are included.
    """
    if isinstance(content, Mapping):
        return {
            key: _args(value) if str(key).rpartition(".")[2] in (ARGS, COMMAND) else storable(value)
            for key, value in content.items()
        }
    return [storable(one) for one in content] if isinstance(content, list) else content


def _args(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if all(isinstance(word, str) for word in value):
        return without_secrets(value)
    return [_args(one) for one in value]  # one experiment for each point of a sweep


def check_given(args: Sequence[str], what: str = ARGS) -> None:
    """Raise UsageError if a server needs a secret that was not stored."""
    for word, following in zip(args, [*args, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if is_secret(flag) and REDACTED in (value if equals else following,):
            raise UsageError(f"{what}: {flag} is secret and was not stored; give it again")
