"""How many connections a process may have."""

from __future__ import annotations

import resource
from contextlib import suppress


def allow_many_connections() -> None:
    """As many as the system lets us: a queue of thousands of requests is as many connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
