"""Scheduling policies in an installed engine's code, and the engine's server flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from fairbench.config.backend import SGLangPolicy
from fairbench.config.parse_flags import parse_assignment
from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.named import imported
from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench.schedulers.registry import locals_by_name

OWN_POLICIES = {"sglang": get_args(SGLangPolicy), "vllm": ("fcfs", "priority")}
# ``OWN_EVICTIONS`` omits SGLang's eviction policy ``tlru``, because ``tlru`` needs parameters.
OWN_EVICTIONS = {
    "sglang": ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru"),
    "vllm": ("lru",),
}
EVICTION_FLAGS = {"sglang": {"--radix-eviction-policy": "eviction"}}


def is_plugged_in(policy: str, engine: str | None) -> bool:
    """Return whether ``policy`` is a scheduler of fairbench that runs inside the engine's code.

    A policy of the engine takes precedence over a scheduler of fairbench with the same name.
    """
    if policy in OWN_POLICIES.get(engine or DEFAULT_ENGINE, ()):
        return False
    return policy in locals_by_name()


def evicts_inside(policy: object, engine: object) -> bool:
    """Return whether ``policy`` is an eviction policy of fairbench that the engine lacks."""
    own = OWN_EVICTIONS.get(str(engine or DEFAULT_ENGINE), ())
    return policy in EVICTIONS and policy not in own


# An engine's server has a flag for each parameter in ``CARRIED``, with the parameter's name.
CARRIED = {
    "sglang": (
        *("chunked_prefill_size", "max_prefill_tokens", "max_running_requests"),
        *("schedule_conservativeness", "mem_fraction_static", "max_total_tokens"),
    ),
    "vllm": (
        *("max_num_batched_tokens", "max_num_seqs", "block_size", "num_gpu_blocks_override"),
        *("enable_prefix_caching", "scheduler_reserve_full_isl", "watermark"),
    ),
}

NO = "no-"  # prefix of a server flag that turns a parameter off


def settings_of_flags(words: Sequence[str], engine: str) -> dict[str, Any]:
    """Return the settings NAME.PARAM that correspond to flags of an engine's server.

    A flag for the eviction policy becomes the key ``eviction`` of the experiment. Raises UsageError
    for a server flag that has no effect on the engine's code in a simulation.

    Args:
        words: The server's flags and their values, such as ``--max-num-seqs 64`` or
            ``--max-num-seqs=64``.
        engine: Name of the engine whose flags are given.
    """
    kind = ENGINES[engine]
    usual = imported(kind.params)()
    known = {
        f"--{name.replace('_', '-')}": f"{kind.part}.{name}" for name in CARRIED.get(engine, ())
    } | EVICTION_FLAGS.get(engine, {})
    settings: dict[str, Any] = {}
    left = list(words)
    while left:
        flag, equals, text = left.pop(0).partition("=")
        dashes, negated = flag[:2], flag[2:].startswith(NO)
        positive = dashes + flag[2:].removeprefix(NO)
        key = known.get(positive, "")
        is_switch = isinstance(getattr(usual, key.rpartition(".")[2], None), bool)
        if not key or (negated and not is_switch):
            raise unknown_name(f"flag in server_args for engine_code of {engine}", flag, known)
        if is_switch:
            if equals:
                raise UsageError(f"server_args: {flag} takes no value")
            value: Any = not negated
        else:
            if not equals:
                text = left.pop(0) if left and not left[0].startswith("--") else ""
            if not text:
                raise UsageError(f"server_args: {flag} needs a value")
            value = parse_assignment(f"{key}={text}")[1] if "." in key else text
        settings[key] = value
    return settings
