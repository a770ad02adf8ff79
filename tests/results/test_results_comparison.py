"""Test by hand-computed examples what a comparison adds to stored runs."""

import json
import tomllib

import pytest

from fairbench.config import identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.metrics.fairness import max_min
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.results.comparison import alone_key, compare, compared_summary
from tests.results.comparison_helpers import alone_row, client, stored, summary


def test_entitlement_is_a_fair_share_of_the_best_total():
    # The second client wants only 10 of 90 tokens, so each of the others is entitled to 40.
    rates = {"service_rate_tok_s": 30.0}
    clients = [
        client(0, demand_tok_s=70.0, **rates),
        client(1, demand_tok_s=10.0, service_rate_tok_s=5.0),
        client(2, demand_tok_s=90.0, **rates),
    ]
    compared = compared_summary(summary(clients=clients), 90.0, ())
    assert [one["entitlement_best_tok_s"] for one in compared["clients"]] == [40.0, 10.0, 40.0]
    assert [one["entitlement_best_ratio"] for one in compared["clients"]] == [0.75, 0.5, 0.75]
    assert compared["min_entitlement_best_ratio"] == 0.5
    assert compared["best_service_rate_tok_s"] == 90.0
    assert sum(max_min(90.0, [70.0, 10.0, 90.0])) == 90.0


def test_with_weights_the_best_total_is_divided_by_weight():
    clients = [client(0, weight=2.0, service_rate_tok_s=30.0), client(1, weight=1.0)]
    compared = compared_summary(summary(clients=clients), 90.0, ())
    assert [one["entitlement_best_tok_s"] for one in compared["clients"]] == [60.0, 30.0]
    assert compared["min_entitlement_best_ratio"] == 10 / 30


def test_a_client_without_demand_is_entitled_to_nothing():
    compared = compared_summary(summary(clients=[client(1, demand_tok_s=0.0)]), 90.0, ())
    assert compared["clients"][0]["entitlement_best_ratio"] is None
    assert compared["min_entitlement_best_ratio"] is None


def test_the_sharing_incentive_is_that_of_the_worst_off_well_behaved_client():
    alone = [alone_row(1, p50_s=8.0), alone_row(2, p50_s=5.0, p99_s=16.0)]
    compared = compared_summary(summary(), 30.0, alone)
    assert [one["sharing_incentive_p50"] for one in compared["clients"]] == [None, 0.5, 0.8]
    assert [one["sharing_incentive_p99"] for one in compared["clients"]] == [None, 4.0, 0.5]
    assert (compared["sharing_incentive_p50"], compared["sharing_incentive_p99"]) == (0.8, 4.0)
    assert compared["notes"]["clients.client-0.sharing_incentive_p99"] == "the client is heavy"


def test_the_sharing_incentive_uses_the_percentile_that_few_programs_allow():
    shared = summary(clients=[client(1, p95_s=6.0), client(2)])
    alone = [alone_row(1, p95_s=2.0), alone_row(2, p95_s=2.0)]
    compared = compared_summary(shared, 30.0, alone)
    assert [one["sharing_incentive_p95"] for one in compared["clients"]] == [3.0, None]
    assert compared["notes"]["sharing_incentive_p95"].endswith("undefined on the shared cluster")


def test_bounds_of_latencies_become_bounds_of_incentives():
    shared = summary(censored=["clients.client-1.p99_s", "victim_p99_s"])
    alone = [alone_row(1), alone_row(2, p50_s=1.0, censored=["p50_s"])]
    compared = compared_summary(shared, 30.0, alone)
    assert compared["sharing_incentive_p99"] == 4.0
    assert {"sharing_incentive_p99", "clients.client-1.sharing_incentive_p99"} <= set(
        compared["censored"]
    )
    assert compared["sharing_incentive_p50"] == 4.0
    assert compared["upper_bounds"] == [
        "clients.client-2.sharing_incentive_p50",
        "sharing_incentive_p50",
    ]
    assert shared["censored"] == ["clients.client-1.p99_s", "victim_p99_s"]


def test_runs_are_compared_only_with_other_schedulers(tmp_path):
    runs = [
        stored(tmp_path, {"scheduler": "lpm"}, service_rate_tok_s=20.0),
        stored(tmp_path, {"scheduler": "vtc"}, service_rate_tok_s=50.0),
        stored(tmp_path, {"scheduler": "lpm", "seed": 1}, service_rate_tok_s=60.0),
        stored(tmp_path, {"scheduler": "vtc", "dp": 2}, service_rate_tok_s=70.0),
        stored(tmp_path, {"scheduler": "vtc"}, {"vtc.charge": "input"}, service_rate_tok_s=55.0),
        stored(tmp_path, {"scheduler": "vtc"}, {"engine.max_total_tokens": 9_999}),
    ]
    cells = compare(runs, {})
    found = [
        (cell.place, cell.scheduler, [run.summary["best_service_rate_tok_s"] for run in cell.runs])
        for cell in cells
    ]
    assert found == [
        ("chat s1 dp 1 engine.max_total_tokens=0", "lpm", [55.0, 60.0]),
        ("chat s1 dp 1 engine.max_total_tokens=0", 'vtc vtc.charge="extend"', [55.0]),
        ("chat s1 dp 1 engine.max_total_tokens=0", 'vtc vtc.charge="input"', [55.0]),
        ("chat s1 dp 2", "vtc", [70.0]),
        ("chat s1 dp 1 engine.max_total_tokens=9999", "vtc", [30.0]),
    ]
    assert cells[0].combined["service_rate_tok_s"]["mean"] == 40.0
    assert cells[0].combined["seeds"] == [0, 1]


def test_runs_of_clients_alone_are_found_by_configuration_and_seed(tmp_path):
    run = stored(tmp_path, {"scheduler": "lpm", "seed": 3})
    rows = [alone_row(1), alone_row(2)]

    def key(**flags):
        return alone_key(tomllib.loads(to_toml(resolve({"workload": "chat", **flags}))))

    found = {name: compare([run], {key(**flags): rows})[0].combined for name, flags in {
        "same": {"scheduler": "preble", "seed": 3, "tag": "other"},
        "other seed": {"scheduler": "lpm", "seed": 4},
        "other place": {"scheduler": "lpm", "seed": 3, "dp": 2},
    }.items()}  # fmt: skip
    assert found["same"]["sharing_incentive_p99"]["mean"] == 4.0
    assert found["other seed"]["sharing_incentive_p99"] is None
    assert found["other place"]["sharing_incentive_p99"] is None


def test_bounds_are_kept_over_seeds(tmp_path):
    lower = {"censored": ["clients.client-1.p99_s"]}
    runs = [stored(tmp_path, {}, **lower), stored(tmp_path, {"seed": 1})]
    keys = [alone_key(tomllib.loads((run.path / "experiment.toml").read_text())) for run in runs]
    rows = [alone_row(1), alone_row(2)]
    (cell,) = compare(runs, dict.fromkeys(keys, rows))
    assert cell.combined["sharing_incentive_p99"]["lower_bound"] is True
    assert "lower_bound" not in cell.combined["sharing_incentive_p50"]

    above = [alone_row(1, censored=["p99_s"]), alone_row(2)]
    (cell,) = compare(runs[1:], {keys[1]: above})
    assert cell.combined["clients"][1]["sharing_incentive_p99"]["upper_bound"] is True
    (cell,) = compare(runs, {keys[0]: rows, keys[1]: above})
    # The seeds give a lower and an upper bound, so the mean has no bound.
    assert cell.combined["clients"][1]["sharing_incentive_p99"] is None


@pytest.mark.parametrize("limited", [[True, False], [False, True]])
def test_a_cell_is_demand_limited_if_one_of_its_runs_is(tmp_path, limited):
    runs = [
        stored(tmp_path, {"seed": seed}, demand_limited=value) for seed, value in enumerate(limited)
    ]
    assert compare(runs, {})[0].demand_limited


def test_a_configuration_is_contended_if_it_is_under_one_scheduler(tmp_path):
    calm = {"notes": {"min_entitlement_ratio": NOT_CONTENDED}}
    idle = [stored(tmp_path, {"scheduler": name}, **calm) for name in ("vtc", "lpm")]
    for cell in compare(idle, {}):
        assert cell.combined["min_entitlement_best_ratio"] is None
        assert cell.runs[0].summary["notes"]["min_entitlement_best_ratio"] == NOT_CONTENDED
        assert cell.combined["clients"][0]["entitlement_best_ratio"] is None
    starving = stored(tmp_path, {"scheduler": "fcfs"})
    for cell in compare([*idle, starving], {}):
        assert cell.combined["min_entitlement_best_ratio"]["mean"] == 1.0


def test_a_comparison_can_be_written_as_json(tmp_path):
    cells = compare([stored(tmp_path, {})], {})
    json.dumps(cells[0].combined, allow_nan=False)
    assert identity(resolve({"workload": "chat"})) == cells[0].runs[0].run.manifest["spec_identity"]
