"""What a live run must be told and its records do not depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Not part of a spec, and stored nowhere.

    ``server_python`` is the Python that has SGLang, None the default. ``headers`` go with every
    request to an endpoint; they may hold secrets.
    """

    server_python: str | None = None
    ready_timeout_s: float = 600.0
    headers: Mapping[str, str] = field(default_factory=dict)
