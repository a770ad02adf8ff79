"""A catalogue of GPUs with data sheet numbers and usable memory. Users can describe GPUs in files.

Peak speeds are for dense matrices (without sparsity) with 32-bit accumulation, and come from the
vendors' data sheets. ``pre_load_avail_gib`` comes from logs of SGLang on GPUs with 80 GB and 24 GB.
Without an SGLang log, ``pre_load_avail_gib`` is the memory that the driver reports, minus 0.5 GiB.
``mem_fraction_static`` and ``chunked_prefill_size`` are the values that SGLang 0.5.23 chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairbench.errors import UsageError, of_file, unknown_name, validated
from fairbench.files.formats import json_file, read_toml


class Interconnect(StrEnum):
    """The path over which the GPUs of a node exchange data.

    ``pcie`` needs peer access, by which GPUs read each other's memory. GeForce drivers and most
    virtual machines have no peer access, so data pass through the host's memory (``pcie-host``).
    """

    NVLINK = "nvlink"
    PCIE = "pcie"
    PCIE_HOST = "pcie-host"


LINK_GB_S = {Interconnect.NVLINK: 300.0, Interconnect.PCIE: 25.2, Interconnect.PCIE_HOST: 25.2}
"""Default bandwidths between GPUs in GB/s: an A100's NVLink, or PCIe 4.0 x16."""


class GPU(NamedTuple):
    """The speed and the memory of a GPU model.

    Attributes:
        name: First part of the ids of the timing profiles for this GPU.
        system: Name of the GPU in the operator tables, or None if the tables lack it.
        bf16_tflops: Peak speed of dense matrix products with 16-bit operands, in TFLOP/s.
        fp8_tflops: Peak speed with 8-bit operands, in TFLOP/s, or None if the GPU has no such
            units.
        memory_gb_s: Bandwidth of the GPU's memory, in 10^9 bytes/s.
        link_gb_s: Bandwidth to other GPUs of the node in each direction, in 10^9 bytes/s.
        pre_load_avail_gib: Free memory in GiB before the weights are loaded.
        mem_fraction_static: Fraction of the free memory that weights and KV cache use.
        chunked_prefill_size: Maximum number of prompt tokens in an iteration.
        host_gb_s: Measured bandwidth to the host's memory, in 10^9 bytes/s.
        interconnect: The link by which the GPU exchanges data with other GPUs of its node.
        compute_share: Fraction of the peak speed that dense matrix products reach.
        memory_share: Fraction of the memory bandwidth that kernels reach.
    """

    name: str
    system: str | None
    bf16_tflops: float
    fp8_tflops: float | None
    memory_gb_s: float
    link_gb_s: float
    pre_load_avail_gib: float
    mem_fraction_static: float
    chunked_prefill_size: int
    host_gb_s: float
    interconnect: Interconnect = Interconnect.NVLINK
    compute_share: float = 0.70
    memory_share: float = 0.80

    def with_link(self, interconnect: Interconnect) -> GPU:
        """Return this GPU with another link to other GPUs, at the link's usual bandwidth."""
        changed = (interconnect == Interconnect.NVLINK) != (
            self.interconnect == Interconnect.NVLINK
        )
        link_gb_s = LINK_GB_S[interconnect] if changed else self.link_gb_s
        return self._replace(interconnect=interconnect, link_gb_s=link_gb_s)


_HOST = Interconnect.PCIE_HOST
# In matrix products, GeForce cards are assumed to reach 78% of their peak speed (0.92 x 0.85).
# cuBLAS reached 92% of the peak of an L20, and layers reached 85% of the speed of cuBLAS on an
# A100. On an A10G, kernels reach 80% of the memory bandwidth, and error correction takes 6% of the
# bandwidth. GeForce cards lack error correction, so kernels are assumed to reach 85% of the memory
# bandwidth. ``_MI300X_SHARE``, the fraction of the peak speed that an MI300X reaches, was not
# measured.
_GEFORCE = (_HOST, 0.78, 0.85)
_MI300X_SHARE = 0.50
_ALL = (
    GPU("a10g-24gb", None, 70, None, 600, 25.2, 22.0, 0.88, 2_048, 25.2, _HOST),
    GPU("l4-24gb", "l4", 121, 242, 300, 25.2, 22.0, 0.88, 2_048, 25.2, _HOST),
    GPU("rtx4090-24gb", None, 165.2, 330.3, 1_008, 25.2, 23.5, 0.88, 2_048, 25.2, *_GEFORCE),
    GPU("rtx5090-32gb", None, 209.5, 419, 1_792, 50.4, 31.3, 0.875, 2_048, 50.4, *_GEFORCE),
    GPU("a40-48gb", None, 149.7, None, 696, 25.2, 44.0, 0.843, 4_096, 25.2, _HOST),
    GPU("l40s-48gb", "l40s", 362, 733, 864, 25.2, 44.0, 0.843, 4_096, 25.2, _HOST),
    GPU("rtxpro6000-96gb", None, 503.8, 1_007.6, 1_792, 50.4, 94.5, 0.859, 8_192, 50.4, _HOST),
    GPU("a100-80gb", "a100_sxm", 312, None, 2_039, 300, 78.8, 0.83, 8_192, 25.2),
    GPU("h100-80gb", "h100_sxm", 989, 1_979, 3_350, 450, 78.8, 0.83, 8_192, 50.4),
    GPU("gh200-96gb", None, 989, 1_979, 4_000, 450, 94.5, 0.859, 8_192, 375),
    GPU("h200-141gb", "h200_sxm", 989, 1_979, 4_800, 450, 139.2, 0.903, 8_192, 50.4),
    GPU("b200-180gb", "b200_sxm", 2_250, 4_500, 7_700, 900, 178.0, 0.858, 16_384, 50.4),
    GPU(
        *("mi300x-192gb", None, 1_307.4, 2_614.9, 5_300, 448, 191.0, 0.867, 16_384, 50.4),
        compute_share=_MI300X_SHARE,
    ),
    GPU("b300-288gb", "b300_sxm", 2_250, 4_500, 8_000, 900, 268.0, 0.905, 16_384, 50.4),
)
GPUS: Mapping[str, GPU] = {gpu.name: gpu for gpu in _ALL}


_OTHER = "For another GPU, describe it in a file, and give --gpu-spec FILE"
_MAKERS = ("nvidia", "amd", "instinct", "geforce", "tesla")


def find_gpu(text: str) -> GPU:
    """Return the GPU with this name, with or without the memory size.

    Words such as ``NVIDIA``, ``GeForce`` and ``SXM5`` are ignored, and ``RTX 4090`` means
    ``rtx4090``. Raises UsageError for an unknown or ambiguous name.
    """
    words = [word for word in re.split(r"[-_\s]+", text.strip().lower()) if word not in _MAKERS]
    spelled = "-".join(words)
    if spelled in GPUS:
        return GPUS[spelled]
    chips = {"".join(words[:n]) for n in range(1, 4)}
    size = re.search(r"\d+gb$", spelled)
    named = [gpu for name, gpu in GPUS.items() if name.split("-")[0] in chips]
    if size and not any(gpu.name.endswith(f"-{size[0]}") for gpu in named):
        raise UsageError(f"{unknown_name('gpu', text, GPUS)} {_OTHER}")
    begins = "".join(words)
    found = named or [gpu for name, gpu in GPUS.items() if name.startswith((spelled, begins))]
    if spelled and len(found) > 1:
        names = ", ".join(gpu.name for gpu in found)
        raise UsageError(f"gpu {text!r} is ambiguous: choose from {names}")
    if not named:  # H20 and L40 are no short names of H200 and L40S.
        raise UsageError(f"{unknown_name('gpu', text, GPUS)} {_OTHER}")
    return found[0]


_DRIVER_GIB = 1.2  # GiB that the driver and CUDA use on an 80-GB A100
_SIZES = ((35, 2_048, 2_900), (60, 4_096, 7_744), (160, 8_192, 13_888), (inf, 16_384, 26_176))
"""Rows of SGLang's settings by GPU memory: limit in GB, ``chunked_prefill_size``, reserved MiB.

SGLang uses the first row whose limit exceeds the memory of the GPU.
"""

Positive = Annotated[float, Field(gt=0, lt=1e7)]
Share = Annotated[float, Field(gt=0, le=1)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    memory_gb: Annotated[float, Field(ge=4, lt=1e4)]
    memory_gb_s: Positive
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    interconnect: Interconnect = Interconnect.PCIE_HOST
    link_gb_s: Positive | None = None
    host_gb_s: Positive = 25.2
    free_memory_gib: Positive | None = None
    compute_share: Share = 0.70
    memory_share: Share = 0.80

    @model_validator(mode="after")
    def _check_spec(self) -> Self:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ValueError(f"name = {self.name!r}: must have only letters, digits, '.', '_', '-'")
        if self.memory_gb_s < 50:
            raise ValueError(
                f"memory_gb_s = {self.memory_gb_s:g}: must be at least 50, in 10^9 bytes/s"
            )
        if self.bf16_tflops < 5:
            raise ValueError(
                f"bf16_tflops = {self.bf16_tflops:g}: must be at least 5, in 10^12 FLOP/s"
            )
        if self.free_memory_gib and self.free_memory_gib > self.memory_gb * 1e9 / 2**30 * 1.08:
            raise ValueError(
                f"free_memory_gib = {self.free_memory_gib:g}: must be at most memory_gb"
            )
        return self


def read_gpu(path: Path) -> GPU:
    """Return the GPU that a TOML or JSON file describes. Raises DataError for a wrong field."""
    shown = str(path)
    data: Any = json_file(path, shown) if path.suffix == ".json" else read_toml(path, shown)
    with of_file(shown, _Spec.model_fields):
        spec = validated(_Spec, data)
    chunk, reserved = next(one[1:] for one in _SIZES if spec.memory_gb < one[0])
    return GPU(
        name=spec.name.lower(),
        system=None,
        bf16_tflops=spec.bf16_tflops,
        fp8_tflops=spec.fp8_tflops,
        memory_gb_s=spec.memory_gb_s,
        link_gb_s=spec.link_gb_s or LINK_GB_S[spec.interconnect],
        pre_load_avail_gib=spec.free_memory_gib or spec.memory_gb - _DRIVER_GIB,
        mem_fraction_static=round(max(0.5, 1 - reserved / 1_024 / spec.memory_gb), 3),
        chunked_prefill_size=chunk,
        host_gb_s=spec.host_gb_s,
        interconnect=spec.interconnect,
        compute_share=spec.compute_share,
        memory_share=spec.memory_share,
    )
