"""The packages that only live commands need."""

from __future__ import annotations

from importlib.util import find_spec

from fairbench.errors import UsageError

PACKAGES = ("aiohttp", "httptools", "msgspec", "prometheus_client", "zmq")


def require_live_extra() -> None:
    """Raise UsageError, with the command that installs them, if some are missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(f"live commands need {', '.join(missing)}: pip install '.[live]'")
