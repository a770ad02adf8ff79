"""Which token ids prompts may be made of."""

from __future__ import annotations

import json
from pathlib import Path

FIRST = 16  # below are special tokens in most vocabularies
COMMON = 32_000  # every common model has at least so many; larger ones have special tokens above


def vocabulary(model: str) -> range:
    """Ids of ordinary tokens: ``vocab_size`` of the model's ``config.json`` if it is at hand."""
    try:
        config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
        size = int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        size = COMMON
    return range(FIRST, min(size, COMMON))
