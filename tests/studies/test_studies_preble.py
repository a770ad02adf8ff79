"""Test the Preble paper's figures and claims with hand-made latencies."""

import csv
from itertools import pairwise

import numpy as np
import pytest

from fairbench.metrics.records import Requests
from fairbench_studies.kit.claim import Verdict
from fairbench_studies.preble import draw
from fairbench_studies.preble.claims import (
    CLAIMS,
    judge_ablation,
    judge_baselines,
    judge_end_to_end,
    judge_speed,
    judge_window,
)
from fairbench_studies.preble.experiments import ABLATION, RATES, WARMUP_S, Key, experiments
from fairbench_studies.preble.speed import Speed
from fairbench_studies.preble.store import Latency, Results, latencies_of
from fairbench_studies.preble.table import judge_preble, preble_markdown, write_preble

SPEEDS = (Speed("tool-use", 300.0), Speed("video-qa", 3000.0))


def as_the_paper(key):
    """Return latencies for which every claim holds."""
    if key.figure == "fig3":
        level = 1 + RATES[key.workload].index(key.value)
        gain = 1.0 + 0.1 * level if key.workload == "programming" else 1.0 + level
        mean_s = level * (gain if key.system == "round-robin" else 1.0)
        return Latency(mean_s, 3 * mean_s, 0.9)
    if key.figure == "fig5":
        step = list(ABLATION).index(key.system)
        return Latency(20.0 - min(step, 3), 90.0 - step, 0.9)
    if key.figure == "baselines":
        uneven = {"programming": 3.0, "video-qa": 3.0}.get(key.workload, 1.1)
        return Latency({"preble": 1.0, "oracle": uneven, "memserve": 2.0}[key.system], 9.0, 0.9)
    return Latency(2.0, 5.0, 0.9)


def results(change=lambda key, one: one, speeds=SPEEDS):
    made = {key: change(key, as_the_paper(key)) for key in experiments()}
    return Results(made, speeds, "simulated on gpu/model/tp1/x", 1)


def scaled(factor, **where):
    """Scale means and P99 by a factor, where the key has these values."""

    def change(key, one):
        if all(getattr(key, name) == value for name, value in where.items()):
            return Latency(one.mean_s * factor, one.p99_s * factor, one.hit_rate)
        return one

    return change


def test_every_claim_holds_with_the_latencies_of_the_paper():
    judged = judge_preble(results())
    assert [one.claim.number for one in judged] == [30, 31, 32, 33, 34]
    assert {one.finding.verdict for one in judged} == {Verdict.REPRODUCED}
    assert not any(one.cause for one in judged)


class TestEndToEnd:
    def test_the_gain_is_largest_at_the_point_of_the_paper(self):
        found = judge_end_to_end(results())
        assert "mean 1.10x to 4.0x" in found.ours
        assert "least on programming" in found.ours

    def test_a_larger_gain_than_in_the_paper_reproduces_only_the_direction(self):
        # 4.0x at the highest rate of agents becomes 20x
        top = {"workload": "agent", "value": 0.09, "system": "round-robin", "figure": "fig3"}
        assert judge_end_to_end(results(scaled(5.0, **top))).verdict == Verdict.DIRECTION_ONLY

    def test_slower_anywhere_is_not_reproduced_and_slower_everywhere_is_contradicted(self):
        one = {"workload": "agent", "value": 0.03, "system": "preble", "figure": "fig3"}
        assert judge_end_to_end(results(scaled(9.0, **one))).verdict == Verdict.NOT_REPRODUCED
        everywhere = scaled(9.0, system="preble", figure="fig3")
        assert judge_end_to_end(results(everywhere)).verdict == Verdict.CONTRADICTED


class TestAblation:
    @pytest.mark.parametrize("worse", [1.1, 1.02])
    def test_a_harmful_step_is_not_reproduced_however_small_the_harm(self, worse):
        def change(key, one):
            if key.figure != "fig5" or key.system != "prefill/decode balancing":
                return one
            before = as_the_paper(key._replace(system="rebalancing and autoscaling"))
            return one._replace(p99_s=before.p99_s * worse)

        found = judge_ablation(results(change))
        assert found.verdict == Verdict.NOT_REPRODUCED
        assert "3 of 4 mechanisms help; no help: prefill/decode balancing" in found.ours

    def test_groups_may_increase_the_mean(self):
        def change(key, one):
            worse = key.figure == "fig5" and key.system == "priority groups"
            return one._replace(mean_s=one.mean_s * 1.1) if worse else one

        assert judge_ablation(results(change)).verdict == Verdict.REPRODUCED

    def test_a_fastest_round_robin_contradicts_the_paper(self):
        best = scaled(0.1, figure="fig5", system="round-robin")
        assert judge_ablation(results(best)).verdict == Verdict.CONTRADICTED


class TestBaselines:
    def test_an_oracle_that_is_faster_is_not_reproduced(self):
        fast = scaled(0.5, figure="baselines", system="oracle", workload="agent")
        assert judge_baselines(results(fast)).verdict == Verdict.NOT_REPRODUCED

    def test_an_oracle_that_is_equally_slow_everywhere_reproduces_only_the_direction(self):
        def change(key, one):
            oracle = key.figure == "baselines" and key.system == "oracle"
            return one._replace(mean_s=2.0) if oracle else one

        assert judge_baselines(results(change)).verdict == Verdict.DIRECTION_ONLY

    def test_preble_as_the_slowest_contradicts_the_paper(self):
        slow = scaled(10.0, figure="baselines", system="preble")
        assert judge_baselines(results(slow)).verdict == Verdict.CONTRADICTED


@pytest.mark.parametrize(
    ("factor", "found"), [(1.09, Verdict.REPRODUCED), (0.89, Verdict.NOT_REPRODUCED)]
)
def test_the_window_may_change_the_mean_by_a_tenth(factor, found):
    change = scaled(factor, figure="window", value=60.0, workload="video-qa")
    assert judge_window(results(change)).verdict == found


@pytest.mark.parametrize(
    ("tools", "videos", "found"),
    [
        (300.0, 3000.0, Verdict.REPRODUCED),
        (4000.0, 3000.0, Verdict.DIRECTION_ONLY),
        (300.0, 2000.0, Verdict.NOT_REPRODUCED),
        (200.0, 3000.0, Verdict.NOT_REPRODUCED),
    ],
)
def test_decisions_per_second_are_measured(tools, videos, found):
    speeds = (Speed("tool-use", tools), Speed("video-qa", videos))
    assert judge_speed(results(speeds=speeds)).verdict == found


def test_the_table_gives_reasons_where_a_claim_fails(tmp_path):
    made = results(scaled(9.0, figure="window", value=60.0))
    judged = judge_preble(made)
    text = preble_markdown(judged, made)
    (row,) = [line for line in text.splitlines() if line.startswith("| 33 |")]
    assert "**not reproduced**: questions about a video arrive for about a minute" in row
    assert "seed 0, simulated on gpu/model/tp1/x" in text
    markdown, table = write_preble(judged, made, tmp_path / "new")
    assert markdown.read_text() == text
    with table.open() as file:
        assert [row["number"] for row in csv.DictReader(file)] == ["30", "31", "32", "33", "34"]


def test_a_picture_has_its_numbers_beside_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    # each request takes a second
    monkeypatch.setattr(draw, "FIGURES", {"fig5": draw.FIGURES["fig5"]})
    files = draw.plot(results(), tmp_path, ["svg"])
    assert [file.name for file in files] == ["preble-fig5.svg", "preble-fig5.csv"]
    with (tmp_path / "preble-fig5.csv").open() as file:
        assert [row["system"] for row in csv.DictReader(file)] == list(ABLATION)


def test_latency_is_of_requests_after_warm_up_and_infinite_if_one_never_ended():
    columns = {name: np.zeros(4) for name in Requests.__dataclass_fields__}
    columns |= {
        "arrival_s": WARMUP_S + np.array([-1.0, 0.0, 10.0, 20.0]),
        "finish_s": WARMUP_S + np.array([99.0, 1.0, 13.0, 25.0]),
        "status": np.zeros(4, dtype=int),
    }
    assert latencies_of(Requests(**columns)) == (3.0, 5.0)
    columns["status"] = np.array([0, 0, 0, 2])
    assert latencies_of(Requests(**columns))[0] == float("inf")


def test_experiments_can_run_and_are_distinct():
    made = experiments()
    assert {key.figure for key in made} == {
        "fig3", "fig4", "fig5", "baselines", "window", "scale",
    }  # fmt: skip
    spec = made[Key("scale", "loogle", "preble", 8)].spec(3)
    assert (spec.scheduler, spec.dp, spec.scenario, spec.seed) == ("preble", 8, "none", 3)
    assert spec.request_rate == pytest.approx(8 * RATES["loogle"][-1])
    steps = [made[Key("fig5", "tool-use", step, RATES["tool-use"][-1])] for step in ABLATION]
    assert all(one != other for one, other in pairwise(steps))
    assert all(claim.figure == "preble" for claim in CLAIMS)
