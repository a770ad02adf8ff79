"""Parameters of a simulated LightLLM server, and their defaults."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from fairbench.hardware.engine_params import LoadCapSetting
from fairbench.hardware.timing import TimingProfile


@dataclass(frozen=True)
class LightLLMLimits:
    """Server settings. ``max_prefill_tokens`` = 0 is S-LoRA's max(pool / 6, 3072).

    ``client_tokens`` of the pool are set aside for each client in the batch (its adapter).
    ``prefill_overhead_ms`` is the fixed cost of a minibatch (its start and its merge into the
    batch). The linear layers of a prefill compute whole tiles of ``prefill_tile`` rows; a minibatch
    smaller than one tile is rounded up to a power of two. An idle server looks for requests every
    ``idle_poll_ms``. ``load_cap`` is as in ``EngineParams``.
    """

    pool_tokens: int
    client_tokens: int = 0
    max_running_requests: int = 1_000
    max_wait_tokens: int = 10
    max_prefill_tokens: int = 0
    prefill_overhead_ms: float = 0.0
    prefill_tile: int = 1
    idle_poll_ms: float = 0.0
    load_cap: LoadCapSetting = None

    @property
    def minibatch_tokens(self) -> int:
        """The largest number of prompt tokens of a minibatch."""
        return self.max_prefill_tokens or max(self.pool_tokens // 6, 3_072)

    def prefill_rows(self, tokens: int) -> int:
        """Return the rows that the linear layers compute for a minibatch of ``tokens`` tokens."""
        tile = min(self.prefill_tile, 1 << (tokens - 1).bit_length())
        return -(-tokens // tile) * tile


@dataclass(frozen=True)
class LightLLMParams:
    """Settings of every simulated LightLLM worker (``--set lightllm.NAME=VALUE``).

    ``max_total_tokens`` 0 is what fits next to the weights, ``max_prefill_tokens`` 0 is S-LoRA's
    max(pool / 6, 3072), and ``load_cap`` is as in ``EngineParams``. The four parameters before it
    are the fixed cost of a minibatch, the row multiple of its matrix products, the interval at
    which an idle server polls, and the part of the pool reserved for each client in the batch.
    Their values are those of the measured runs (docs/studies/measured.md), except for the last,
    which was 32.
    """

    max_total_tokens: Annotated[int, Ge(0), Le(10**9)] = 0
    max_running_requests: Annotated[int, Gt(0)] = 1_000
    max_wait_tokens: Annotated[int, Gt(0)] = 10
    max_prefill_tokens: Annotated[int, Ge(0)] = 0
    prefill_overhead_ms: Annotated[float, Ge(0)] = 14.0
    prefill_tile: Annotated[int, Gt(0)] = 256
    idle_poll_ms: Annotated[float, Ge(0)] = 10.0
    client_tokens: Annotated[int, Ge(0)] = 0
    load_cap: LoadCapSetting = None


def lightllm_limits(params: LightLLMParams, profile: TimingProfile) -> LightLLMLimits:
    """Return the parameters with the pool of GPU and model. Raises UsageError without a pool."""
    values = asdict(params)
    pool = profile.pool
    tokens = values.pop("max_total_tokens") or pool.tokens(pool.mem_fraction_static)
    return LightLLMLimits(pool_tokens=tokens, **values)
