"""Test the simulator against the DLPM paper's setting, measured on an H100 (tests/gpu)."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, median

import pyarrow.parquet as pq
import pytest

from fairbench.hardware.catalogue import named_profile
from fairbench.hardware.engine_params import RULES
from fairbench.results.store import StoredRun, read_run
from fairbench.sim.run import Simulation
from fairbench_calibration.validate.live_run import simulated_spec
from fairbench_studies.validation.serving.profiles import MEASURED_H100

ROOT = Path(__file__).parent.parent.parent
RUNS = ROOT / "tests" / "data" / "sglang_h100_paper"
SCHEDULERS, SEEDS, CLIENTS = ("lpm", "vtc", "dlpm"), (0, 1), 3
MAKESPAN, SERVICE = "time_to_100pct_s", "service_rate_tok_s"
JAIN, HITS = "jain_index_paper_window", "cache_hit_rate"
PROFILE = named_profile(MEASURED_H100)
# A profile in which the launch of a prefill is before the queue, and not in the step.
DELAYED = replace(
    PROFILE,
    frontend=replace(PROFILE.frontend, delay_ms=19.0),
    coefficients_ms={**PROFILE.coefficients_ms, "c_l": 0.0, "c_lp": 0.0},
)


def live(name, seed):
    return read_run(RUNS / f"{name}-seed{seed}")


@cache
def played(name, seed, *, delayed=False):
    spec = simulated_spec(live(name, seed), MEASURED_H100, None)
    profile = DELAYED if delayed else PROFILE
    simulation = Simulation(spec, spec.client_plans(), None, profile=profile)
    simulation.run()
    return simulation.result(True, None)


def numbers(summary):
    p50 = {f"p50-{number}": one["p50_s"] for number, one in enumerate(summary["clients"])}
    return {key: summary[key] for key in (MAKESPAN, SERVICE, JAIN, HITS)} | p50


def measured(name):
    return _means(numbers(live(name, seed).summary) for seed in SEEDS)


def simulated(name, **how):
    return _means(numbers(played(name, seed, **how).summary) for seed in SEEDS)


def _means(runs):
    runs = list(runs)
    return {key: mean(run[key] for run in runs) for key in runs[0]}


def shown_in(page, heading):
    """Return the rows of the first table below a heading: scheduler -> its cells."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split(f"## {heading}\n")[1]
    table = re.search(r"(^\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    return {row[0].replace("`", ""): row[1:] for row in rows}


@pytest.mark.slow
def test_the_table_shows_these_runs():
    rows = shown_in("studies/gpu.md", "The DLPM paper's setting")
    assert set(rows) == set(SCHEDULERS)
    for name, cells in rows.items():
        gpu, sim = measured(name), simulated(name)
        assert cells == [
            f"{gpu[MAKESPAN]:.1f} / {sim[MAKESPAN]:.1f}",
            f"{gpu[SERVICE]:,.0f} / {sim[SERVICE]:,.0f}",
            f"{gpu[JAIN]:.2f} / {sim[JAIN]:.2f}",
            *(
                f"{gpu[f'p50-{client}']:.0f} / {sim[f'p50-{client}']:.0f}"
                for client in range(CLIENTS)
            ),
        ], name


def test_the_appendix_shows_each_run():
    rows = shown_in("appendix/gpu.md", "The DLPM paper's setting")
    assert rows == {f"{name}, {seed}": _cells(name, seed) for name in SCHEDULERS for seed in SEEDS}


def _cells(name, seed):
    """Return makespans and cached shares, measured and simulated."""
    gpu, sim = numbers(live(name, seed).summary), numbers(played(name, seed).summary)
    error = f"{100 * (sim[MAKESPAN] / gpu[MAKESPAN] - 1):+.0f}%"
    makespans = [f"{gpu[MAKESPAN]:.1f}", f"{sim[MAKESPAN]:.1f} ({error})"]
    return [*makespans, *(f"{run[HITS]:.0%}" for run in (gpu, sim))]


@pytest.mark.parametrize("run", [live, played])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_gpu_and_the_simulator_give_the_same_order(run, seed):
    found = {name: numbers(run(name, seed).summary) for name in SCHEDULERS}
    assert sorted(found, key=lambda name: found[name][MAKESPAN]) == ["lpm", "dlpm", "vtc"]
    assert sorted(found, key=lambda name: found[name][JAIN]) == ["lpm", "vtc", "dlpm"]


def test_the_plugin_costs_no_measurable_time():
    assert measured("lpm")[MAKESPAN] == pytest.approx(measured("stock-lpm")[MAKESPAN], rel=0.01)


def waits_of_follow_ups(requests):
    """Return how many seconds merges and scores of the well-behaved clients wait for admission."""
    columns = {key: list(requests[key]) for key in ("client", "depth", "arrival_s", "admitted_s")}
    rows = zip(*columns.values(), strict=True)
    return [admitted - at for client, depth, at, admitted in rows if depth and client != "client-0"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lpm", "dlpm"])
def test_follow_ups_reach_the_queue_before_the_pass_only_if_the_delay_is_short(name):
    path = RUNS / f"{name}-seed0" / "requests.parquet"
    gpu = waits_of_follow_ups(pq.read_table(path).to_pydict())
    assert median(gpu) < 0.005
    assert median(waits_of_follow_ups(played(name, 0).requests)) < 0.05
    assert median(waits_of_follow_ups(played(name, 0, delayed=True).requests)) > 1
    hits = measured(name)[HITS]
    assert simulated(name)[HITS] == pytest.approx(hits, abs=0.04)
    assert simulated(name, delayed=True)[HITS] < hits - 0.08


def test_all_three_are_too_fast_by_a_little():
    for name in SCHEDULERS:
        assert 0.94 < simulated(name)[MAKESPAN] / measured(name)[MAKESPAN] < 0.96


@pytest.mark.parametrize(
    ("served", "release"),
    [
        ("sglang 0.5.17, llama-3.1-8b", "0.5.17"),
        ("sglang 0.5.17 with its own lpm, llama-3.1-8b", "0.5.17"),
        ("sglang 0.5.23, llama-3.1-8b", None),  # the current rules need no setting
        ("sglang 9.9.9, llama-3.1-8b", None),
        ("vllm 0.32.0, llama-3.1-8b", None),
    ],
)
def test_a_live_run_is_simulated_with_the_rules_of_its_release(served, release):
    run = live("lpm", 0)
    told = StoredRun(run.path, run.summary | {"served": served}, run.manifest)
    spec = simulated_spec(told, MEASURED_H100, None)
    assert spec.settings.get("engine.release") == release
    assert release is None or release in RULES
