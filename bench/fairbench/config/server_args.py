"""Command-line options of servers that fairbench starts, in addition to those that it sets."""

from __future__ import annotations

from collections.abc import Sequence

# Options that the launcher passes to every server.
MANAGED_ARGS = frozenset(
    {"--host", "--port", "--model-path", "--model", "--tp-size", "--tp", "--load-format"}
    | {"--schedule-policy", "--kv-events-config", "--kv-events-port", "--time-scale", "--local"}
    | {"--scheduler-cls", "--tensor-parallel-size", "--enable-prompt-tokens-details"}
)
# Data parallelism within a server (SGLang, vLLM), by how its flags begin.
RANK_ARGS = ("--dp", "--data-parallel", "--enable-dp")


def check_server_args(args: Sequence[str]) -> None:
    """Raise ValueError for an option that fairbench sets itself or does not support."""
    for arg in args:
        flag = arg.partition("=")[0]
        if flag.startswith("--") and len(words := flag.split()) > 1:
            raise ValueError(
                f"server_args: {flag!r} has {len(words)} words, and each item must be one word"
            )
        if flag in MANAGED_ARGS:
            raise ValueError(f"server_args: {flag} is set by fairbench itself; leave it out")
        if flag.startswith(RANK_ARGS):
            raise ValueError(
                f"server_args: {flag} is not supported: each rank has its own queue, "
                "so credits and deficits would be counted per rank; start more "
                "servers with dp instead"
            )
