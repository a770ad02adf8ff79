"""Servers on which an experiment can run: real or emulated servers, or a running endpoint.

The backend decides what is measured, so it is part of an experiment's identity. Options that affect
only a single run, such as the path of SGLang or an endpoint's API key, are not part of the backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from fairbench.doors import BACKEND_GROUP, registered, through

REDACTED = "***"
ARGS = "server_args"
COMMAND = "router_command"
_SECRET = frozenset({"key", "secret", "password", "passwd", "credential", "credentials"})


def is_secret(flag: str) -> bool:
    """Return whether a flag's value is secret, such as the value of ``--api-key``."""
    words = flag.lstrip("-").replace("_", "-").lower().split("-")
    return flag.startswith("--") and (not _SECRET.isdisjoint(words) or words[-1] == "token")


def without_secrets(args: Sequence[str]) -> list[str]:
    """Replace each secret in a command line by ``***``."""
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
    """Return the content of an experiment file without secrets.

    Secrets may occur in ``server_args`` and ``router_command``, even in nested tables.
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
    # A sweep has one list of server arguments for each of its points.
    return [_args(one) for one in value]


NO_PROFILE = "none"
EXTERNAL = "external"  # the value of ``router`` if another project's router is used
# ``AS_SERVED`` stands for the unknown scheduler, router and model of a server that runs already.
AS_SERVED = "as served"

# The eviction policies ``NEED_SESSIONS`` need sessions, which requests to real servers do not name.
NEED_SESSIONS = frozenset({"retention"})

Count = Annotated[int, Field(ge=1)]


class BackendConfig(BaseModel):
    """The fields and properties that all kinds of backend have.

    ``max_concurrency`` limits the requests in flight. To add a kind of backend, register a
    subclass as an entry point of the group ``fairbench.backends``, under the name of the kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    # Each subclass declares a field ``kind``, whose value names the kind of backend.
    if TYPE_CHECKING:
        kind: str
    max_concurrency: Count | None = None

    has_profile: ClassVar[bool] = False
    """Whether a timing profile decides the servers' speed; otherwise, a model must be named."""
    is_managed: ClassVar[bool] = True
    """Whether fairbench starts the servers; if so, it also chooses their router and scheduler."""
    disobeyed: ClassVar[frozenset[str]] = frozenset()
    """The engine settings that this kind of backend does not support."""
    evictions: ClassVar[frozenset[str]] = frozenset()
    """The eviction policies that the servers of this backend support."""
    run_options: ClassVar[frozenset[str]] = frozenset()
    """The options of ``LiveFlags`` that this kind of backend supports."""
    runs: ClassVar[str]
    """``MODULE:NAME`` of the class that runs experiments on this backend's servers."""

    @property
    def own_policy(self) -> str | None:
        """The server's scheduling policy that replaces fairbench's scheduler, if one is set."""
        return None

    @property
    def external_router(self) -> list[str] | None:
        """The command that starts an external router in front of the workers, if there is one."""
        return None


@cache
def backend_kinds() -> Mapping[str, type[BackendConfig]]:
    """Return the classes of all kinds of backend, which installed packages have registered.

    Backends whose servers fairbench starts come first: real servers, then emulated servers.
    """
    found = {kind: through(BACKEND_GROUP, kind) for kind in registered(BACKEND_GROUP)}
    return dict(
        sorted(found.items(), key=lambda one: (not one[1].is_managed, one[1].has_profile, one[0]))
    )


SGLangPolicy: TypeAlias = Literal[
    "fcfs", "lpm", "dfs-weight", "lof", "random", "routing-key", "hrrn", "shortest-prefill-first"
]
