"""Disaggregation of an experiment: how many replicas compute prompts, and how many generate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.config.backend import BackendConfig
from fairbench.config.spec import MAX_REPLICAS
from fairbench.errors import UsageError
from fairbench.hardware.disaggregation import DISAGGREGATION
from fairbench.hardware.engines import DEFAULT_ENGINE

SIDES = ("prefill", "decode")
ENGINES = (DEFAULT_ENGINE, "vllm")  # that have workers of both kinds
APART = ("routers", "eviction", "memory_records")  # keys that describe colocated replicas


def check_sides(flags: Mapping[str, Any]) -> None:
    """Raise UsageError for a number of replicas beside those of the two sides."""
    given = [key for key in SIDES if flags.get(key) is not None]
    if given and flags.get("dp") is not None:
        raise UsageError(
            f"dp = {flags['dp']}: not beside {given[0]} = {flags[given[0]]}: give either dp, or "
            "prefill and decode"
        )


def with_sides(
    draft: Mapping[str, Any],
    flags: Mapping[str, Any],
    file: Mapping[str, Any],
    backend: BackendConfig | None,
    engine: str | None,
) -> dict[str, Any]:
    """Return the draft with ``dp``, the number of all replicas, if it names both sides.

    ``flags`` for the sides override a file's ``dp``. Raises UsageError for one side alone, for
    another ``dp``, and for what a disaggregated cluster does not have.
    """
    sides = {key: draft[key] for key in SIDES if draft.get(key) is not None}
    if not sides:
        return dict(draft)
    for key, other in (SIDES, SIDES[::-1]):
        if other not in sides:
            raise UsageError(f"{key} = {sides[key]!r}: needs {other}, too: how many replicas")
    for key, number in sides.items():
        if not isinstance(number, int) or isinstance(number, bool):
            raise UsageError(f"{key} = {number!r}: must be a valid integer")
        if number < 1:
            raise UsageError(f"{key} = {number}: must be greater than or equal to 1")
    what = f"prefill = {sides['prefill']}"
    if backend is not None:
        raise UsageError(
            f"{what}: backend {backend.kind} is not disaggregated, only simulated runs"
        )
    if (engine or DEFAULT_ENGINE) not in ENGINES:
        raise UsageError(f"{what}: engine {engine} has none: choose from {', '.join(ENGINES)}")
    for key in APART:
        if draft.get(key) is not None:
            raise UsageError(f"{key} = {draft[key]!r}: not with prefill and decode")
    whole = sum(sides.values())
    if whole > MAX_REPLICAS:
        raise UsageError(
            f"{what}, decode = {sides['decode']}: at most {MAX_REPLICAS} replicas in all"
        )
    said = flags if "dp" in flags or not flags.keys().isdisjoint(SIDES) else file
    if said.get("dp", whole) != whole:
        raise UsageError(
            f"dp = {said['dp']!r}: prefill and decode are {whole} replicas: leave dp out"
        )
    return {**draft, "dp": whole}


def check_reserve(engine: str | None, settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a time of reservation that the engine does not have."""
    key = f"{DISAGGREGATION}.reserve"
    if settings.get(key) == "admission" and (engine or DEFAULT_ENGINE) != DEFAULT_ENGINE:
        raise UsageError(
            f"{key} = 'admission': engine {engine} reserves memory once a prompt is computed"
        )


def disaggregation_parts(draft: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the part whose parameters a disaggregated cluster has; empty for any other."""
    return (DISAGGREGATION,) if draft.get("prefill") is not None else ()
