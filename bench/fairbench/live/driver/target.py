"""The target: the server to which the driver sends, and its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from fairbench.config.backend import Api
from fairbench.config.flags.run import RUN
from fairbench.errors import UsageError, unknown_name

Lengths = Literal["exact", "header", "free"]
LONGEST_WAIT_S = float(RUN["longest_wait"].default)  # total wait after answers 429

MANAGED_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110


@dataclass(frozen=True, slots=True)
class Target:
    """A server, or a router in front of several servers.

    ``lengths`` decides how an answer gets its true length. ``exact``: the server must produce
    exactly this number of tokens. ``header``: the limit is the workload's ``max_new_tokens``, and
    the server obeys the header (the emulator). ``free``: the request only contains the maximum
    length.

    Before the first token there is no timeout, since starvation is measured; after it, a stream
    that sends nothing for ``idle_timeout_s`` wall seconds has failed. ``max_concurrency`` limits
    the requests in progress. ``time_scale`` is the server's seconds per wall second. Behind a
    ``foreign_router`` our facts also travel in the request id, and a worker is known only if the
    answer names it. ``objectives``: the names sent with each client's requests, by which a router
    of ours knows their targets. ``names`` holds the client names to send in requests, for clients
    whose requests do not have the client's own name. ``extra_body`` are more fields of every body,
    and ``max_tokens_field`` the field of OpenAI's APIs for an answer's maximum length.
    ``rate_limited`` is the reaction to an answer 429: a failure, or a retry after the time that the
    answer states, for ``longest_wait_s`` wall seconds in total. Raises UsageError for a value that
    is impossible.
    """

    base_url: str
    api: Api = "generate"
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    lengths: Lengths = "exact"
    max_concurrency: int | None = None
    connect_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    time_scale: float = 1.0
    foreign_router: bool = False
    objectives: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_field: str = "max_tokens"
    rate_limited: Literal["fail", "wait"] = "fail"
    longest_wait_s: float = LONGEST_WAIT_S

    def __post_init__(self) -> None:
        if self.api not in get_args(Api):
            raise unknown_name("api", self.api, get_args(Api))
        if self.lengths not in get_args(Lengths):
            raise unknown_name("lengths", self.lengths, get_args(Lengths))
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise UsageError(f"max_concurrency = {self.max_concurrency}: must be at least 1")
        check_headers(self.headers)
        _check_url(self.base_url)


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise UsageError for a header that would break a request, without showing its value."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise UsageError(
                f"header {name!r}: the name of a header must be letters, digits and dashes"
            )
        if name.lower() in MANAGED_HEADERS:
            raise UsageError(f"header {name} is set by fairbench itself; leave it out")
        if not value.isprintable():
            raise UsageError(f"header {name}: the value must be one line of text")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # the port is parsed and checked only when it is read
    except ValueError as error:
        raise UsageError(f"base_url {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"base_url {url}: must start with http:// or https:// and name a host")
