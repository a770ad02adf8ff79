"""What one emulated worker is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from fairbench.config.settings import ENGINE, parts
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.params import make_params
from fairbench.sim.engine_params import EngineParams


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """``gpu`` is a timing profile's full id; ``settings`` those of the local scheduler and engine.

    ``time_scale`` emulated seconds pass in a real one; every iteration takes ``slowdown`` times as
    long as on the GPU. Tokens are streamed every ``stream_interval`` decode steps. Port 0 is any
    free port, a ``kv_events_port`` of None publishes nothing. ``tokenizer`` is a file for prompts
    that come as text.
    """

    gpu: str
    model: str
    local: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    kv_events_port: int | None = None
    kv_replay_port: int = 0
    time_scale: float = 1.0
    slowdown: float = 1.0
    stream_interval: int = 16
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a value that is not allowed."""
        for name in ("time_scale", "slowdown"):
            value = getattr(self, name)
            if not 0 < value < inf:
                raise UsageError(f"{name} = {value}: must be a number above 0")
        _check_settings(self.settings)

    def engine_params(self) -> EngineParams:
        """The engine's part of the settings."""
        return make_params(ENGINE, EngineParams, self.settings)


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Raise UsageError unless all are known, of the right type, and mean something here."""
    known = parts()
    for owner in dict.fromkeys(key.split(".", 1)[0] for key in settings):
        if owner not in known:
            raise unknown_name("part in a setting", owner, known)
        make_params(owner, known[owner], settings)
    if settings.get("engine.timing_error_pct"):
        raise UsageError("engine.timing_error_pct: an emulator has no seed to draw the error from")
