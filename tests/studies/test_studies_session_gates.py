"""Test the study of gates for sessions: its stored runs, its tables, and what its page says."""

from itertools import product

import pytest

from fairbench_studies.kit.rows import stored_rows
from fairbench_studies.session_gates import ceiling, table


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
