"""Test the study of gates for sessions: its stored runs, its tables, and what its page says."""

from itertools import product

import numpy as np
import pytest

from fairbench_studies.kit.rows import stored_rows
from fairbench_studies.session_gates import bound, ceiling, table


def text():
    return table.PAGE.read_text(encoding="utf-8")


def test_every_gate_has_the_same_seeds_in_a_scenario_and_load():
    seeds = {}
    for row in stored_rows(table.TABLE):
        seeds.setdefault((row["scenario"], row["load"], row["gate"]), []).append(row["seed"])
    loads = [f"{load:g}" for load in table.LOADS]
    assert set(seeds) == set(product(table.RATES, loads, table.GATES))
    for (scenario, load, _), mine in seeds.items():
        assert sorted(mine) == sorted(seeds[scenario, load, "no gate, fcfs"])
        assert {*map(str, table.SEEDS)} <= {*mine}
        assert len(mine) == len({*mine})


def test_the_page_shows_the_means_of_the_stored_runs():
    found = table.means()
    for shown in (table.gate_table(found), table.load_table(found)):
        assert shown.strip() in text()
    for shown in (ceiling.ceiling_table(), ceiling.lost_table()):
        assert shown.strip() in text()
    assert bound.bound_table().strip() in text()


def test_fair_sessions_lets_calls_wait_less_than_the_other_gates_of_sessions():
    found = table.means()
    for scenario in table.RATES:
        mine = found[scenario, "1", "fair-sessions"]
        usual = found[scenario, "1", "no gate, fcfs"]
        assert mine["service_rate_tok_s"] > 1.4 * usual["service_rate_tok_s"]
        for gate in table.GATES:
            if gate.startswith("thunderagent"):
                assert mine["max_turn_wait_s"] < found[scenario, "1", gate]["max_turn_wait_s"] / 3


@pytest.mark.parametrize("scenario", table.RATES)
def test_clients_lose_most_in_decoding_and_less_without_the_heavy_client(scenario):
    shares = {
        run: ceiling.mean(scenario, run, "worst_share", 1.0)
        for run in (*ceiling.SHARED, ceiling.WITHOUT_HEAVY, ceiling.ALONE)
    }
    most = {"s1": 0.95, "s2": 0.97}[scenario]
    assert shares["fair-sessions"] < shares[ceiling.WITHOUT_HEAVY] < most
    assert shares["no gate, vtc, unlimited memory"] < shares["fair-sessions"]
    lost = [ceiling.mean(scenario, "fair-sessions", f"lost_{one}_s") for one in ceiling.PHASES]
    assert lost[ceiling.PHASES.index("decode")] > sum(lost) / 2


class Linear:
    """Costs of 1 ms for each prompt token and 10 ms for each decode step."""

    def frontend_s(self, input_tokens):
        return 0.5

    def prefill_s(self, cached_tokens, new_tokens):
        return new_tokens / 1000

    def decode_step_s(self, requests, context_tokens):
        return 0.01


def two_sessions(pause_s):
    """Return four calls: each of two sessions pauses once, the second one four times as long."""
    nan = np.nan
    return bound.Calls(
        prompt=np.array([1000.0, 2000.0, 1000.0, 2000.0]),
        new=np.array([1000.0, 900.0, 1000.0, 900.0]),
        answer=np.full(4, 101.0),
        pause_s=np.array([nan, pause_s, nan, 4 * pause_s]),
        ttft_s=np.array([1.0, 2.0, 3.0, 4.0]),
    )


def test_necessary_work_counts_each_new_token_and_the_largest_batch():
    found = bound.necessary(two_sessions(1.0), Linear(), 21_010, 100.0)
    time_s = bound.DP * 100.0
    assert found["prefill"] == pytest.approx(3.8 / time_s)
    # Batches of 19 contexts of 1,101 tokens and of 10 contexts of 2,101 tokens fit into memory.
    assert found["decode"] == pytest.approx(2 * (1 / 19 + 1 / 10) / time_s)
    assert found["recompute"] == 0.0
    assert found["lone_p99_s"] == pytest.approx(1.5)


def test_contexts_with_the_longest_pauses_are_computed_again_first():
    calls, time_s = two_sessions(1e6), bound.DP * 100.0
    run_s = calls.new / 1000 + 100 * 0.01
    running = float(((calls.prompt + calls.answer) * run_s).sum())
    pool_tokens = 1e12
    assert bound.necessary(calls, Linear(), pool_tokens, 100.0)["recompute"] == 0.0
    # Memory is left for the short pause and a quarter of the long one.
    pool_tokens = (running + 2000 * 1e6 + 2000 * 1e6) / time_s
    found = bound.necessary(calls, Linear(), pool_tokens, 100.0)["recompute"]
    assert found == pytest.approx(0.75 * 1.1 / time_s)
    nothing = bound.necessary(calls, Linear(), 3000, 100.0)["recompute"]
    assert nothing == pytest.approx(2 * 1.1 / time_s, rel=1e-2)


def test_no_lower_bound_of_the_p99_reaches_120_s():
    for scenario in table.RATES:
        assert sum(bound.mean(scenario, one) for one in ("prefill", "decode")) < 0.65
        assert bound.mean(scenario, "recompute") == 0.0
        assert bound.mean(scenario, "lone_p99_s") < bound.mean(scenario, "unlimited_p99_s") < 120
