"""Test metrics of KV memory on hand-written tables, and in whole runs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fairbench
from fairbench.metrics.records import Window
from fairbench.metrics.tables import Memory
from fairbench.metrics.totals import evicted_tokens, held_token_s
from fairbench.report.result_lines import memory_lines
from fairbench.results.store import save_run
from fairbench.sim.run import hit_rates_alone, simulate, simulate_tables
from fairbench_logs.scoring.summary import score_run
from tests.invariants import assert_same_records
from tests.sim.sim_helpers import small_spec

A, B, NOBODY = 0, 1, -1


def memory(*rows):
    """Return rows of (at_s, client, holders, change, by), at worker 0."""
    at_s, client, holders, change, by = np.array(rows).T
    return Memory.from_columns(
        {"at_s": at_s, "worker": np.zeros(len(rows)), "client": client, "holders": holders}
        | {"change": change, "by": by}
    )


# A holds 10 tokens from 1 s on, and shares them with B from 3 s on. At 5 s, A loses its claim to B.
SHARED = memory(
    (1, A, 1, 10, NOBODY),
    (3, A, 1, -10, NOBODY), (3, A, 2, 10, NOBODY), (3, B, 2, 10, NOBODY),
    (5, A, 2, -10, B), (5, B, 2, -10, NOBODY), (5, B, 1, 10, NOBODY),
)  # fmt: skip


def test_a_token_held_by_two_clients_counts_half_for_each():
    assert held_token_s(SHARED, 2, Window(0, 7)).tolist() == [10 * 2 + 5 * 2, 5 * 2 + 10 * 2]
    assert held_token_s(SHARED, 2, Window(2, 4)).tolist() == [10 + 5, 5]
    assert held_token_s(SHARED, 2, Window(6, 7)).tolist() == [0, 10]


def test_evictions_are_counted_by_evictor_and_victim():
    assert evicted_tokens(SHARED, 2, Window(0, 7)).tolist() == [[0, 5], [0, 0]]
    assert evicted_tokens(SHARED, 2, Window(0, 5)).tolist() == [[0, 0], [0, 0]]


@pytest.fixture(scope="module")
def spec():
    return small_spec("fcfs", "judge", pool=9_000, flags={"eviction": "max-min"})


@pytest.fixture(scope="module")
def result(spec):
    return simulate(spec)


def test_clients_residencies_never_exceed_the_pool(spec, result):
    rows, pool = result.memory, result.summary["pool_tokens"]
    held = np.cumsum(rows["change"] / rows["holders"])
    assert held.min() >= -1e-6
    assert held.max() <= pool + 1e-6
    assert held.max() > 0.9 * pool  # a small pool fills
    assert sum(row["residency_tokens"] for row in result.summary["clients"]) <= pool


def test_the_matrix_adds_up_to_losses_and_gains(result):
    matrix = result.summary["evictions"]
    assert matrix
    for row in result.summary["clients"]:
        name = row["client"]
        lost = sum(one["tokens"] for one in matrix if one["client"] == name)
        taken = sum(one["tokens"] for one in matrix if one["by"] == name != one["client"])
        assert row["evicted_tokens"] == pytest.approx(lost)
        assert row["evicted_of_others_tokens"] == pytest.approx(taken)
    ratios = [row["residency_ratio"] for row in result.summary["clients"]]
    assert sum(ratios) / len(ratios) == pytest.approx(1)


def test_the_isolated_hit_rate_is_that_of_a_run_alone_on_the_share_of_the_pool(spec, result):
    for row in result.summary["clients"]:
        alone, incentive = row["cache_hit_rate_alone"], row["cache_sharing_incentive"]
        if alone:
            assert incentive == pytest.approx(row["cache_hit_rate"] / alone)
        else:
            assert incentive is None
            note = result.summary["notes"][f"clients.{row['client']}.cache_sharing_incentive"]
            assert note.startswith("the client alone")


def test_the_pool_of_a_client_alone_is_in_proportion_to_its_weight(spec):
    requests = simulate_tables(spec).tables.requests
    first, second, *_ = spec.client_plans()
    pools = {}

    def run(alone, plan):
        pools[plan.client] = alone.settings["pool"]
        return SimpleNamespace(requests=requests.take(requests.client == 0))

    plans = (replace(first, weight=1.0), replace(second, weight=3.0))
    rates = hit_rates_alone(spec, plans, 9_000, lambda tokens: {"pool": tokens}, run)
    assert pools == {first.client: 2_250, second.client: 6_750}
    assert rates.keys() == pools.keys()


def test_memory_records_change_no_other_record(result):
    cell = {"pool": 9_000}
    plain = simulate(small_spec("fcfs", "judge", **cell))
    recorded = simulate(small_spec("fcfs", "judge", flags={"memory_records": True}, **cell))
    assert_same_records(plain, recorded)
    assert plain.memory is None
    assert "evictions" not in plain.summary
    assert recorded.memory is not None
    known = {key for key in recorded.summary if key not in plain.summary}
    assert known == {"evictions"}


def test_a_stored_run_is_scored_and_shown_with_its_memory(spec, result, tmp_path):
    manifest = {"schema_version": 1}
    path = save_run(tmp_path, spec, result.tables(), result.summary, manifest)
    assert (path / "memory.parquet").exists()
    scored = score_run(path, None, None)[0]
    assert scored["evictions"] == result.summary["evictions"]
    for ours, theirs in zip(scored["clients"], result.summary["clients"], strict=True):
        assert ours == theirs
    shown = list(memory_lines(scored))
    assert shown[0][0] == "evictions"
    window_s = [result.summary[f"window_{end}_s"] for end in ("start", "end")]
    assert shown[0][1].startswith(f"from {window_s[0]:.0f} to ")
    assert " lost " in shown[0][1]


def test_a_sweep_compares_evictions_and_saves_their_metrics(tmp_path):
    swept = fairbench.sweep(
        schedulers=["fcfs"],
        evictions=["lru", "max-min"],
        workloads=["chat"],
        num_programs=2,
        settings={"engine.max_total_tokens": 2_500},
        result_dir=tmp_path,
    )
    assert not swept.failures
    text = (swept.path / "metrics.csv").read_text(encoding="utf-8")
    assert "fcfs with lru eviction" in text
    assert "fcfs with max-min eviction" in text
