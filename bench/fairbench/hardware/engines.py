"""The simulated engines by name, and the parameters of the simulated cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Gt, Le


class EngineKind(NamedTuple):
    """An engine: its description, and the ``--set`` name and import path of its parameters."""

    description: str
    part: str
    params: str


DEFAULT_ENGINE = "sglang"

ENGINES: Mapping[str, EngineKind] = {
    DEFAULT_ENGINE: EngineKind(
        "SGLang 0.5.23: prefill first, then decode",
        "engine",
        "fairbench.hardware.engine_params:EngineParams",
    ),
    "vllm": EngineKind(
        "vLLM 0.32.0 (V1): both in every step",
        "vllm",
        "fairbench.hardware.engine_params:VLLMParams",
    ),
    "lightllm": EngineKind(
        "LightLLM as in S-LoRA: no prefix cache, output lengths known",
        "lightllm",
        "fairbench.hardware.engine_params:LightLLMParams",
    ),
}
"""``ENGINES`` has the simulated engines; the package ``engine`` has a module of each name."""


@dataclass(frozen=True)
class ClusterParams:
    """Settings of the simulated cluster (``--set cluster.NAME=VALUE``).

    ``eviction_delay_s`` is the delay of eviction reports in seconds. ``eviction_loss`` is the
    fraction of lost reports, drawn for each report; by default no report is lost.
    """

    eviction_delay_s: Annotated[float, Ge(0)] = 0.1
    eviction_loss: Annotated[float, Ge(0), Le(1)] | None = None


DISAGGREGATION = "disaggregation"

Reserve = Literal["arrival", "admission"]


@dataclass(frozen=True)
class DisaggregationParams:
    """The link between prefill and decode workers, and the reservation of decode memory.

    The default bandwidth and latency follow from a line through two measurements of Mooncake with
    its vLLM connector: 0.54 ms for 20 MB and 31.65 ms for 4.5 GB. The measured machine had eight
    network cards of 200 Gbit/s, one card per GPU, and transferred 144/8 = 18 GB/s per GPU. A card
    of 400 Gbit/s transfers 36 GB/s, and the NVLink of an H100 transfers up to 450 GB/s.

    Attributes:
        bandwidth_gb_s: Bandwidth of each GPU in one direction, in 10^9 bytes/s.
        latency_ms: Constant time of a transfer of KV cache.
        reserved_decode_tokens: SGLang's ``num_reserved_decode_tokens``, the memory that a decode
            worker keeps free for each of its requests.
        reserve: The time at which an SGLang decode worker reserves memory for a prompt. With
            ``arrival``, prompts reserve memory first come, first served, as SGLang documents; with
            ``admission``, prompts reserve memory in the order of the prefill queue. With vLLM,
            decode workers reserve memory once the prompt is computed.
        charge_outputs: Whether all outputs are charged at the prefill worker's scheduler when a
            request ends; by default, the scheduler of a prefill worker only charges the first
            token.
    """

    bandwidth_gb_s: Annotated[float, Gt(0)] = 18.0
    latency_ms: Annotated[float, Ge(0)] = 0.4
    reserved_decode_tokens: Annotated[int, Ge(0)] = 512
    reserve: Reserve = "arrival"
    charge_outputs: bool = False
