"""Fairbench's plugin, which wraps SGLang's functions in the process of a replica.

``packages.provide`` must be called before this module is imported.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from pkgutil import resolve_name
from typing import Any

from fairbench_engines.replica.inside.plugin import config_of
from fairbench_engines.sglang import hooks
from fairbench_engines.sglang.release import Hook, check_target


def sglang_hooks(
    told: Mapping[str, Any], release: str, now_s: Callable[[], float], modules: Collection[str]
) -> hooks.Hooks:
    """Wrap SGLang's functions in this process with the plugin's hooks, and return the hooks.

    Args:
        told: The scheduler's configuration, as the simulator sends it.
        release: Release of SGLang, for the plugin's report.
        now_s: A function that returns the simulator's time in seconds.
        modules: Modules of SGLang whose functions are wrapped.

    Raises UsageError if the parameters of a function of SGLang differ from those that the plugin
    expects.
    """
    vars(hooks)["time"] = types.SimpleNamespace(monotonic=now_s)
    made = hooks.Hooks(config_of(told), release)
    for target, hook in made.by_target().items():
        owner, name = target.rsplit(".", 1)
        if owner.rpartition(".")[0] in modules:
            check_target(target, hook.expected)
            _wrap(resolve_name(owner), name, hook)
    return made


def _wrap(owner: type, name: str, hook: Hook) -> None:
    original = getattr(owner, name)

    @wraps(original)
    def around(*arguments: Any, **named: Any) -> Any:
        return hook.method(original, *arguments, **named)

    setattr(owner, name, staticmethod(around) if hook.static else around)
