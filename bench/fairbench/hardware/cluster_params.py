"""Parameters of a simulated cluster: eviction reports, and links of disaggregated replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le


@dataclass(frozen=True)
class ClusterParams:
    """Settings of the simulated cluster (``--set cluster.NAME=VALUE``).

    ``eviction_delay_s``: the delay of eviction reports. ``eviction_loss``: the fraction of reports
    lost, drawn for each report; none by default.
    """

    eviction_delay_s: Annotated[float, Ge(0)] = 0.1
    eviction_loss: Annotated[float, Ge(0), Le(1)] | None = None


DISAGGREGATION = "disaggregation"

Reserve = Literal["arrival", "admission"]


@dataclass(frozen=True)
class DisaggregationParams:
    """Link between prefill and decode workers, and reservation of decode memory.

    A transfer of KV cache takes ``latency_ms`` and its bytes over ``bandwidth_gb_s`` (10^9 bytes/s
    of each GPU, in one direction). The defaults are a line through Mooncake's measurements with its
    vLLM connector: 0.54 ms for 20 MB and 31.65 ms for 4.5 GB over eight network cards of 200
    Gbit/s. A GPU has one such card here (144/8 GB/s). A card of 400 Gbit/s has 36, NVLink of an
    H100 up to 450. ``reserved_decode_tokens`` is SGLang's ``num_reserved_decode_tokens``: the
    memory that a decode worker keeps free for each of its requests. ``reserve``: an SGLang decode
    worker reserves memory for a prompt at its ``arrival``, first come first served, as documented;
    or at its ``admission``, in the order of the prefill queue. vLLM's decode workers reserve it
    once the prompt is computed. ``charge_outputs`` reports a request's outputs to the prefill
    worker's scheduler when the request ends; by default a prefill worker knows only its own first
    token.
    """

    bandwidth_gb_s: Annotated[float, Gt(0)] = 18.0
    latency_ms: Annotated[float, Ge(0)] = 0.4
    reserved_decode_tokens: Annotated[int, Ge(0)] = 512
    reserve: Reserve = "arrival"
    charge_outputs: bool = False
