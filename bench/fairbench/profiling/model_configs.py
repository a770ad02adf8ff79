"""Configs of models: bundled, from a file, or from the hub."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.json_text import json_objects, parsed
from fairbench.hardware.catalogue import canonical_model, model_configs

HUB = "https://huggingface.co/{}/resolve/main/config.json"
_WAIT_S = 20.0
_MOST_BYTES = 1 << 20


class ModelConfig(NamedTuple):
    """A model's name in profiles, its ``config.json``, and the origin of the config."""

    name: str
    config: Mapping[str, Any]
    source: str


def bundled_models() -> list[str]:
    """Return the models whose config is bundled."""
    return sorted(model_configs())


def model_config(model: str) -> ModelConfig:
    """Return the config of a model.

    Args:
        model: A bundled model in any spelling, the path of a ``config.json`` or of its folder, or
            a hub's name, ``owner/name``, for which a network is needed.

    Raises UsageError, or DataError naming the file.
    """
    path = Path(model)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.suffix == ".json" or path.is_file():
        return _from_file(path)
    name = canonical_model(model, model_configs())
    if name in model_configs():
        found = model_configs()[name]
        return ModelConfig(name, found["config"], f"bundled config of {found['hub']}")
    if model.count("/") == 1 and not model.startswith(("/", ".", "~")):
        return _from_hub(model)
    wrong = unknown_name("model", model, model_configs())
    raise UsageError(
        f"{wrong} Other models: give the name on the hub (owner/name), or a config.json"
    )


def _from_file(path: Path) -> ModelConfig:
    found = next(json_objects(path, str(path)), None)
    if found is None:
        raise DataError(f"{path}: the file is empty")
    name = found.value.get("_name_or_path") or path.resolve().parent.name or "model"
    return ModelConfig(canonical_model(str(name), model_configs()), found.value, str(path))


def _from_hub(model: str) -> ModelConfig:
    url = HUB.format(model)
    try:
        with urllib.request.urlopen(url, timeout=_WAIT_S) as answer:
            config = parsed(answer.read(_MOST_BYTES), url)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UsageError(
            f"model {model!r}: its config.json cannot be loaded from the hub ({reason}): give the "
            f"path of the file, or a bundled model: {', '.join(bundled_models())}"
        ) from None
    if not isinstance(config, dict):
        raise DataError(f"{url}: the config is not a JSON object")
    return ModelConfig(canonical_model(model, model_configs()), config, url)
