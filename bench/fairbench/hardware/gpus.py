"""GPUs: data sheet numbers, usable memory, and common names.

Peaks are dense (without sparsity) and come from NVIDIA's data sheets. ``pre_load_avail_gib``
follows logs of SGLang on cards of 80 GB and 24 GB; the values of other cards are estimates.
``mem_fraction_static`` and ``chunked_prefill_size`` are what SGLang 0.5.23 chooses for that much
memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from fairbench.errors import UsageError, unknown_name


class GPU(NamedTuple):
    """A GPU.

    Attributes:
        name: First part of the ids of its profiles.
        system: Name in the operator tables; None where these have no such GPU.
        bf16_tflops: Peak of dense matrix products with 16-bit operands.
        fp8_tflops: Peak with 8-bit operands; None where the GPU has no such units.
        memory_gb_s: Bandwidth of its memory, in 10^9 bytes a second.
        link_gb_s: Bandwidth to the other GPUs of its node, each way.
        pre_load_avail_gib: Free memory before the weights are loaded.
        mem_fraction_static: Share of that memory for weights and KV.
        chunked_prefill_size: Most prompt tokens of an iteration.
        host_gb_s: Bandwidth to the host's memory, as measured copies have it.
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


_ALL = (
    GPU("a10g-24gb", None, 70, None, 600, 25.2, 22.0, 0.88, 2_048, 25.2),
    GPU("l4-24gb", "l4", 121, 242, 300, 25.2, 22.0, 0.88, 2_048, 25.2),
    GPU("l40s-48gb", "l40s", 362, 733, 864, 25.2, 44.0, 0.843, 4_096, 25.2),
    GPU("a100-80gb", "a100_sxm", 312, None, 2_039, 300, 78.8, 0.83, 8_192, 25.2),
    GPU("h100-80gb", "h100_sxm", 989, 1_979, 3_350, 450, 78.8, 0.83, 8_192, 50.4),
    GPU("h200-141gb", "h200_sxm", 989, 1_979, 4_800, 450, 139.2, 0.903, 8_192, 50.4),
    GPU("b200-180gb", "b200_sxm", 2_250, 4_500, 7_700, 900, 178.0, 0.858, 16_384, 50.4),
)
GPUS: Mapping[str, GPU] = {gpu.name: gpu for gpu in _ALL}


def find_gpu(text: str) -> GPU:
    """Return the GPU for a name: any case, any unique prefix, with or without the size.

    Words such as ``NVIDIA`` and ``SXM5`` make no difference. Raises UsageError for an unknown or
    ambiguous name.
    """
    spelled = text.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    if spelled in GPUS:
        return GPUS[spelled]
    chip, size = spelled.split("-")[0], re.search(r"\d+gb$", spelled)
    named = [gpu for name, gpu in GPUS.items() if name.split("-")[0] == chip]
    if size and not any(gpu.name.endswith(f"-{size[0]}") for gpu in named):
        raise unknown_name("gpu", text, GPUS)
    found = named or [gpu for name, gpu in GPUS.items() if name.startswith(spelled)]
    if not spelled or not found:
        raise unknown_name("gpu", text, GPUS)
    if len(found) > 1:
        names = ", ".join(gpu.name for gpu in found)
        raise UsageError(f"gpu {text!r} is ambiguous: choose from {names}")
    return found[0]
