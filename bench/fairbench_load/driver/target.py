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
# ``LONGEST_WAIT_S`` is a request's maximum total wait after answers with status 429.
LONGEST_WAIT_S = float(RUN["longest_wait"].default)

MANAGED_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})
# ``_TOKEN`` matches the names of headers that RFC 9110 allows.
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class DriverTarget:
    """The target of a driver: a server, or a router in front of several servers.

    - If ``lengths`` is "exact", the workload's output length is both the minimum and the maximum of
      a request's output tokens. If ``lengths`` is "header", the maximum is the workload's
      ``max_new_tokens``, and an emulator reads the output length from a header. If ``lengths`` is
      "free", the workload's output length is only a maximum, and the model may end an answer
      earlier.
    - ``max_concurrency`` limits the requests in progress; None means no limit.
    - ``idle_timeout_s`` is the number of real seconds without data after which a stream counts as
      failed. There is no timeout before the first token, because the benchmark measures starvation.
    - ``time_scale`` is the number of emulated seconds in one real second.
    - If ``foreign_router`` is True, requests go to a third-party router. Because the router may
      drop headers, the request id contains the values of fairbench's headers.
    - ``objectives`` maps clients to the objective (a set of latency targets) in their requests.
    - ``names`` maps a client to the client name in its HTTP requests, if the two names differ.
    - ``extra_body`` contains fields that are added to each request body.
    - ``max_tokens_field`` is the name of the request field that limits the length of an answer in
      OpenAI's APIs.
    - ``rate_limited`` decides whether a request with HTTP status 429 fails ("fail") or is sent
      again later ("wait"). A rate-limited request waits at most ``longest_wait_s`` real seconds in
      total.

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
        raise UsageError(f"base_url {url}: must start with http:// or https:// and a host name")
