"""GPUs: which ones each server gets."""

from __future__ import annotations

import os
import subprocess

from fairbench.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` has them."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [gpu.strip() for gpu in named.split(",") if gpu.strip()]
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


def assign(gpus: list[str], *, dp: int, tp: int, share: bool) -> list[str]:
    """``CUDA_VISIBLE_DEVICES`` of each of ``dp`` servers of ``tp`` GPUs, none in two unless shared.

    Raises UsageError if there are too few.
    """
    needed = tp if share else dp * tp
    if len(gpus) < needed:
        raise UsageError(
            f"dp = {dp}, tp = {tp}: needs {needed} GPUs, {len(gpus)} visible"
            + ("" if share or len(gpus) < tp else "; --share-gpus puts several servers on one")
        )
    places = len(gpus) // tp
    groups = [gpus[place * tp : (place + 1) * tp] for place in range(places)]
    return [",".join(groups[server % places]) for server in range(dp)]
