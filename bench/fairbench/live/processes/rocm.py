"""AMD's GPUs as the kernel lists them, without ROCm's tools, which containers often lack."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")
NODES, RENDER = "sys/class/kfd/kfd/topology/nodes", "dev/dri/renderD{minor}"


def rocm_gpus(root: Path | None = None) -> list[str]:
    """Return HIP's numbers of the GPUs that may be used here, in the order of KFD's nodes.

    KFD lists every node of the machine, even in containers, and processors too (which have no
    SIMDs). A GPU that was not passed to this container has no render device here, and HIP skips it.
    """
    base = root or ROOT
    try:
        nodes = sorted((base / NODES).iterdir(), key=lambda node: int(node.name))
    except (OSError, ValueError):
        return []
    return [str(number) for number in range(sum(_is_usable(base, node) for node in nodes))]


def _is_usable(base: Path, node: Path) -> bool:
    try:
        lines = (node / "properties").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    has = dict(line.split(maxsplit=1) for line in lines if " " in line)
    minor = has.get("drm_render_minor", "")
    return has.get("simd_count", "0") != "0" and (base / RENDER.format(minor=minor)).exists()
