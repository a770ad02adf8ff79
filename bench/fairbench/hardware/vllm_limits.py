"""The start parameters of a vLLM engine: settings of its scheduler and its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.hardware.load_cap import LoadCapSetting


@dataclass(frozen=True)
class VLLMLimits:
    """Settings by vLLM's names (0.32.0), in tokens unless a name says otherwise.

    ``pool_tokens`` is the "GPU KV cache size" that vLLM prints: one block of it stays unused.
    ``max_num_batched_tokens``: 8,192 for the API server on GPUs of 70 GiB and more but the A100,
    with ``max_num_seqs`` 1,024. ``scheduler_reserve_full_isl``: admission wants the blocks of the
    whole prompt, not of its first chunk. ``watermark`` is the share of all blocks that admission
    leaves free while something runs. ``goes_on_after_self``: a running request that was preempted
    for want of its own memory does not end the loop over those after it (0.33.0 on, under a
    retraction order). ``host_tokens`` is the host's memory for what is swapped, ``load_cap`` as in
    ``EngineParams``. Raises ValueError for what vLLM does not start with.
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
    load_cap: LoadCapSetting = None

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
        """``watermark`` in blocks."""
        return int(self.watermark * self.all_blocks)
