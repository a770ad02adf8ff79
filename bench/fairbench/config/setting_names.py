"""Keys of settings, ``NAME.PARAM``: in tables of a file, and under former names.

What left the engine's parameters is stored as if it were still there. So every stored experiment
keeps its identity, and is compared with a new one key by key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STORED_AS: Mapping[str, str] = {
    "cluster.eviction_delay_s": "engine.eviction_delay_s",
    "timing.error_pct": "engine.timing_error_pct",
}
"""Settings whose key in a stored file is another; a user may write either."""

_CURRENT = {stored: key for key, stored in STORED_AS.items()}


def current_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings under current keys; of two synonyms the later entry wins."""
    return {_CURRENT.get(key, key): value for key, value in settings.items()}


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``NAME.PARAM -> value`` from the tables ``[settings.NAME]`` of a file."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if "." not in key and isinstance(value, Mapping):
            flat.update({f"{key}.{param}": inner for param, inner in value.items()})
        else:
            flat[key] = value
    return current_keys(flat)


def stored_tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables for an experiment file; the inverse of ``flat_settings``."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, _, param = STORED_AS.get(key, key).partition(".")
        tables.setdefault(name, {})[param] = value
    return tables
