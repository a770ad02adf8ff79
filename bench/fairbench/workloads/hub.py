"""Datasets from the Hugging Face hub, through the optional package ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairbench.errors import UsageError, unknown_name

HUB_PREFIX = "hf:"
INSTALL = 'pip install ".[hub]"'

# Dataset -> (configuration, split). All are read by fairbench.workloads.schemas.
HUB_DATASETS: dict[str, tuple[str | None, str]] = {
    "bigai-nlco/LooGLE": ("longdep_qa", "test"),
    "openai/gsm8k": ("main", "train"),
    "lmsys/chatbot_arena_conversations": (None, "train"),
}


def hub_records(ref: str) -> Iterator[tuple[str, Any]]:
    """Yield (location, record) for each row of ``hf:OWNER/NAME``.

    Raises UsageError, one line: unknown dataset, package not installed, or not reachable.
    """
    name = ref.removeprefix(HUB_PREFIX)
    if name not in HUB_DATASETS:
        raise unknown_name("hub dataset", name, HUB_DATASETS)
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(
            f"{ref} needs the package datasets: in a clone of fairbench, {INSTALL}"
        ) from None
    configuration, split = HUB_DATASETS[name]
    try:
        rows = load_dataset(name, configuration, split=split)
    except Exception as error:  # whatever the network and the hub come up with
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"{ref}: cannot be loaded: {reason}. Check the network, log in to the hub "
            f"if the data set is gated, and install the package: {INSTALL}"
        ) from None
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))
