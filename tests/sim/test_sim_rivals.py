"""Test policies of other projects in whole simulations, checked event by event."""

import pytest

from fairbench.config.resolve import resolve
from fairbench.schedulers.registry import local_class, routers_by_name
from fairbench.sim.run import simulate
from tests.invariants import run_checked
from tests.sim.sim_helpers import small_spec
from tests.slow_params import slow

LOCALS = {
    "lpm-client-cap": {"lpm-client-cap.max_running": 3},
    "priority": {"priority.of": {"client-0": 3, "client-3": -3}},
    "sglang-priority": {"sglang-priority.of": {"client-0": 30}},
    "justitia": {"justitia.predictor": "average"},
    "equinox": {},
    "fairserve": {"fairserve.overload_waiting": 4, "fairserve.user_rpm": 3},
    "edf": {"edf.default_s": 5.0},
    "edf-textbook": {"edf-textbook.default_s": 1.0},
    "niyama": {"niyama.default_s": 2.0},
    "dlpm-hold": {"dlpm-hold.quantum": 500, "dlpm-hold.floor": 5_000},
    "dlpm-upstream": {"dlpm-upstream.quantum": 500},
    "dlpm-edf": {"dlpm-edf.quantum": 500, "dlpm-edf.within": "credit"},
    "edf-dlpm": {"edf-dlpm.quantum": 500, "edf-dlpm.aging_s": 1.0},
    "hrrn": {"hrrn.queue_limit": 4},
    "shortest-prefill-first": {},
    "dfs-weight": {},
    "lof": {},
    "random": {},
    "routing-key": {},
    "autellix": {"autellix.first_s": 0.05, "autellix.beta": 2.0},
    "mlfq": {"mlfq.starved_s": 3.0},
    "vtc-match": {},
    "prefill-share": {},
    "prefill-share-auto": {},
}
SGLANG_ONLY = [
    name
    for name, kind in zip(LOCALS, map(local_class, LOCALS), strict=True)
    if kind.sglang_since is not None or kind.decodes_first is not None
]
# In the fast suite, similar policies stand for these.
AKIN = ["dlpm-edf", "dlpm-upstream", "edf-textbook", "sglang-priority"]
ONE_PARAMETER = ["dfs-weight", "lof", "prefill-share-auto", "random", "routing-key"]
SLOW = [*AKIN, *ONE_PARAMETER]
NAMES = [*(name for name in LOCALS if name not in SLOW), *slow(*SLOW)]
OLDER = {"round-robin", "client-round-robin", "least-loaded", "preble-e2", "d2lpm"}


POOL_TOKENS = 3_000
GPU = "a100-80gb/llama-3.1-8b/tp1/sglang"


def spec(scheduler, dp=1, **settings):
    """Return a spec with far more load than a small pool can serve."""
    flags = {"num_programs": 3, "request_rate": 100.0 * dp, "gpu": GPU}
    settings = {"engine.max_running_requests": 2_048} | settings
    return small_spec(scheduler, "chat", dp=dp, pool=POOL_TOKENS, seed=3, flags=flags, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_local_schedulers_break_no_rule_of_the_engine(name):
    result = run_checked(spec(f"round-robin+{name}", **LOCALS[name]))
    assert result.summary["unfinished"] == 0
    assert (result.summary["refused"] > 0) == (name == "fairserve")


ANYWHERE = [name for name in LOCALS if name not in (*AKIN, *SGLANG_ONLY)]


@pytest.mark.parametrize("name", [*ANYWHERE, *slow(*AKIN)])
def test_local_schedulers_serve_all_requests_on_vllm_too(name):
    flags = {"scheduler": f"round-robin+{name}", "workload": "chat", "engine": "vllm", "seed": 3}
    flags |= {"num_programs": 4, "request_rate": 10.0, "gpu": GPU}  # over several steps
    pool = {"vllm.num_gpu_blocks_override": POOL_TOKENS // 16, "vllm.max_num_seqs": 256}
    result = simulate(resolve(flags, pool | LOCALS[name]))
    assert result.summary["unfinished"] == 0
    assert (result.summary["refused"] > 0) == (name == "fairserve")
    assert result.requests["retractions"].sum() > 0


@pytest.mark.parametrize("name", [name for name in routers_by_name() if name not in OLDER])
def test_routers_break_no_rule_of_a_cluster(name):
    result = run_checked(spec(f"{name}+lpm", dp=3))
    assert result.summary["unfinished"] == 0


@pytest.mark.parametrize(
    ("scheduler", "setting", "rule"),
    [
        ("round-robin+dlpm", "dlpm.sharing", "owner"),
        ("round-robin+vtc", "vtc.sharing", "split"),
        ("d2lpm", "d2lpm.charge", "split"),
    ],
)
def test_every_rule_for_the_payment_of_shared_instructions_is_accepted(scheduler, setting, rule):
    flags = {"num_programs": 2, "request_rate": 20.0, "gpu": GPU}
    chosen = {"pool": 20_000, "flags": flags, setting: rule}
    assert run_checked(small_spec(scheduler, "judge", dp=2, **chosen)).summary["unfinished"] == 0
