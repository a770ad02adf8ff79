"""The target of a driver: the server that receives the requests, and settings of requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from fairbench.config.flags import RUN
from fairbench.errors import UsageError, unknown_name
from fairbench_load.kinds import Api

Lengths = Literal["exact", "header", "free"]
# After answers with status 429, a request waits at most ``LONGEST_WAIT_S`` seconds in total.
LONGEST_WAIT_S = float(RUN["longest_wait"].default)

MANAGED_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})
# ``_TOKEN`` matches the names of headers that RFC 9110 allows.
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class DriverTarget:
    """The target of a driver: a server, or a router in front of several servers.

    - ``lengths`` decides how the length of an answer is set. With ``exact``, each request demands
      exactly the true number of output tokens. With ``header``, the limit is the workload's
      ``max_new_tokens``, and the emulator reads the true length from a header. With ``free``, each
      request only limits the output length from above.
    - ``max_concurrency`` limits the requests in progress; None means no limit.
    - ``idle_timeout_s`` is the number of real seconds without data after which a stream counts as
      failed. There is no timeout before the first token, because the benchmark measures starvation.
    - ``time_scale`` is the number of emulated seconds in one real second.
    - ``foreign_router`` is True if requests go to another project's router. With such a router, the
      request id repeats fairbench's headers, and a request's worker is known only if the answer
      names the worker.
    - ``objectives`` maps clients to the objective (a set of latency targets) in their requests.
    - ``names`` maps clients to the different names that their requests use.
    - ``extra_body`` contains fields that are added to each request body.
    - ``max_tokens_field`` is the field of OpenAI's APIs for the maximum length of an answer.
    - ``rate_limited`` is the reaction to HTTP status 429: ``fail``, or ``wait`` for the time that
      the answer states, for at most ``longest_wait_s`` real seconds in total.

    Raises UsageError for an invalid header, URL or limit.
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
    """Raise UsageError, without the header's value, for a header that makes a request invalid."""
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise UsageError(
                f"header {name!r}: the name may contain only letters, digits and dashes"
            )
        if name.lower() in MANAGED_HEADERS:
            raise UsageError(f"header {name} is set by fairbench itself; leave it out")
        if not value.isprintable():
            raise UsageError(f"header {name}: the value must be one line of text")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # Reading an invalid port raises ValueError.
    except ValueError as error:
        raise UsageError(f"base_url {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"base_url {url}: must start with http:// or https:// and name a host")
