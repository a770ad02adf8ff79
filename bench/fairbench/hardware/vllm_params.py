"""Parameters of a simulated vLLM engine by vLLM's names, and their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from fairbench.errors import UsageError
from fairbench.hardware.engine_params import LoadCapSetting, PrefixMatchTime, swap_gib
from fairbench.hardware.timing import TimingProfile


@dataclass(frozen=True)
class VLLMLimits:
    """Settings by vLLM's names (0.32.0), in tokens unless a name says otherwise.

    ``pool_tokens`` is the "GPU KV cache size" that vLLM prints: one block of it stays unused.
    ``max_num_batched_tokens`` is 8,192 for the API server on GPUs of at least 70 GiB except the
    A100, with ``max_num_seqs`` 1,024. ``scheduler_reserve_full_isl``: admission wants the blocks of
    the whole prompt, not of its first chunk. ``watermark`` is the fraction of all blocks that
    admission leaves free while a request runs. ``goes_on_after_self``: if a running request is
    preempted because of its own demand for memory, the loop over the requests after it continues
    (from 0.33.0 on, under a retraction order). ``async_scheduling``: a step is decided while the
    step before it runs. ``host_tokens`` is the host memory for swapped
    tokens; ``load_cap`` and ``prefix_match_us`` are as in ``EngineParams``. Raises ValueError for
    values with which vLLM does not start.
    """

    pool_tokens: int
    max_num_batched_tokens: int = 2_048
    max_num_seqs: int = 256
    block_size: int = 16
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    step_by_step: bool = False
    host_tokens: int = 0
    goes_on_after_self: bool = False
    async_scheduling: bool = False
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens}: must be at "
                f"least max_num_seqs = {self.max_num_seqs}"
            )
        if self.blocks < 1:
            raise ValueError(
                f"pool_tokens = {self.pool_tokens}: must be at least two blocks of "
                f"{self.block_size} tokens"
            )

    @property
    def all_blocks(self) -> int:
        """The number of KV blocks: vLLM's ``num_gpu_blocks``."""
        return self.pool_tokens // self.block_size

    @property
    def blocks(self) -> int:
        """The usable blocks: vLLM keeps one as a placeholder."""
        return self.all_blocks - 1

    @property
    def watermark_blocks(self) -> int:
        """The number of blocks in ``watermark``."""
        return int(self.watermark * self.all_blocks)


@dataclass(frozen=True)
class VLLMParams:
    """Settings of every simulated vLLM worker (``--set vllm.NAME=VALUE``). 0 is the default.

    ``max_num_batched_tokens`` and ``max_num_seqs`` default to what vLLM 0.32.0's API server chooses
    for the GPU; ``num_gpu_blocks_override`` to the blocks that fit the KV pool which the other
    engine would have, so that both have the same memory. ``watermark`` is the fraction of all
    blocks that admission leaves free. ``step_by_step`` advances one step at a time instead of in
    closed form; the records are the same. ``swap_space``: GiB of the host's memory, per GPU, for
    requests that a scheduler preempts with ``swap``; by default 4, as in vLLM's V0 engine.
    ``load_cap`` and ``prefix_match_us`` are as in ``EngineParams``. ``release`` is the release
    whose rules are followed: from 0.33 on, the loop continues after a request that a retraction
    order preempts for its own memory; the default has the rules of 0.31 and 0.32.
    ``async_scheduling`` decides each step while the step before it runs, as vLLM does on GPUs
    unless ``--no-async-scheduling`` is given; it is off by default.
    """

    max_num_batched_tokens: Annotated[int, Ge(0)] = 0
    max_num_seqs: Annotated[int, Ge(0)] = 0
    block_size: Annotated[int, Gt(0)] = 16
    num_gpu_blocks_override: Annotated[int, Ge(0), Lt(10**9)] = 0
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[float, Ge(0), Lt(1)] = 0.0
    step_by_step: bool = False
    swap_space: Annotated[float, Ge(0), Le(10**6)] | None = None
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    release: Literal["0.31", "0.32", "0.33"] | None = None
    async_scheduling: bool | None = None


def vllm_limits(params: VLLMParams, profile: TimingProfile) -> VLLMLimits:
    """Return the parameters with the defaults of the GPU and model.

    Raises UsageError for parameters with which vLLM would not start.
    """
    most_tokens, most_sequences = _default_batch(profile)
    pool = profile.pool
    blocks = params.num_gpu_blocks_override
    tokens = blocks * params.block_size or pool.tokens(pool.mem_fraction_static)
    try:
        return VLLMLimits(
            pool_tokens=tokens,
            max_num_batched_tokens=params.max_num_batched_tokens or most_tokens,
            max_num_seqs=params.max_num_seqs or most_sequences,
            block_size=params.block_size,
            enable_prefix_caching=params.enable_prefix_caching,
            scheduler_reserve_full_isl=params.scheduler_reserve_full_isl,
            watermark=params.watermark,
            step_by_step=params.step_by_step,
            host_tokens=pool.host_tokens(swap_gib(params.swap_space)),
            load_cap=params.load_cap,
            prefix_match_us=params.prefix_match_us,
            goes_on_after_self=params.release == "0.33",
            async_scheduling=bool(params.async_scheduling),
        )
    except ValueError as error:
        raise UsageError(f"settings of vllm: {error}") from None


def _default_batch(profile: TimingProfile) -> tuple[int, int]:
    """Return the API server's limits on tokens and sequences; the A100 counts as a small GPU."""
    gib = profile.pool.pre_load_avail_gib
    if gib >= 160:
        return 16_384, 1_024
    if gib >= 70 and not profile.profile_id.startswith("a100"):
        return 8_192, 1_024
    return 2_048, 256
