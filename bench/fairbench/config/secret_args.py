"""Secrets among the flags of servers, which are passed on but never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.errors import UsageError

REDACTED = "***"
ARGS = "server_args"
COMMAND = "router_command"
_SECRET = frozenset({"key", "secret", "password", "passwd", "credential", "credentials"})


def is_secret(flag: str) -> bool:
    """Return whether the value of a flag is secret, as of ``--api-key`` or ``--hf-token``."""
    words = flag.lstrip("-").replace("_", "-").lower().split("-")
    return flag.startswith("--") and (not _SECRET.isdisjoint(words) or words[-1] == "token")


def without_secrets(args: Sequence[str]) -> list[str]:
    """Return the words of a command line with ``***`` in place of each secret."""
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
    return [_args(one) for one in value]  # of a sweep, one for each point


def check_given(args: Sequence[str], what: str = ARGS) -> None:
    """Raise UsageError if a server needs a secret that was not stored."""
    for word, following in zip(args, [*args, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if is_secret(flag) and REDACTED in (value if equals else following,):
            raise UsageError(f"{what}: {flag} is secret and was not stored; give it again")
