"""Test that the VTC paper's workloads have the rates, lengths and machine of its experiments."""

import gzip
import json
import tomllib
from collections import Counter
from itertools import pairwise

import pytest

from fairbench.config.resolve import resolve
from fairbench.config.spec import to_toml
from fairbench.core import Demand
from fairbench.engine.contract import CONTRACTS
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.plan import program_stream
from fairbench.workloads.spec import load_workload, workload_names

NAMES = [name for name in workload_names() if name.startswith("vtc-")]
EVEN = (256, 256)
ADDED = 2  # a mark before and a blank after a prompt of repeated "Hello "
# For each workload and scenario, the number and lengths of each client's requests. The numbers are
# rates times durations of the experiments ([VTC-artifact], exp_suite.py).
SENT = {
    ("vtc-overload", "s1"): [(900, EVEN), (1_800, EVEN)],
    ("vtc-proportional", "s1"): [(150, EVEN), (300, EVEN), (900, EVEN)],
    ("vtc-on-off-less", "s1"): [(150, EVEN), (1_200, EVEN)],
    ("vtc-on-off-overload", "s1"): [(600, EVEN), (1_800, EVEN)],
    ("vtc-poisson-short-long", "s1"): [(4_800, (64, 64)), (900, EVEN)],
    ("vtc-poisson-short-long-2", "s1"): [(4_800, (512, 32)), (900, (32, 512))],
    ("vtc-poisson-short-long-2", "s2"): [(4_800, (64, 512)), (900, (512, 64))],
    ("vtc-increasing", "s1"): [(300, EVEN), (660, EVEN)],
    ("vtc-shift", "s1"): [(90 + 300 + 150, EVEN), (600 + 300 + 450, EVEN)],
    ("vtc-eight", "s1"): [(144, EVEN)] * 3 + [(216, EVEN)] * 5,
    ("vtc-weighted", "s1"): [(288, EVEN), (288, EVEN), (432, EVEN), (576, EVEN)],
    ("vtc-memory-pool", "s1"): [(1_800, (512, 512)), (3_600, (512, 512))],
    ("vtc-memory-pool", "s2"): [(2_400, (512, 512)), (4_800, (512, 512))],
    ("vtc-length", "s1"): [(3_600, EVEN), (7_200, EVEN)],
    ("vtc-length", "s2"): [(1_800, (512, 512)), (3_600, (512, 512))],
    ("vtc-length", "s3"): [(1_200, (768, 768)), (2_400, (768, 768))],
}


def stored(spec):
    return tomllib.loads(to_toml(spec))


def test_every_scenario_of_every_workload_is_listed_here():
    known = {(name, scenario) for name in NAMES for scenario in load_workload(name).scenarios}
    assert known == {*SENT, ("vtc-arena", "s1")}


@pytest.mark.parametrize(("name", "scenario"), SENT)
def test_clients_send_as_many_requests_and_tokens_as_in_the_paper(name, scenario):
    plans = plan_clients(load_workload(name), scenario)
    poisson = "poisson" in name
    for plan, (count, lengths) in zip(plans, SENT[name, scenario], strict=True):
        arrivals = list(program_stream(plan, seed=0))
        spread = 4 * count**0.5 if poisson else 1
        assert len(arrivals) == pytest.approx(count, abs=spread)
        demand = Demand(1, lengths[0] + ADDED, lengths[1])
        assert {program.demand for _, program in arrivals} == {demand}
        gaps = {round(b.at_s - a.at_s, 6) for a, b in pairwise(arrivals)}
        rises = name == "vtc-increasing" and plan.index == 1
        assert (len(gaps) < 12) == (not poisson and not rises)


def test_on_and_off_periods_last_minutes():
    for name, at_s in (("vtc-on-off-less", 600), ("vtc-on-off-overload", 600), ("vtc-shift", 300)):
        (plan, _) = plan_clients(load_workload(name), "s1")
        minutes = Counter(int(a.at_s // 60) for a in program_stream(plan, seed=0) if a.at_s < at_s)
        assert [*minutes] == list(range(0, at_s // 60, 2))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vtc-arena"])
def test_by_default_these_workloads_use_the_machine_of_the_paper(name):
    spec = resolve({"workload": name, "scheduler": "vtc"})
    on_a10g = name not in ("vtc-memory-pool", "vtc-length")
    assert spec.engine == "lightllm"
    assert spec.model == "llama-2-7b"
    assert ("a10g" in spec.gpu) == on_a10g
    engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, load_profile(spec.gpu))
    assert engine.pool_tokens == (10_000 if on_a10g else 35_000)
    assert spec.settings["vtc.charge"] == "input"
    # The stored spec is complete, and is read back unchanged.
    assert 'engine = "lightllm"' in to_toml(spec)


def test_a_larger_pool_is_a_scenario():
    spec = resolve({"workload": "vtc-memory-pool", "scenario": "s2"})
    assert spec.settings["lightllm.max_total_tokens"] == 65_000


def test_another_machine_is_one_flag_away_and_stays_chosen(tmp_path):
    flags = {"workload": "vtc-overload", "engine": "sglang", "gpu": "a100"}
    spec = resolve(flags)
    assert (spec.engine, spec.gpu.split("/")[0], spec.model) == (
        "sglang",
        "a100-80gb",
        "llama-2-7b",
    )
    assert not any(key.startswith("lightllm.") for key in spec.settings)
    again = resolve({}, file=stored(spec))
    assert again == spec


def test_a_workload_sets_its_machine():
    spec = resolve({"workload": "vtc-overload"})
    assert resolve({}, file=stored(spec)) == spec
    assert resolve({"scheduler": "fcfs"}, file=stored(spec)).engine == "lightllm"
    elsewhere = resolve({"workload": "tot"}, file=stored(spec))
    assert elsewhere == resolve({"workload": "tot", "seed": spec.seed})


def test_weights_are_one_to_four():
    weights = resolve({"workload": "vtc-weighted"}).weights
    assert weights == {f"client-{n}": n + 1.0 for n in range(4)}


def test_the_trace_has_27_clients(tmp_path, monkeypatch):
    records = (
        {"t": n / 10, "client": n % 27, "prompt_len": 1, "output_len": 1} for n in range(6_001)
    )
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "vtc_arena_trace.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("FAIRBENCH_DATA", str(tmp_path))
    plans = plan_clients(load_workload("vtc-arena"), "s1")
    assert len(plans) == 27
    # the last request is at 600 s
    assert sum(plan.arrivals.expected_programs() for plan in plans) == 6_001
