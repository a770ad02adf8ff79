"""Saturation in short: the detector that always lets go, for homes that need no other."""

from __future__ import annotations

from fairbench.schedulers.gateway.saturation.none import AlwaysRoom

__all__ = ["AlwaysRoom"]
