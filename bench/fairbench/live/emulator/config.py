"""The configuration of one emulated worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.config.backend import MAX_TIME_SCALE, MIN_TIME_SCALE
from fairbench.config.settings import ENGINE
from fairbench.errors import UsageError, unknown_name
from fairbench.hardware.engine_params import EngineParams
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import local_class


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """An emulator's configuration: ``gpu`` is a full profile id, ``settings`` are NAME.PARAM.

    ``weights`` are what clients are entitled to, 1 where there is none.

    ``time_scale`` emulated seconds pass in a real one; every iteration takes ``slowdown`` times as
    long as on the GPU. Tokens are streamed every ``stream_interval`` decode steps. Port 0 is any
    free port, a ``kv_events_port`` of None publishes nothing. ``tokenizer`` is a file for prompts
    that come as text. ``number`` is what its answers say of where they come from, None for nothing.
    """

    gpu: str
    model: str
    local: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    kv_events_port: int | None = None
    kv_replay_port: int = 0
    time_scale: float = 1.0
    slowdown: float = 1.0
    stream_interval: int = 16
    tokenizer: str | None = None
    number: int | None = None

    def __post_init__(self) -> None:
        """Check the values. Raises UsageError for a value out of range."""
        for name in ("time_scale", "slowdown"):
            value = getattr(self, name)
            if not MIN_TIME_SCALE <= value <= MAX_TIME_SCALE:
                raise UsageError(
                    f"{name} = {value}: must be from {MIN_TIME_SCALE:g} to {MAX_TIME_SCALE:g}"
                )
        _check_settings(self.local, self.settings)

    def engine_params(self) -> EngineParams:
        """Return the engine's part of the settings."""
        return make_params(ENGINE, EngineParams, self.settings)


def _check_settings(local: str, settings: Mapping[str, Any]) -> None:
    """Raise UsageError unless all settings are known, have the right type, and apply here."""
    used: dict[str, type] = {local: local_class(local).Params, ENGINE: EngineParams}
    for key in settings:
        owner = key.partition(".")[0]
        if owner not in used:
            raise unknown_name("part in a setting", owner, used)
    for owner, params in used.items():
        make_params(owner, params, settings)
