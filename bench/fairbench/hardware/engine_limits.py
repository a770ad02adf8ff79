"""Engine limits: an engine's start parameters, with defaults of GPU and model."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.hardware.engine_params import EngineParams
from fairbench.hardware.load_cap import LoadCapSetting
from fairbench.hardware.timing import TimingProfile


@dataclass(frozen=True)
class EngineLimits:
    """The resolved start parameters of an engine, in tokens except for the number of requests.

    ``host_tokens`` is the host memory for swapped KV cache. ``load_cap`` is the setting as given.
    """

    pool_tokens: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    max_running_requests: int
    schedule_conservativeness: float = 1.0
    full_reservation: bool = False
    step_by_step: bool = False
    num_continuous_decode_steps: int = 1
    in_batch_prefix_caching: bool = True
    host_tokens: int = 0
    load_cap: LoadCapSetting = None


def swap_gib(given: float | None) -> float:
    """Return the host memory for preempted requests in GiB: as given, or vLLM's default."""
    return 4.0 if given is None else given


def mem_fraction(params: EngineParams, profile: TimingProfile) -> float:
    """Return the fraction of GPU memory for weights and KV, as given or by default."""
    return params.mem_fraction_static or profile.pool.mem_fraction_static


def engine_limits(params: EngineParams, profile: TimingProfile) -> EngineLimits:
    """Return engine parameters with the defaults of the GPU and model."""
    pool = profile.pool
    fraction = mem_fraction(params, profile)
    return EngineLimits(
        pool_tokens=params.max_total_tokens or pool.tokens(fraction),
        chunked_prefill_size=params.chunked_prefill_size or pool.chunked_prefill_size,
        max_prefill_tokens=params.max_prefill_tokens,
        max_running_requests=params.max_running_requests,
        schedule_conservativeness=params.schedule_conservativeness,
        full_reservation=params.full_reservation,
        step_by_step=params.step_by_step,
        num_continuous_decode_steps=params.num_continuous_decode_steps or 1,
        in_batch_prefix_caching=params.in_batch_prefix_caching is not False,
        host_tokens=pool.host_tokens(swap_gib(params.swap_space)),
        load_cap=params.load_cap,
    )
