"""Test decode runs against single steps, equal seeds, and service across schedulers."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fairbench
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sequence import FINISHED, REFUSED, UNFINISHED
from fairbench.engine.sglang import Admission
from fairbench.schedulers.registry import PAIRS
from fairbench.sim.run import simulate
from tests.invariants import assert_same_records, run_checked
from tests.sim.sim_helpers import small_spec
from tests.slow_params import slow

# Small pools force eviction and retraction, and small chunks force chunked prefill.
CASES = {
    "tot": {"pool": 9_000, "engine__chunked_prefill_size": 512},
    "judge": {"pool": 9_000, "engine__chunked_prefill_size": 1024},
    "long-qa": {"pool": 60_000, "engine__chunked_prefill_size": 4096},
    "chat": {"pool": 2_500, "engine__chunked_prefill_size": 128},
}


def experiment(scheduler, workload, *, seed=0, dp=1, **more):
    return small_spec(scheduler, workload, seed=seed, dp=dp, **(CASES[workload] | more))


CELLS = [(scheduler, workload) for scheduler in PAIRS for workload in CASES]
# each scheduler on one workload, and each workload under one scheduler
COVER = [*zip(PAIRS, itertools.cycle(["judge", "chat"])), ("fcfs", "long-qa"), ("d2lpm", "tot")]


@pytest.mark.parametrize(
    ("scheduler", "workload"), [*COVER, *slow(*(cell for cell in CELLS if cell not in COVER))]
)
def test_step_by_step_gives_the_same_tables(scheduler, workload):
    fast = run_checked(experiment(scheduler, workload))
    slow = simulate(experiment(scheduler, workload, engine__step_by_step=True))
    assert_same_records(fast, slow)
    # In whatever order, all clients finally get the same service.
    assert (np.asarray(fast.requests["status"].indices) == FINISHED).all()
    assert served(fast) == served_by_fcfs(workload)
    assert min(served(fast)) > 0


def test_a_launch_and_a_tail_do_not_depend_on_how_steps_are_simulated():
    flags = {"gpu": "h100-80gb/llama-3.1-8b/tp1/measured-sglang-triton"}
    fast = simulate(experiment("dlpm", "judge", flags=flags))
    slow = simulate(experiment("dlpm", "judge", flags=flags, engine__step_by_step=True))
    assert_same_records(fast, slow)


def served(result):
    """Return input + 2 x output of each client."""
    service = result.service
    tokens = service["input_tokens"] + 2 * service["output_tokens"]
    return np.bincount(np.asarray(service["client"].indices), weights=tokens).tolist()


@cache
def served_by_fcfs(workload):
    return served(simulate(experiment("fcfs", workload)))


@pytest.mark.parametrize("workload", CASES)
def test_the_small_runs_force_evictions_and_retractions(workload, monkeypatch):
    """Otherwise, the tests of this file would prove little."""
    seen = Counter()

    def counting(owner, name):
        method = getattr(owner, name)

        def counted(*arguments, **named):
            seen[name] += 1
            return method(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)

    counting(KVCache, "_drop")
    counting(Admission, "continue_chunk")
    result = simulate(experiment("lpm", workload))
    assert min(seen["_drop"], seen["continue_chunk"]) > 50 or workload == "judge"
    assert min(seen["_drop"], seen["continue_chunk"]) > 20
    if workload in ("tot", "judge"):
        assert result.requests["retractions"].sum() > 0


@pytest.mark.parametrize("scheduler", ["d2lpm", *slow("preble", "vtc", "least-loaded+fcfs")])
@pytest.mark.parametrize("workload", ["judge", "chat", *slow("long-qa")])
def test_step_by_step_gives_the_same_tables_on_several_workers(scheduler, workload):
    """All programs arrive at once, so workers run in lockstep and events coincide."""
    flags = {"request_rate": float("inf"), "num_programs": 2}
    fast = run_checked(experiment(scheduler, workload, dp=3, flags=flags))
    slow = simulate(experiment(scheduler, workload, dp=3, flags=flags, engine__step_by_step=True))
    assert_same_records(fast, slow)


@pytest.mark.parametrize("scheduler", ["lpm", "d2lpm"])
@pytest.mark.parametrize("workload", ["chat", *slow("tot")])
def test_a_run_that_is_cut_off_is_the_same_step_by_step(scheduler, workload):
    flags = {"num_programs": 3, "request_rate": 8.0, "max_drain_s": 1.0}
    fast = run_checked(experiment(scheduler, workload, flags=flags))
    slow = simulate(experiment(scheduler, workload, flags=flags, engine__step_by_step=True))
    assert_same_records(fast, slow)
    assert (np.asarray(fast.requests["status"].indices) == UNFINISHED).any()


@pytest.mark.parametrize(
    ("workload", "name", "value"),
    [
        ("judge", "engine__max_running_requests", 5),
        ("judge", "engine__full_reservation", True),
        *slow(
            ("tot", "engine__max_running_requests", 5),
            ("tot", "engine__full_reservation", True),
            ("tot", "lpm__queue_limit", 16),
            ("tot", "engine__max_prefill_tokens", 700),
            ("tot", "engine__schedule_conservativeness", 0.3),
        ),
    ],
)
def test_engine_settings_keep_the_invariants_and_the_equivalence(workload, name, value):
    fast = run_checked(experiment("lpm", workload, **{name: value}))
    slow = simulate(experiment("lpm", workload, engine__step_by_step=True, **{name: value}))
    assert_same_records(fast, slow)
    if name == "engine__max_running_requests":
        assert fast.service["batch_size"].max() == value
    if name == "engine__full_reservation":
        assert fast.requests["retractions"].sum() == 0


@pytest.mark.parametrize(
    ("local", "option", "value"),
    [
        ("dlpm", "no_room", "skip"),
        ("preble-groups", "no_room", "skip"),
        ("vtc", "charge", "input"),
        ("vtc-predict", "output_weight", 2),
        ("lcf", "charge", "input"),
        ("rpm", "limit", 12),
    ],
)
def test_other_policies_keep_the_invariants_and_the_equivalence(local, option, value):
    setting = {f"{local}__{option}": value}
    fast = run_checked(experiment(f"round-robin+{local}", "judge", **setting))
    slow = simulate(
        experiment(f"round-robin+{local}", "judge", engine__step_by_step=True, **setting)
    )
    assert_same_records(fast, slow)
    refused = (np.asarray(fast.requests["status"].indices) == REFUSED).any()
    assert refused == (local == "rpm")


@pytest.mark.slow
@pytest.mark.parametrize("workload", CASES)
@pytest.mark.parametrize("scheduler", [*PAIRS, "least-loaded+dlpm", "client-round-robin+lpm"])
def test_step_by_step_gives_the_same_tables_for_another_seed(scheduler, workload):
    flags = {"num_programs": 3, "request_rate": float("inf")}
    fast = run_checked(experiment(scheduler, workload, seed=1, dp=2, flags=flags))
    slow = simulate(
        experiment(scheduler, workload, seed=1, dp=2, flags=flags, engine__step_by_step=True)
    )
    assert_same_records(fast, slow)


@pytest.mark.parametrize("scheduler", ["d2lpm", *slow("preble", "vtc")])
def test_the_same_seed_gives_the_same_records_and_another_one_does_not(scheduler):
    one, two, other = (
        simulate(experiment(scheduler, "chat", dp=2, seed=seed)) for seed in (5, 5, 6)
    )
    assert_same_records(one, two)
    assert one.summary == two.summary
    assert one.requests["arrival_s"].tolist() != other.requests["arrival_s"].tolist()


HASH_SCRIPT = """
import hashlib, io, sys
import pyarrow as pa, pyarrow.parquet as pq
from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate

for scheduler in ("d2lpm", "preble", "vtc"):
    flags = {"scheduler": scheduler, "workload": "chat", "dp": 2, "num_programs": 4}
    result = simulate(resolve(flags, {"engine.max_total_tokens": 2500}))
    for table in (result.requests, result.programs, result.service):
        buffer = io.BytesIO()
        pq.write_table(pa.table(table), buffer)
        print(scheduler, hashlib.sha256(buffer.getvalue()).hexdigest())
"""


@pytest.mark.slow
def test_parquet_content_does_not_depend_on_the_hash_seed():
    source = Path(fairbench.__file__).resolve().parents[1]
    printed = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(source)}
        done = subprocess.run(
            [sys.executable, "-c", HASH_SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 9
