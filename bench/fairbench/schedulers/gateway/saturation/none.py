"""The absence of a detector: only the router queues requests."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.schedulers.gateway.saturation.detector import Detector


class AlwaysRoom(Detector):
    """A detector that always has room, so that the engines' own queues order all requests."""

    name = "none"

    @dataclass(frozen=True)
    class Params:
        """None."""

    def __init__(self, params: Params | None = None) -> None:
        pass

    def has_room(self, now_s: float) -> bool:
        return True
