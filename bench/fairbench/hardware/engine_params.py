"""Parameters of the simulated engine, by SGLang's own names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from fairbench.hardware.load_cap import LoadCapSetting


@dataclass(frozen=True)
class EngineParams:
    """Settings of every simulated worker (``--set engine.NAME=VALUE``). 0 is the default.

    ``chunked_prefill_size``, ``mem_fraction_static``, ``max_total_tokens`` default to what SGLang
    0.5.23 chooses for the GPU and model (for the A10G the fraction is 0.88, as the papers had).
    ``max_running_requests``: 0.5.23 clamps its estimate to 2,048-4,096, so that memory is the
    limit. ``full_reservation`` keeps the new-token ratio at 1.0 (as ``ignore_eos`` does):
    admission reserves every output token, nothing is ever retracted. ``step_by_step`` advances
    one decode step at a time instead of in closed form; the records are the same.
    ``num_continuous_decode_steps``: an admission pass is made after so many, by default after each
    (10 in [DLPM] §5.1). ``in_batch_prefix_caching``, by default on, puts requests whose prefix one
    ahead of them is about to compute last, as SGLang does since December 2024 (PR #2442).
    ``swap_space``: GiB of the host's memory, per GPU, for what a scheduler preempts with ``swap``;
    by default 4, as vLLM had it. ``load_cap``: the most that may run at once, in tokens of context
    as docs/appendix/engine.md counts them, or ``auto``; by default ``none``.
    """

    chunked_prefill_size: Annotated[int, Ge(0)] = 0
    max_prefill_tokens: Annotated[int, Gt(0)] = 16_384
    max_running_requests: Annotated[int, Gt(0)] = 2_048
    schedule_conservativeness: Annotated[float, Gt(0)] = 1.0
    mem_fraction_static: Annotated[float, Ge(0), Le(1)] = 0.0
    max_total_tokens: Annotated[int, Ge(0), Le(10**9)] = 0
    full_reservation: bool = False
    step_by_step: bool = False
    num_continuous_decode_steps: Annotated[int, Ge(1), Le(10_000)] | None = None
    in_batch_prefix_caching: bool | None = None
    swap_space: Annotated[float, Ge(0), Le(10**6)] | None = None
    load_cap: LoadCapSetting = None
