"""Verdicts on the paper's claims, by numbers made by hand."""

import csv
from dataclasses import replace

import pytest
from figure_helpers import cell

from fairbench.figures.claims import fairness, quanta, scaling, throughput
from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.table import CLAIMS, Judged, claims_markdown, write
from fairbench.figures.fig4 import Timings

REPRODUCED, DIRECTION, NOT, CONTRADICTED, UNTESTABLE = Verdict


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"shape": True}, REPRODUCED),
        ({"shape": True, "quantity": False}, DIRECTION),
        ({"shape": False, "quantity": True}, NOT),
        ({"shape": False, "opposite": True}, CONTRADICTED),
    ],
)
def test_a_verdict_follows_shape_then_number(facts, expected):
    assert verdict(**facts) is expected


def test_every_claim_of_the_paper_is_judged_once():
    assert [claim.number for claim in CLAIMS] == [*range(1, max(len(CLAIMS), 17) + 1)]


def rates(**by_dp):
    """Cells of two schedulers: ``dp8=(2.0, 1.0)`` are D2LPM's and VTC's service rate."""
    return [
        cell(name, dp=int(dp[2:]), service_rate_tok_s=rate)
        for dp, pair in by_dp.items()
        for name, rate in zip(("d2lpm", "vtc"), pair, strict=True)
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (rates(dp1=(1.1, 1.0), dp8=(2.9, 1.0)), REPRODUCED),
        (rates(dp1=(1.1, 1.0), dp8=(5.0, 1.0)), DIRECTION),
        (rates(dp1=(0.9, 1.0), dp8=(2.9, 1.0)), NOT),
        (rates(dp1=(1.0, 1.0), dp8=(2.9, 1.0)), NOT),
        (rates(dp1=(0.9, 1.0), dp8=(0.8, 1.0)), CONTRADICTED),
        (
            rates(dp1=(0.9, 1.0), dp2=(2.9, 1), dp4=(2, 1), dp8=(2, 1), dp16=(2, 1)),
            REPRODUCED,
        ),
    ],
)
def test_a_gain_needs_its_size_in_most_places(cells, expected):
    band = throughput.Band(1.8, 4.0)
    found = throughput.judge_gain(cells, pairs=throughput.OVER_VTC, band=band)
    assert found.verdict is expected


def test_a_gain_is_also_told_by_output_and_makespan():
    cells = [
        cell("d2lpm", service_rate_tok_s=20.0, output_rate_tok_s=9.0, time_to_100pct_s=50.0),
        cell("vtc", service_rate_tok_s=10.0, output_rate_tok_s=10.0, time_to_100pct_s=150.0),
    ]
    band = throughput.Band(1.8, 2.5)
    found = throughput.judge_gain(cells, pairs=throughput.OVER_VTC, band=band)
    assert found.verdict is REPRODUCED
    assert found.beside == {"output tok/s": CONTRADICTED, "makespan": DIRECTION}
    assert "makespan holds in 1 of 1, up to 3.00x (tot s1 at 1)" in found.ours
    assert found.elsewhere == {"output tok/s": "reversed: tot s1 at 1"}


def test_without_a_contended_place_nothing_is_tested():
    cells = [
        cell("d2lpm", service_rate_tok_s=20.0),
        cell("vtc", service_rate_tok_s=10.0, contended=False),
    ]
    band = throughput.Band(1.8, 2.5)
    found = throughput.judge_gain(cells, pairs=throughput.OVER_VTC, band=band)
    assert found.verdict is UNTESTABLE
    assert found.elsewhere["service rate"] == "not contended: tot s1 at 1"


@pytest.mark.parametrize(
    ("hit_at_4", "hit_at_8", "expected"),
    [(0.95, 0.5, REPRODUCED), (0.8, 0.5, DIRECTION), (0.5, 0.5, NOT), (0.5, 0.9, CONTRADICTED)],
)
def test_lpm_must_lose_hits_from_4_to_8(hit_at_4, hit_at_8, expected):
    place = {"workload": "tot", "scenario": "s2"}
    cells = [
        cell("lpm", dp=4, service_rate_tok_s=100.0, cache_hit_rate=hit_at_4, **place),
        cell("lpm", dp=8, service_rate_tok_s=150.0, cache_hit_rate=hit_at_8, **place),
    ]
    found = throughput.judge_scaling(cells)
    assert found.verdict is expected
    assert found.ours.endswith("100 to 150 tok/s, by replica 0.75x")


def test_a_point_that_the_paper_leaves_out_is_not_testable():
    place = {"workload": "tot", "scenario": "s2", "dp": 8}
    cells = [
        cell("preble", time_to_100pct_s=None, **place),
        cell("lpm", time_to_100pct_s=(1000.0, 1100.0), seeds=(0, 1), **place),
    ]
    found = throughput.judge_missing(cells)
    assert found.verdict is UNTESTABLE
    assert found.ours == (
        "Preble at dp 1: n/a; tot s2 at 8 all done: preble not always, lpm after 1,050 s"
    )


@pytest.mark.parametrize(
    ("there", "elsewhere", "expected"),
    [(0.8, 1.0, REPRODUCED), (1.1, 1.0, NOT), (0.8, 0.9, CONTRADICTED), (1.1, 0.9, CONTRADICTED)],
)
def test_preble_wins_in_one_place_only(there, elsewhere, expected):
    cells = []
    for place, ratio in ((("long-qa", "s2", 8), there), (("tot", "s1", 4), elsewhere)):
        where = dict(zip(("workload", "scenario", "dp"), place, strict=True))
        cells += [cell("preble", service_rate_tok_s=100.0, **where)]
        cells += [cell("d2lpm", service_rate_tok_s=100.0 * ratio, **where)]
    assert throughput.judge_preble(cells).verdict is expected


def test_preble_must_win_beyond_doubt():
    """In the mean it does there, but one of three seeds says the opposite."""
    there = {"workload": "long-qa", "scenario": "s2", "dp": 8, "seeds": (0, 1, 2)}
    cells = [
        cell("preble", service_rate_tok_s=(100.0, 100.0, 100.0), **there),
        cell("d2lpm", service_rate_tok_s=(70.0, 80.0, 110.0), **there),
        cell("preble", service_rate_tok_s=100.0),
        cell("d2lpm", service_rate_tok_s=110.0),
    ]
    assert throughput.judge_preble(cells).verdict is NOT


def indices(*values):
    names = ("vtc", "d2lpm", "preble", "lpm")
    return [cell(name, jain_index=value) for name, value in zip(names, values, strict=True)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.95, 0.94, 0.7, 0.6), REPRODUCED),
        ((0.95, 0.75, 0.7, 0.6), DIRECTION),
        ((0.90, 0.94, 0.7, 0.6), NOT),
        ((0.95, 0.60, 0.7, 0.6), CONTRADICTED),
    ],
)
def test_jain_needs_the_order_and_a_small_gap_to_vtc(values, expected):
    assert fairness.judge_jain(indices(*values)).verdict is expected


@pytest.mark.parametrize(
    ("preble", "lpm", "vtc", "expected"),
    [
        ((2.0, 5.0), (3.0, 6.0), (2.0, 4.5), REPRODUCED),
        ((2.0, 30.0), (3.0, 60.0), (2.0, 4.5), DIRECTION),
        ((3.0, 6.0), (2.0, 5.0), (2.0, 4.5), NOT),
        ((0.9, 0.9), (0.9, 0.9), (0.9, 0.9), CONTRADICTED),
    ],
)
def test_latency_needs_means_and_extremes(preble, lpm, vtc, expected):
    cells = [cell("d2lpm", victim_p50_s=1.0, victim_p99_s=1.0)]
    for name, (p50, p99) in (("preble", preble), ("lpm", lpm), ("vtc", vtc)):
        cells.append(cell(name, victim_p50_s=p50, victim_p99_s=p99))
    assert fairness.judge_latency(cells).verdict is expected


def test_latencies_are_averaged_as_ratios():
    """50x and 2x are 10x in the geometric mean; where nobody competed does not count."""
    cells = []
    for dp, factor, contended in ((1, 50.0, True), (2, 2.0, True), (4, 1000.0, False)):
        cells.append(cell("d2lpm", dp=dp, victim_p50_s=1.0, victim_p99_s=1.0))
        for name in ("preble", "lpm", "vtc"):
            waits = {"victim_p50_s": factor, "victim_p99_s": factor}
            cells.append(cell(name, dp=dp, contended=contended, **waits))
    found = fairness.judge_latency(cells)
    assert "VTC 10.00x in the geometric mean, up to 50.00x, P50 longer holds in 2 of 2" in (
        found.ours
    )


def swept(part, scheduler, scenario, points):
    return [
        cell(
            scheduler, scenario=scenario, settings={part: values}, service_rate_tok_s=rate,
            jain_index=jain,
        )
        for values, rate, jain in points
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rates_and_jains", "expected"),
    [
        (((90, 0.855), (110, 0.83)), REPRODUCED),
        (((90, 0.855), (110, 0.70)), DIRECTION),
        (((90, 0.855), (99, 0.83)), NOT),
        (((120, 0.855), (110, 0.83)), CONTRADICTED),
    ],
)
def test_a_worker_quantum_must_end_above_all_others(rates_and_jains, expected):
    points = [
        ({"worker_quantum": quantum}, float(rate), jain)
        for quantum, (rate, jain) in zip((2000, 40000), rates_and_jains, strict=True)
    ]
    cells = swept("d2lpm", "d2lpm", "s2", points)
    cells += [cell("lpm", scenario="s2", service_rate_tok_s=100.0, jain_index=0.5)]
    assert quanta.judge_worker_quantum(cells).verdict is expected


@pytest.mark.parametrize(
    ("least", "expected"), [(0.995, REPRODUCED), (0.95, DIRECTION), (0.85, NOT)]
)
def test_well_behaved_clients_share_equally(least, expected):
    points = [({"worker_quantum": 2000}, 1.0, 1.0), ({"worker_quantum": 40000}, 1.0, least)]
    cells = swept("d2lpm", "d2lpm", "none", points)
    assert quanta.judge_all_well_behaved(cells).verdict is expected


@pytest.mark.parametrize(
    ("rates_and_jains", "expected"),
    [
        (((100, 0.95), (105, 0.90), (110, 0.80)), REPRODUCED),
        (((100, 0.95), (90, 0.90), (110, 0.80)), NOT),
        (((100, 0.80), (95, 0.90), (90, 0.95)), CONTRADICTED),
    ],
)
def test_a_quantum_trades_fairness_for_throughput(rates_and_jains, expected):
    points = [
        ({"quantum": 1000 * number}, float(rate), jain)
        for number, (rate, jain) in enumerate(rates_and_jains, start=1)
    ]
    assert quanta.judge_quantum(swept("dlpm", "dlpm", "s1", points)).verdict is expected


def of_clients(dlpm, lpm, vtc):
    return [
        cell(name, clients=number, service_rate_tok_s=rate)
        for name, pair in (("dlpm", dlpm), ("lpm", lpm), ("vtc", vtc))
        for number, rate in zip((5, 50), pair, strict=True)
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (of_clients((100.0, 95.0), (100.0, 100.0), (50.0, 51.0)), REPRODUCED),
        (of_clients((100.0, 95.0), (100.0, 100.0), (50.0, 60.0)), DIRECTION),
        (of_clients((100.0, 80.0), (100.0, 100.0), (50.0, 51.0)), NOT),
        (of_clients((100.0, 95.0), (100.0, 100.0), (110.0, 110.0)), CONTRADICTED),
    ],
)
def test_more_clients_cost_dlpm_little(cells, expected):
    assert scaling.judge_clients(cells).verdict is expected


def timings(at_200):
    """8 replicas with a queue of 200 cost ``at_200`` percent, everything else less."""
    points = [
        {"workers": workers, "waiting": waiting, "update_ms": 0.0, "synchronisation_ms": 0.0,
         "match_ms": cost, "dispatch_ms": 0.0, "decode_step_ms": 100.0}
        for workers, waiting, cost in ((1, 50, 1), (1, 200, 2), (8, 50, 10), (8, 200, at_200))
    ]  # fmt: skip
    return Timings("gpu/model/tp1/x", "a machine", 0, 5, points)


@pytest.mark.parametrize(("at_200", "expected"), [(40, REPRODUCED), (80, DIRECTION), (5, NOT)])
def test_a_central_scheduler_costs_more_with_replicas_and_queue(at_200, expected):
    found = scaling.judge_central(timings(at_200))
    assert found.verdict is expected
    assert found.ours.startswith(f"{at_200}% of a decode step at 8 replicas and 200 requests")


def judged(found):
    claim = Claim(99, "more is more", "2x", "[DLPM] §1", "fig4", lambda _: found, "because")
    return Judged(claim, found, "simulated on x; seed 0")


def test_a_cause_is_given_unless_it_is_reproduced():
    assert judged(Finding("3x", DIRECTION)).cause == "because"
    assert judged(Finding("2x", REPRODUCED)).cause == ""
    assert "queues were empty" in judged(Finding("2x", UNTESTABLE)).cause
    untestable = replace(judged(Finding("2x", UNTESTABLE)).claim, testable=False)
    assert Judged(untestable, Finding("2x", UNTESTABLE), "").cause == "because"


def test_other_measures_stand_beside_the_verdict_and_places_below():
    found = Finding("3x", REPRODUCED, {"makespan": NOT}, {"makespan": "reversed: here"})
    lines = claims_markdown([judged(found)]).splitlines()
    assert lines[2].endswith("| **reproduced** (makespan: not reproduced) |")
    assert "- 99, makespan: reversed: here" in lines


def test_the_table_as_files(tmp_path):
    some = [judged(Finding("3x", DIRECTION))]
    lines = claims_markdown(some).splitlines()
    assert lines[2] == "| 99 | more is more ([DLPM] §1) | 2x | 3x | **direction only**: because |"
    assert lines[-1] == "- fig4: simulated on x; seed 0"
    markdown, table = write(some, tmp_path / "results")
    assert markdown.read_text() == claims_markdown(some)
    with table.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["number"], row["ours"], row["verdict"]) == ("99", "3x", "direction only")


def test_the_table_leads_to_the_map_where_there_is_one(tmp_path):
    some = [judged(Finding("3x", DIRECTION))]
    assert "claims-map" not in write(some, tmp_path)[0].read_text()
    (tmp_path / "claims-map.md").write_text("a map")
    assert "[claims-map.md](claims-map.md)" in write(some, tmp_path)[0].read_text()
