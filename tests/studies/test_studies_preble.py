"""Test the Preble paper's figures and claims with hand-made latencies."""

import csv
import random
from itertools import pairwise

import numpy as np
import pytest

from fairbench.metrics.records import Requests
from fairbench.workloads.programs import make_params, program_class
from fairbench_studies.kit.claims_page import write_page
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.preble import draw
from fairbench_studies.preble.claims import (
    CLAIMS,
    judge_ablation,
    judge_baselines,
    judge_end_to_end,
    judge_mix,
    judge_scale,
    judge_speed,
    judge_window,
)
from fairbench_studies.preble.command import PREBLE
from fairbench_studies.preble.experiments import ABLATION, RATES, WARMUP_S, Key, experiments
from fairbench_studies.preble.store import Latency, Results, latencies_of, token_times_of
from tests.workloads.workload_fakes import calls_of

SPEEDS = {"tool-use": [300.0], "video-qa": [3000.0]}
HOLDS, REVERSED, UNCLEAR, _, OFF, _ = Outcome


def latency(mean_s, p99_s):
    """Return latencies with hit rate 0.9. TTFT and TPOT are a half and a hundredth of the mean."""
    return Latency(mean_s, p99_s, 0.9, mean_s / 2, mean_s / 100)


def as_the_paper(key):
    """Return latencies for which every claim holds."""
    if key.figure == "fig3":
        level = RATES[key.workload].index(key.value)
        programming = key.workload == "programming"
        mean = 1.6 + 0.1 * level if programming else 2.0 + level
        tail = 3.0 + 0.5 * level if programming else 2.0 + level
        gains = (mean, tail) if key.system == "round-robin" else (1.0, 1.0)
        return latency(gains[0], 3 * gains[1])
    if key.figure == "fig5":
        step = list(ABLATION).index(key.system)
        return latency(20.0 - min(step, 3), 90.0 - 9 * step)
    if key.figure == "baselines":
        uneven = {"programming": 3.0, "video-qa": 3.0}.get(key.workload, 1.1)
        return latency({"preble": 1.0, "oracle": uneven, "memserve": 2.0}[key.system], 9.0)
    slower = key.figure in ("fig4", "scale") and key.system == "round-robin"
    return latency(4.0, 9.0) if slower else latency(2.0, 5.0)


def results(change=lambda key, one: one, speeds=SPEEDS, noise=(1.0,)):
    """Return results of a seed per factor in ``noise``, which changes every latency alike."""
    made = {
        key: [times(one, by) for by in noise]
        for key in experiments()
        for one in [change(key, as_the_paper(key))]
    }
    return Results(made, speeds, "simulated on gpu/model/tp1/x")


def times(one, factor):
    """Return latencies that are longer by a factor."""
    longer = {name: getattr(one, name) * factor for name in one._fields if name != "hit_rate"}
    return one._replace(**longer)


def scaled(factor, **where):
    """Scale all latencies by a factor, where the key has these values."""

    def change(key, one):
        if all(getattr(key, name) == value for name, value in where.items()):
            return times(one, factor)
        return one

    return change


def failed(parts):
    """Return the verdict on each part that does not hold."""
    return {part.text: part.outcome for part in parts if part.outcome is not HOLDS}


@pytest.mark.parametrize("noise", [(1.0,), (1.0, 1.5, 0.7)])
def test_every_part_holds_with_the_latencies_of_the_paper(noise):
    judged = PREBLE.judge(results(noise=noise))
    assert [one.claim.number for one in judged] == [30, 31, 32, 33, 34, 57, 58]
    assert not failed(part for one in judged for part in one.parts["here"])


def test_seeds_that_disagree_decide_nothing():
    """Only the round-robin latencies of the ablation differ between seeds."""
    made = results(noise=(1.0, 1.0, 1.0))
    key = Key("fig5", "tool-use", "round-robin", RATES["tool-use"][-1])
    differ = [latency(mean_s, mean_s) for mean_s in (10.0, 30.0, 200.0)]
    parts = judge_ablation(made._replace(runs={**made.runs, key: differ}))
    assert failed(parts) == {f"E2 alone: the {name} falls": UNCLEAR for name in ("mean", "P99")}


def test_a_comparison_uses_the_seeds_that_all_its_runs_have():
    made = results(noise=(1.0, 1.5, 0.7))
    runs = {
        key: of if key.figure == "fig5" or key.value == 60.0 else of[:1]
        for key, of in made.runs.items()
    }
    fewer = made._replace(runs=runs)
    assert not failed(part for one in PREBLE.judge(fewer) for part in one.parts["here"])
    assert fewer.origin().endswith(
        "; seed 0 (fig3, fig4, baselines, window, scale); seeds 0 to 2 (fig5)"
    )


class TestEndToEnd:
    def test_the_parts_show_the_gains(self):
        shown = {part.text: part.ours for part in judge_end_to_end(results())}
        assert shown["mean: gains from 1.5x to 14.5x"] == "1.60x to 4.0x"
        lower = "in 15 of 15, from 1.60x (programming at 0.056) to 4.00x (loogle at 0.024)"
        assert shown["Preble's mean latency is lower"] == lower

    def test_a_larger_gain_than_in_the_paper_is_off(self):
        # 4.0x at the highest rate of agents becomes 20x
        top = {"workload": "agent", "value": 0.09, "system": "round-robin", "figure": "fig3"}
        parts = judge_end_to_end(results(scaled(5.0, **top)))
        assert failed(parts) == {
            "mean: gains from 1.5x to 14.5x": OFF, "P99: gains from 2x to 10x": OFF,
        }  # fmt: skip

    def test_slower_at_a_fifth_of_the_loads_still_holds_and_slower_everywhere_is_reversed(self):
        lower = [f"Preble's {name} latency is lower" for name in ("mean", "P99")]
        one = scaled(0.1, system="round-robin", figure="fig3", workload="agent")
        assert not set(lower) & set(failed(judge_end_to_end(results(one))))
        everywhere = scaled(0.1, system="round-robin", figure="fig3")
        parts = failed(judge_end_to_end(results(everywhere)))
        assert [parts[text] for text in lower] == [REVERSED, REVERSED]

    def test_a_smaller_gain_than_on_programming_is_reversed(self):
        small = scaled(0.4, system="round-robin", figure="fig3", workload="loogle")
        parts = failed(judge_end_to_end(results(small)))
        assert parts["the largest gain is larger on loogle than on programming"] is REVERSED


class TestAblation:
    @pytest.mark.parametrize("worse", [1.1, 1.02])
    def test_a_harmful_step_is_reversed_however_small_the_harm(self, worse):
        def change(key, one):
            if key.figure != "fig5" or key.system != "prefill/decode balancing":
                return one
            before = as_the_paper(key._replace(system="rebalancing and autoscaling"))
            return one._replace(p99_s=before.p99_s * worse)

        parts = judge_ablation(results(change))
        assert failed(parts) == {"prefill/decode balancing: the P99 falls": REVERSED}
        assert len(parts) == 9

    @pytest.mark.parametrize(("factor", "expected"), [(1.1, set()), (0.9, {REVERSED})])
    def test_groups_may_increase_the_mean_but_not_lower_it(self, factor, expected):
        def change(key, one):
            groups = key.figure == "fig5" and key.system == "priority groups"
            return one._replace(mean_s=one.mean_s * factor) if groups else one

        assert set(failed(judge_ablation(results(change))).values()) == expected

    def test_rebalancing_must_help_mostly_the_p99(self):
        def change(key, one):
            late = key.figure == "fig5" and list(ABLATION).index(key.system) >= 2
            return one._replace(mean_s=one.mean_s / 2) if late else one

        assert failed(judge_ablation(results(change))) == {
            "rebalancing and autoscaling: the P99 falls more than the mean": REVERSED
        }

    def test_a_fastest_round_robin_reverses_the_effect_of_e2(self):
        best = scaled(0.1, figure="fig5", system="round-robin")
        parts = judge_ablation(results(best))
        assert failed(parts) == {
            f"E2 alone: the {name} falls": REVERSED for name in ("mean", "P99")
        }


class TestBaselines:
    def test_an_oracle_that_is_faster_is_reversed_there(self):
        fast = scaled(0.5, figure="baselines", system="oracle", workload="agent")
        (part,) = failed(judge_baselines(results(fast))).items()
        assert part == ("the oracle is at best on par on agent (0.98x or more)", REVERSED)

    def test_an_oracle_that_is_equally_slow_everywhere_does_not_depend_on_the_workload(self):
        def change(key, one):
            oracle = key.figure == "baselines" and key.system == "oracle"
            return one._replace(mean_s=2.0) if oracle else one

        (outcome,) = failed(judge_baselines(results(change))).values()
        assert outcome is UNCLEAR

    def test_preble_as_the_slowest_reverses_every_comparison_with_it(self):
        slow = scaled(10.0, figure="baselines", system="preble")
        parts = failed(judge_baselines(results(slow)))
        assert [*parts.values()] == [REVERSED] * 7


class TestMix:
    def test_every_measure_is_compared_at_both_rates(self):
        parts = judge_mix(results())
        called = ("mean latency", "P99 latency", "mean TTFT", "mean TPOT")
        assert [part.text for part in parts] == [f"Preble's {name} is lower" for name in called]
        assert parts[0].ours == "in 2 of 2, from 2.00x (at 2.6) to 2.00x (at 4)"

    def test_a_higher_tpot_alone_is_reversed(self):
        def change(key, one):
            mixed = key.figure == "fig4" and key.system == "preble"
            return one._replace(tpot_s=one.tpot_s * 3) if mixed else one

        assert failed(judge_mix(results(change))) == {"Preble's mean TPOT is lower": REVERSED}

    def test_a_gain_at_one_rate_and_a_loss_at_the_other_are_inconclusive(self):
        loss = scaled(0.1, figure="fig4", system="round-robin", value=2.6)
        assert [*failed(judge_mix(results(loss))).values()] == [UNCLEAR] * 4


class TestScale:
    @pytest.mark.parametrize(("factor", "outcome"), [(1.09, None), (1.11, OFF), (0.89, OFF)])
    def test_latencies_are_similar_up_to_a_tenth(self, factor, outcome):
        change = scaled(factor, figure="scale", system="preble", value=8)
        text = "Preble's mean latency stays similar from 4 to 8 GPUs (within 10%)"
        assert failed(judge_scale(results(change))).get(text) is outcome

    def test_the_gain_may_change_by_a_quarter_from_2_to_4_gpus(self):
        change = scaled(1.26, figure="scale", system="round-robin", value=4)
        text = "the gain over round-robin stays similar from 2 to 4 GPUs (within 25%)"
        parts = judge_scale(results(change))
        assert failed(parts) == {text: OFF}
        assert parts[-1].ours == "1.26x (2.0x and 2.5x)"

    def test_a_mean_above_20_s_on_the_most_gpus_is_not_sustained(self):
        change = scaled(10.1, figure="scale", value=8)  # from 2 s, for both systems
        assert failed(judge_scale(results(change))) == {
            "Preble's mean latency stays similar from 4 to 8 GPUs (within 10%)": OFF,
            "Preble's mean is at most 20 s at the same rate per GPU on 2, 4, 8 GPUs": REVERSED,
        }

    def test_a_faster_round_robin_is_reversed(self):
        fast = scaled(0.1, figure="scale", system="round-robin")
        parts = failed(judge_scale(results(fast)))
        assert parts == {"Preble's mean latency is below round-robin's": REVERSED}


@pytest.mark.parametrize(("factor", "found"), [(1.09, [HOLDS, HOLDS]), (0.89, [HOLDS, OFF])])
def test_the_window_may_change_the_mean_by_a_tenth(factor, found):
    change = scaled(factor, figure="window", value=60.0, workload="video-qa")
    assert [part.outcome for part in judge_window(results(change))] == found


@pytest.mark.parametrize(
    ("tools", "videos", "found"),
    [
        ([300.0], [3000.0], [HOLDS, HOLDS, HOLDS]),
        ([4000.0], [3000.0], [HOLDS, HOLDS, REVERSED]),
        ([3000.0, 3100.0], [3100.0, 3000.0], [HOLDS, HOLDS, UNCLEAR]),
        ([300.0], [2000.0], [HOLDS, OFF, HOLDS]),
        ([200.0], [3000.0], [OFF, HOLDS, HOLDS]),
    ],
)
def test_decisions_per_second_are_measured(tools, videos, found):
    speeds = {"tool-use": tools, "video-qa": videos}
    assert [part.outcome for part in judge_speed(results(speeds=speeds))] == found


def test_the_page_gives_reasons_where_a_part_fails(tmp_path):
    made = results(scaled(9.0, figure="window", value=60.0))
    judged = PREBLE.judge(made)
    text = PREBLE.page(judged, made)
    (row,) = [line for line in text.splitlines() if line.startswith("| 33 |")]
    assert row.endswith("| 0 of 2 parts hold, 2 off |")
    (reason,) = [line for line in text.splitlines() if line.startswith("Reason")]
    assert "questions about a video arrive for about a minute" in reason
    figures = "fig3, fig4, fig5, baselines, window, scale"
    assert text.endswith(f"\n- simulated on gpu/model/tp1/x; seed 0 ({figures})\n")
    markdown, table = write_page(judged, text, tmp_path / "new", "preble-claims")
    assert markdown.read_text() == text
    with table.open() as file:
        assert {row["number"] for row in csv.DictReader(file)} == {
            "30",
            "31",
            "32",
            "33",
            "34",
            "57",
            "58",
        }


def test_a_picture_has_its_numbers_and_their_intervals_beside_it(tmp_path, monkeypatch):
    """Two seeds that differ by 1% have a mean of 1.005.

    By Student's t with one degree of freedom, half of the interval is 12.706 x 0.005 = 0.0635.
    """
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(draw, "FIGURES", {"fig5": draw.FIGURES["fig5"]})
    files = draw.plot(results(noise=(1.0, 1.01)), tmp_path, ["svg"])
    assert [file.name for file in files] == ["preble-fig5.svg", "preble-fig5.csv"]
    with (tmp_path / "preble-fig5.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["system"] for row in written] == list(ABLATION)
    first = {key: float(value) for key, value in written[0].items() if key.startswith("mean_s")}
    assert first["mean_s"] == pytest.approx(20.0 * 1.005)
    assert first["mean_s_low"] == pytest.approx(20.0 * (1.005 - 0.06353), rel=1e-4)
    assert first["mean_s_high"] == pytest.approx(20.0 * (1.005 + 0.06353), rel=1e-4)
    assert {row["hit_rate_low"] for row in written} == {"0.9"}


def test_latency_is_of_requests_after_warm_up_and_infinite_if_one_never_ended():
    columns = {name: np.zeros(4) for name in Requests.__dataclass_fields__}
    columns |= {
        "arrival_s": WARMUP_S + np.array([-1.0, 0.0, 10.0, 20.0]),
        "finish_s": WARMUP_S + np.array([99.0, 1.0, 13.0, 25.0]),
        "status": np.zeros(4, dtype=int),
    }
    assert latencies_of(Requests(**columns)) == (3.0, 5.0)
    assert latencies_of(Requests(**columns), WARMUP_S + 10.0) == (4.0, 5.0)
    columns["status"] = np.array([0, 0, 0, 2])
    assert latencies_of(Requests(**columns))[0] == float("inf")


def test_token_times_are_of_requests_after_warm_up_and_infinite_if_one_never_ended():
    """After the warm-up, first tokens come after 1 and 2 s, and the further ones in 3 s each.

    The second request has a single output token. The first has three: 6 s for two of them.
    """
    columns = {name: np.zeros(3) for name in Requests.__dataclass_fields__}
    columns |= {
        "arrival_s": WARMUP_S + np.array([-1.0, 0.0, 10.0]),
        "first_token_s": WARMUP_S + np.array([50.0, 1.0, 12.0]),
        "finish_s": WARMUP_S + np.array([99.0, 7.0, 12.0]),
        "output_tokens": np.array([9, 3, 1]),
        "status": np.zeros(3, dtype=int),
    }
    assert token_times_of(Requests(**columns)) == (1.5, 3.0)
    columns["status"] = np.array([2, 0, 0])
    assert token_times_of(Requests(**columns)) == (1.5, 3.0)
    columns["status"] = np.array([0, 0, 2])
    assert token_times_of(Requests(**columns)) == (float("inf"), float("inf"))


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


@pytest.mark.parametrize("workload", RATES)
def test_a_match_of_what_every_prompt_shares_is_no_match_for_memserve(workload):
    rate = RATES[workload][1]
    spec = experiments()[Key("baselines", workload, "memserve", rate)].spec(0)
    least = spec.settings["memserve.min_match_tokens"]
    first, second = (_first_prompt(spec.workload, number) for number in (1, 2))
    assert (first[0], first[0].length + 1) == (second[0], least)
    assert first[1].key != second[1].key


def _first_prompt(workload, number):
    params = make_params(workload.program, workload.params, workload.name)
    kind = program_class(workload.program)
    program = kind.build(params, random.Random(number), number, "a", None)
    return calls_of(program)[0].prompt
