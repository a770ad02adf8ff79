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
"""The simulated engines by name; the package ``engine`` has a module for each name."""


@dataclass(frozen=True)
class ClusterParams:
    """Settings of the simulated cluster (``--set cluster.NAME=VALUE``).

    ``eviction_delay_s`` is the delay of eviction reports to routers in seconds. ``eviction_loss``
    is the probability that an eviction report is lost, 0 by default.
    """

    eviction_delay_s: Annotated[float, Ge(0)] = 0.1
    eviction_loss: Annotated[float, Ge(0), Le(1)] | None = None


DISAGGREGATION = "disaggregation"

Reserve = Literal["arrival", "admission"]


@dataclass(frozen=True)
class DisaggregationParams:
    """The link between prefill and decode workers, and the reservation of memory for decoding.

    The default bandwidth and latency fit two measurements of Mooncake with its vLLM connector: 0.54
    ms for 20 MB and 31.65 ms for 4.5 GB. Mooncake's measurements used a network card of 200 Gbit/s
    per GPU, which transferred 18 GB/s (144 Gbit/s). A network card of 400 Gbit/s transfers 36 GB/s,
    and the NVLink of an H100 transfers up to 450 GB/s.

    Attributes:
        bandwidth_gb_s: Bandwidth of each GPU in one direction, in 10^9 bytes/s.
        latency_ms: Constant time of a transfer of KV cache.
        reserved_decode_tokens: SGLang's ``num_reserved_decode_tokens``, the memory that a decode
            worker keeps free for each of its requests.
        reserve: The time at which an SGLang decode worker reserves memory for a prompt. With
            ``arrival``, memory is reserved in order of arrival, as in SGLang. With ``admission``,
            memory is reserved in the order in which prompts are computed. A vLLM decode worker
            reserves memory once the prompt is computed.
        charge_outputs: Whether the prefill worker's scheduler charges clients for all output tokens
            when a request ends. By default, the prefill worker's scheduler charges only the first
            output token.
    """

    bandwidth_gb_s: Annotated[float, Gt(0)] = 18.0
    latency_ms: Annotated[float, Ge(0)] = 0.4
    reserved_decode_tokens: Annotated[int, Ge(0)] = 512
    reserve: Reserve = "arrival"
    charge_outputs: bool = False
