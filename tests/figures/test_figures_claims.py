"""Verdicts on the paper's claims, by numbers made by hand."""

import csv

import pytest
from figure_helpers import cell

from fairbench.figures.claims import fairness, quanta, scaling, throughput
from fairbench.figures.claims.claim import Claim, Finding, Verdict, verdict
from fairbench.figures.claims.places import Place, largest, ratios, smallest
from fairbench.figures.claims.table import CLAIMS, Judged, claims_markdown, write
from fairbench.figures.fig4 import Timings

REPRODUCED, DIRECTION, NOT, CONTRADICTED = Verdict


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


def test_ratios_leave_out_what_is_not_known():
    cells = [
        cell("vtc", victim_p99_s=30.0, at_least=["victim_p99_s"]),
        cell("d2lpm", victim_p99_s=10.0),
        cell("vtc", dp=2, victim_p99_s=30.0),
        cell("d2lpm", dp=2, victim_p99_s=10.0, at_least=["victim_p99_s"]),
        cell("vtc", dp=4, victim_p99_s=None),
        cell("d2lpm", dp=4, victim_p99_s=10.0),
        cell("vtc", dp=8, victim_p99_s=5.0),
        cell("d2lpm", dp=8, victim_p99_s=10.0),
        cell("vtc", dp=16, victim_p99_s=5.0),
    ]
    found = ratios(cells, "victim_p99_s", "vtc", "d2lpm")
    assert [(ratio.place.dp, ratio.value, ratio.at_least) for ratio in found] == [
        (1, 3.0, True),
        (8, 0.5, False),
    ]
    assert str(largest(found)) == ">3.00x (tot s1 at 1)"
    assert smallest(found).place == Place("tot", "s1", 8)


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
        (rates(dp1=(1.0, 1.0), dp8=(2.9, 1.0)), REPRODUCED),
        (rates(dp1=(1.0, 1.0), dp8=(5.0, 1.0)), DIRECTION),
        (rates(dp1=(0.9, 1.0), dp8=(2.9, 1.0)), NOT),
        (rates(dp1=(0.9, 1.0), dp8=(1.0, 1.0)), CONTRADICTED),
    ],
)
def test_a_gain_needs_its_size_and_never_to_lose(cells, expected):
    band = throughput.Band(1.8, 4.0, 0.98)
    assert throughput.judge_gain(cells, over="vtc", band=band).verdict is expected


@pytest.mark.parametrize(
    ("at_8", "hit_at_8", "expected"),
    [(80.0, 0.5, REPRODUCED), (80.0, 0.9, DIRECTION), (120.0, 0.5, CONTRADICTED)],
)
def test_lpm_must_get_worse_from_4_to_8(at_8, hit_at_8, expected):
    place = {"workload": "tot", "scenario": "s2"}
    cells = [
        cell("lpm", dp=4, service_rate_tok_s=100.0, cache_hit_rate=0.95, **place),
        cell("lpm", dp=8, service_rate_tok_s=at_8, cache_hit_rate=hit_at_8, **place),
    ]
    found = throughput.judge_scaling(cells)
    assert found.verdict is expected
    assert found.ours == f"100 to {at_8:.0f} tok/s; hit rate 95% to {hit_at_8:.0%}"


@pytest.mark.parametrize(
    ("there", "elsewhere", "expected"),
    [(0.8, 1.0, REPRODUCED), (1.1, 1.0, NOT), (0.8, 0.9, CONTRADICTED)],
)
def test_preble_wins_in_one_place_only(there, elsewhere, expected):
    cells = []
    for place, ratio in ((("long-qa", "s2", 8), there), (("tot", "s1", 4), elsewhere)):
        where = dict(zip(("workload", "scenario", "dp"), place, strict=True))
        cells += [cell("preble", service_rate_tok_s=100.0, **where)]
        cells += [cell("d2lpm", service_rate_tok_s=100.0 * ratio, **where)]
    assert throughput.judge_preble(cells).verdict is expected


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


def test_the_table_as_files(tmp_path):
    some = [judged(Finding("3x", DIRECTION))]
    assert claims_markdown(some).splitlines()[2:] == [
        "| 99 | more is more ([DLPM] §1) | 2x | 3x | **direction only**: because |",
        "",
        "- fig4: simulated on x; seed 0",
    ]
    markdown, table = write(some, tmp_path / "results")
    assert markdown.read_text() == claims_markdown(some)
    with table.open() as file:
        (row,) = csv.DictReader(file)
    assert (row["number"], row["ours"], row["verdict"]) == ("99", "3x", "direction only")
