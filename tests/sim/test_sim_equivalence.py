"""Closed form against step by step, one seed twice, and service conserved across schedulers."""

import numpy as np
import pytest
from fairbench.schedulers.registry import PAIRS
from fairbench.sim.run import simulate
from invariants import assert_same_records, check_all, run_checked
from sim_helpers import small_spec

# Small pools force eviction and retraction, small chunks force chunked prefill.
CASES = {
    "tot": dict(pool=9_000, engine__chunked_prefill_size=512),
    "judge": dict(pool=9_000, engine__chunked_prefill_size=1024),
    "long-qa": dict(pool=60_000, engine__chunked_prefill_size=4096),
    "chat": dict(pool=2_500, engine__chunked_prefill_size=128),
}


def experiment(scheduler, workload, *, seed=0, dp=1, **more):
    return small_spec(scheduler, workload, seed=seed, dp=dp, **(CASES[workload] | more))


@pytest.mark.parametrize("workload", CASES)
@pytest.mark.parametrize("scheduler", PAIRS)
def test_step_by_step_gives_the_same_tables(scheduler, workload):
    fast = run_checked(experiment(scheduler, workload))
    slow = simulate(experiment(scheduler, workload, engine__step_by_step=True))
    check_all(slow)
    assert_same_records(fast, slow)
