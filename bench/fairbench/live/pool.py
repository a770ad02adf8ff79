"""The check that a server's KV pool can hold the prompts of a workload."""

from __future__ import annotations

from itertools import islice

from fairbench.config import ExperimentSpec
from fairbench.workloads.plan import program_stream

LOOKED_AT = 16  # clients whose first program is looked at


def too_small(spec: ExperimentSpec, pool_tokens: int | None) -> str:
    """Return why a KV pool is too small for the workload, "" if it is large enough or unknown.

    The pool is too small if it holds no mean prompt of the first program of any client.
    """
    prompts = []
    for plan in islice(spec.client_plans(), LOOKED_AT):
        for _, program in islice(program_stream(plan, seed=spec.seed), 1):
            prompts.append(program.demand.input_tokens / max(1, program.demand.requests))
    if pool_tokens is None or not prompts or pool_tokens > min(prompts):
        return ""
    return (
        f"a KV pool of {pool_tokens:,} tokens is too small: prompts of the workload "
        f"{spec.workload.name} have {min(prompts):,.0f} tokens and more"
    )
