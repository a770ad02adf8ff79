"""Registers the hooks with SGLang."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from fairbench.live.plugins.config import PluginConfig
from fairbench.live.plugins.sglang.hooks import Hooks
from fairbench.live.plugins.sglang.release import (
    SUPPORTED,
    check_evicting,
    check_target,
    check_version,
)


def install(config: PluginConfig) -> None:
    """Register our hooks in this process, for SGLang to apply.

    Raises UsageError if this release of SGLang is not supported, or if a method is not as expected.
    """
    release = check_evicting() if config.eviction else check_version()
    hooks = Hooks(config, release=release)
    targets = hooks.by_target()
    for target, hook in targets.items():
        check_target(target, hook.expected)
    if release not in SUPPORTED:
        sys.stderr.write(
            f"fairbench: SGLang {release} is untested: all {len(targets)} functions that the "
            "scheduler goes around are as expected, and no more is known\n"
        )
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in targets.items():
        HookRegistry.register(target, partial(_count, hooks, target, hook.method), HookType.AROUND)


def _count(hooks: Hooks, target: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
    hooks.calls[target] += 1
    return method(*args, **named)
