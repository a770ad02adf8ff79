"""Properties of a model from its own files, if they are available."""

from __future__ import annotations

from pathlib import Path

from fairbench.errors import DataError
from fairbench.files.json_text import json_file


def vocab_size_of(model: str) -> int | None:
    """Return ``vocab_size`` from the ``config.json`` in a model's folder, None if unavailable."""
    try:
        config = json_file(Path(model) / "config.json", model)
        return int(config.get("text_config", config)["vocab_size"])
    except (DataError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None
