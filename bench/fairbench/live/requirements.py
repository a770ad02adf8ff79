"""Requirements of live commands on the Python and the system."""

from __future__ import annotations

import resource
from contextlib import suppress
from importlib.util import find_spec

from fairbench.errors import UsageError

PACKAGES = ("aiohttp", "httptools", "msgspec", "prometheus_client", "zmq")


def require_live_extra() -> None:
    """Raise UsageError, with the installation command, if packages are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"live commands need {', '.join(missing)}: pip install '.[live]'")


def allow_many_connections() -> None:
    """Raise the limit of open files, because each queued request needs a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
