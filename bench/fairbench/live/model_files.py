"""What a model's own files say of it, where they are at hand."""

from __future__ import annotations

import json
from pathlib import Path


def vocab_size_of(model: str) -> int | None:
    """``vocab_size`` of the ``config.json`` in a model's folder, None if it is not at hand."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
