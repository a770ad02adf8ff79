"""Test stalls found in recorded gaps: by hand, and in simulated runs whose steps are known."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench.metrics.arrays import spread
from fairbench.metrics.recorded_gaps import (
    MOST_CAUSES,
    causes_of,
    prompts_of,
    recorded_limit_s,
    recorded_stalls,
)
from fairbench.metrics.records import LoneStep, Requests, Service, TokenGaps
from fairbench.metrics.service import step_times
from fairbench.metrics.stalls import MOST_CLIENTS, stalls_of
from fairbench.results.run_facts import costs_of
from fairbench.sim.run import simulate
from tests.invariants import plain
from tests.metrics.metrics_helpers import facts, requests
from tests.sim.sim_helpers import small_spec


def answer(first_s, finish_s, **changes):
    tokens = {"input_tokens": 10, "extend_tokens": 10, "output_tokens": 9}
    arrival = {"arrival_s": first_s - 0.1, "admitted_s": first_s - 0.1}
    return {"first_token_s": first_s, "finish_s": finish_s, **tokens, **arrival} | changes


def prompt(arrival_s, first_s, tokens, **changes):
    times = {"arrival_s": arrival_s, "admitted_s": arrival_s}
    return answer(first_s, first_s, extend_tokens=tokens, input_tokens=tokens, **times) | changes


def gaps_of(asked, *gaps_s):
    known = [np.array(one, float) for one in gaps_s] + [None] * (len(asked) - len(gaps_s))
    return TokenGaps.after(asked.first_token_s, known, ())


def test_a_gap_beside_two_prompts_by_hand():
    asked = requests(
        answer(1.0, 6.0),
        prompt(3.0, 6.0, 300, client=1),
        prompt(3.0, 6.0, 100, client=0),
        prompt(3.0, 6.0, 9000, client=1, worker=1),  # on another replica
    )
    gaps = gaps_of(asked, [1.0, 1.0, 4.0, 1.0])
    found = recorded_stalls(asked, gaps, facts())
    # 3 of the 4 s exceed a usual gap beside prompts; they are divided by 100 and 300 tokens
    assert found.matrix_s.tolist() == [[0.75, 2.25], [0.0, 0.0]]
    assert (found.by_others_s.tolist(), found.by_own_s.tolist()) == ([2.25, 0.0], [0.75, 0.0])
    assert found.gaps.largest_s[0] == 4.0
    # one token in 4 s beside the other client's prompt, instead of one per second
    assert found.gaps.pace_ratios()[0] == 0.25
    assert found.per_minute()[0] == pytest.approx(27.0)  # of an answer of 5 s


def test_a_prompt_holds_up_an_answer_for_no_longer_than_its_computation():
    asked = requests(answer(1.0, 60.0), prompt(5.0, 6.0, 300, client=1))
    gaps = gaps_of(asked, [1.0, 48.0])
    assert recorded_stalls(asked, gaps, facts()).by_others_s.tolist() == [1.0, 0.0]
    (cause,) = causes_of(asked, gaps, facts(lone=LoneStep(0.1, 0.0)))[:1]
    assert (cause.prompt, cause.gap_s, cause.start_s) == (-1, 48.0, 2.0)


def test_without_admissions_a_prompt_counts_from_the_time_of_the_fastest_prompts():
    unknown = {"admitted_s": 10.0}
    asked = requests(
        prompt(0.0, 1.0, 1000, admitted_s=1.0), prompt(9.0, 10.0, 1000, **unknown),
        prompt(0.0, 10.0, 1000, **unknown), prompt(8.9, 10.0, 10, **unknown),
    )  # fmt: skip
    assert prompts_of(asked).begin_s.tolist() == pytest.approx([0.0, 9.0, 8.0, 9.98])


@pytest.mark.parametrize(
    ("gaps_s", "limit_s"),
    [([0.02] * 20, 0.5), ([0.3] * 20, 1.2), ([0.0, 0.0, 0.2, 9.0], 0.8), ([1e-5] * 9, 0.5)],
)
def test_the_shortest_gaps_of_a_log_set_the_limit_of_stalls(gaps_s, limit_s):
    gaps = gaps_of(requests(answer(1.0, 9.0)), gaps_s)
    assert recorded_limit_s(gaps, facts()) == pytest.approx(limit_s, rel=0.3)
    assert recorded_limit_s(gaps, facts(lone=LoneStep(0.5, 0.0))) == 2.0


def test_causes_are_named_once_and_the_longest_stall_comes_first():
    asked = requests(
        answer(1.0, 40.0), answer(1.0, 40.0, client=2),
        prompt(3.0, 6.0, 300, client=1), prompt(10.0, 19.0, 800, client=1),
        prompt(12.0, 13.0, 50, client=2),
    )  # fmt: skip
    steps = [0.1] * 19
    gaps = gaps_of(asked, [*steps, 3.2, *steps, 13.0], [*steps, 3.0, *steps, 13.1])
    found = causes_of(asked, gaps, facts(3))
    assert [(one.prompt, one.stalls, one.clients, one.request) for one in found] == [
        (3, 2, 2, 1),
        (2, 2, 2, 0),
    ]
    assert [one.gap_s for one in found] == [13.1, 3.2]


def test_an_answers_own_prompt_does_not_stall_the_answer():
    asked = requests(prompt(0.0, 5.0, 500, finish_s=9.0))
    found = recorded_stalls(asked, gaps_of(asked, [0.1, 0.1, 3.0]), facts())
    assert found.matrix_s.sum() == 0
    assert causes_of(asked, gaps_of(asked, [0.1, 0.1, 3.0]), facts())[0].prompt == -1


def test_requests_without_a_first_token_have_no_gaps():
    asked = requests(answer(1.0, 3.0), {"client": 1})
    gaps = gaps_of(asked, [1.0, 1.0], [5.0])
    assert (gaps.request.tolist(), gaps.start_s.tolist()) == ([0, 0], [1.0, 2.0])


def test_a_crowd_has_the_sums_of_the_matrix():
    rng = np.random.default_rng(5)
    many = MOST_CLIENTS + 1
    rows = [answer(at, at + 30, client=int(rng.integers(many))) for at in rng.uniform(0, 50, 60)]
    rows += [prompt(at, at + 2, 900, client=int(rng.integers(9))) for at in rng.uniform(0, 80, 40)]
    asked = requests(*rows)
    gaps = gaps_of(asked, *(rng.exponential(0.5, 50) for _ in range(60)))
    crowd, few = (recorded_stalls(asked, gaps, facts(n)) for n in (many, many))
    few = recorded_stalls(replace(asked, client=asked.client % 20), gaps, facts(20))
    assert (crowd.matrix_s, few.matrix_s.shape) == (None, (20, 20))
    total = crowd.by_others_s.sum() + crowd.by_own_s.sum()
    assert few.matrix_s.sum() == pytest.approx(total, rel=0.05)  # usual gaps differ by client
    assert causes_of(asked, gaps, facts(many))[MOST_CAUSES:] == []


@pytest.mark.parametrize(("engine", "within"), [("sglang", 0.02), ("vllm", 0.05)])
def test_the_seconds_agree_with_those_of_the_steps_of_a_simulated_run(engine, within):
    result = simulate(small_spec("lpm", "judge", flags={"num_programs": 3, "engine": engine}))
    asked = Requests.from_columns(plain(result.requests))
    rows = Service.from_columns(plain(result.service))
    count = len(result.summary["clients"])
    costs = costs_of(result.summary["timing_profile"])
    known = facts(count, costs=costs, horizon_s=result.summary["duration"])
    true, gaps = stalls_of(asked, rows, known), gaps_in(asked, rows)
    found = recorded_stalls(asked, gaps, known)
    total = true.matrix_s.sum()
    assert found.matrix_s / total == pytest.approx(true.matrix_s / total, abs=within)
    pace, true_pace = (np.array(one.gaps.pace_ratios()) for one in (found, true))
    assert pace == pytest.approx(true_pace, abs=0.01, nan_ok=True)
    assert np.nanmax(pace) < 0.5
    # without admission times, the seconds are an estimate
    blind = replace(asked, admitted_s=asked.first_token_s)
    rough = recorded_stalls(blind, gaps, known)
    assert rough.matrix_s / total == pytest.approx(true.matrix_s / total, abs=0.1)


def gaps_in(asked, rows):
    """Return the gaps between the tokens of a simulated run, one answer at a time."""
    decoding = np.flatnonzero(rows.context_tokens > 0)
    place, number = spread(np.ones(len(decoding), dtype=np.int64), rows.steps[decoding])
    row = decoding[place]
    ends_s = step_times(rows, row, number)
    found = []
    for one in range(len(asked)):
        first_s, last_s = asked.first_token_s[one] + 1e-9, asked.finish_s[one] + 1e-9
        here = (rows.worker[row] == asked.worker[one]) & (ends_s > first_s) & (ends_s <= last_s)
        found.append(np.diff([asked.first_token_s[one], *np.unique(ends_s[here])]))
    return TokenGaps.after(asked.first_token_s, found, ())
