"""Test stalls: a worked example, a mixed step, and brute force over runs of every engine."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench.metrics.records import LoneStep, Requests, Service
from fairbench.metrics.stalls import Gaps, stall_limit_s, stalls_of
from fairbench.results.run_facts import costs_of
from fairbench.sim.run import simulate
from tests.invariants import plain
from tests.metrics.metrics_helpers import facts, log, requests
from tests.sim.sim_helpers import small_spec


class Costs:
    """Costs: a decode step takes 0.1 s for each sequence."""

    def decode_step_s(self, requests, context_tokens):
        return 0.1 * requests


def stalls(asked, steps, **changes):
    rows = log(*steps)
    known = replace(rows, gpu_s=rows.end_s - rows.start_s)
    return stalls_of(requests(*asked), known, facts(costs=Costs(), **changes))


def test_a_prompt_between_two_tokens_by_hand():
    long = {"first_token_s": 1.0, "finish_s": 6.0, "output_tokens": 21}
    late = {"client": 1, "first_token_s": 5.0, "finish_s": 6.0, "output_tokens": 11}
    short = {"first_token_s": 5.0, "finish_s": 5.0, "output_tokens": 1}
    ten = {"steps": 10, "context_tokens": 50, "output_tokens": 10}
    found = stalls([long, late, short], [
        {"end_s": 1.0, "extend_tokens": 100, "output_tokens": 1},
        {"start_s": 1.0, "end_s": 2.0, **ten},
        {"start_s": 2.0, "end_s": 5.0, "extend_tokens": 100, "output_tokens": 1},
        {"start_s": 2.0, "end_s": 5.0, "client": 1, "extend_tokens": 300, "output_tokens": 1},
        {"start_s": 5.0, "end_s": 6.0, **ten}, {"start_s": 5.0, "end_s": 6.0, "client": 1, **ten},
    ])  # fmt: skip
    # three quarters of the 3 s are for the prompt of client 1
    assert found.matrix_s.tolist() == [[0.75, 2.25], [0.0, 0.0]]
    assert found.by_others_s.tolist() == [2.25, 0.0]
    assert found.by_own_s.tolist() == [0.75, 0.0]
    assert found.per_minute() == [27.0, 0.0]  # of answers of 5 s and 1 s
    gaps = found.gaps
    assert gaps.largest_s[0] == pytest.approx(3.1)  # from 2 s to the first step after the prompts
    assert gaps.above.tolist() == [1, 0]
    assert gaps.percentile_s(95) == pytest.approx([0.1, 0.1], rel=0.01)
    assert gaps.percentile_s(99) == pytest.approx([3.1, 0.1], rel=0.01)
    assert gaps.tokens() == pytest.approx([20, 10])


def test_the_first_step_of_an_unchanged_batch_is_the_shortest():
    found = stalls(
        [{"first_token_s": 1.0, "finish_s": 5.6, "output_tokens": 5}],
        [
            {"extend_tokens": 100, "output_tokens": 1},
            {"start_s": 1.0, "end_s": 5.6, "steps": 4, "step_growth_s": 0.1}
            | {"context_tokens": 50, "output_tokens": 4},
        ],
    )
    # The steps take 1.0, 1.1, 1.2 and 1.3 s. The last three count with their mean.
    assert found.gaps.percentile_s(25)[0] == pytest.approx(1.0, rel=0.01)
    assert found.gaps.largest_s[0] == pytest.approx(1.2)


def test_a_mixed_step_counts_beyond_the_decode_step():
    found = stalls(
        [{"first_token_s": 0.0, "finish_s": 1.0, "output_tokens": 2}],
        [{"context_tokens": 50, "output_tokens": 1}, {"client": 1, "extend_tokens": 200}],
    )
    assert found.matrix_s[0, 1] == pytest.approx(1.0 - 0.1)


def test_a_retracted_request_is_not_held_up():
    away = {"retracted_s": 1.0, "readmitted_s": 2.0}
    request = {"first_token_s": 0.0, "finish_s": 3.0, "output_tokens": 2, **away}
    found = stalls([request], [{"client": 1, "end_s": 3.0, "extend_tokens": 200}])
    assert found.by_others_s.tolist() == [2.0, 0.0]
    assert found.answer_s.tolist() == [2.0, 0.0]


def test_an_unfinished_answer_lasts_to_the_end():
    request = {"first_token_s": 2.0, "output_tokens": 1}
    found = stalls([request], [{"client": 1, "end_s": 4.0, "extend_tokens": 9}], horizon_s=4.0)
    assert found.by_others_s.tolist() == [2.0, 0.0]


def test_without_costs_or_known_steps_nothing_is_known():
    rows = log({"extend_tokens": 1})
    assert stalls_of(requests({}), replace(rows, gpu_s=np.ones(1)), facts()) is None
    assert stalls_of(requests({}), rows, facts(costs=Costs())) is None


def test_a_stall_exceeds_half_a_second_and_four_steps_of_a_lone_request():
    assert stall_limit_s(facts()) == 0.5
    assert stall_limit_s(facts(lone=LoneStep(0.01, 0.0))) == 0.5
    assert stall_limit_s(facts(lone=LoneStep(0.2, 0.0))) == 0.8


def test_percentiles_of_gaps_count_tokens():
    gaps = Gaps(2, 0.15)
    gaps.add(np.zeros(3, int), np.arange(3), np.array([0.1, 0.2, 9.0]), np.array([98.0, 2.0, 0.0]))
    assert gaps.percentile_s(98)[0] == pytest.approx(0.1, rel=0.01)
    assert gaps.percentile_s(99)[0] == 0.2  # never above the largest gap
    assert np.isnan(gaps.percentile_s(99)[1])
    assert (gaps.largest_s[0], gaps.above.tolist()) == (0.2, [2.0, 0.0])


def test_a_log_in_parts_gives_the_seconds_of_the_whole():
    result = simulate(small_spec("lpm", "chat", flags={"num_programs": 3, "clients": 4}))
    asked = Requests.from_columns(plain(result.requests))
    rows = Service.from_columns(plain(result.service))
    rows = rows.take(np.argsort(rows.start_s, kind="stable"))
    costs = costs_of(result.summary["timing_profile"])
    known = facts(4, costs=costs, horizon_s=result.summary["duration"])
    middle = int(np.searchsorted(rows.start_s, rows.start_s[len(rows) // 2]))

    class Parts:
        def parts(self):
            return iter((rows.between(0, middle), rows.between(middle, len(rows))))

    whole, parts = stalls_of(asked, rows, known), stalls_of(asked, Parts(), known)
    assert parts.matrix_s == pytest.approx(whole.matrix_s)
    assert parts.by_own_s == pytest.approx(whole.by_own_s)
    assert parts.gaps.largest_s == pytest.approx(whole.gaps.largest_s)
    assert parts.gaps.tokens() == pytest.approx(whole.gaps.tokens(), rel=0.01)


ENGINES = {
    "sglang": {}, "vllm": {"engine": "vllm"}, "lightllm": {"engine": "lightllm"},
    "apart": {"prefill": 1, "decode": 1},
}  # fmt: skip


@pytest.mark.parametrize("form", ENGINES)
def test_the_seconds_of_a_run_equal_those_of_every_step_and_answer(form):
    flags = {"num_programs": 3, "clients": 4} | ENGINES[form]
    result = simulate(small_spec("lpm", "chat", dp=2 if form == "apart" else 1, flags=flags))
    asked = Requests.from_columns(plain(result.requests))
    rows = Service.from_columns(plain(result.service))
    costs = costs_of(result.summary["timing_profile"])
    known = facts(4, costs=costs, horizon_s=result.summary["duration"])
    found = stalls_of(asked, rows, known)
    assert found.matrix_s == pytest.approx(every_step(asked, rows, costs), abs=1e-6)
    assert found.matrix_s.sum() == pytest.approx((found.by_others_s + found.by_own_s).sum())
    assert (found.matrix_s.sum() > 0) == (form != "apart")
    if form in ("sglang", "lightllm") and not asked.retractions.any():
        after_first = np.maximum(asked.output_tokens - 1, 0)
        tokens = np.bincount(asked.client, after_first, 4)
        assert found.gaps.tokens() == pytest.approx(tokens.tolist())


def every_step(asked, rows, costs):
    """Return the stalled seconds by client and by client of the prompts, row by row."""
    total = np.zeros((4, 4))
    workers = asked.worker if asked.decode_worker is None else asked.decode_worker
    computed = rows.extend_tokens + rows.recompute_tokens
    for row in np.flatnonzero(computed):
        same = (rows.worker == rows.worker[row]) & (rows.start_s == rows.start_s[row])
        length_s = prompt_s = rows.end_s[row] - rows.start_s[row]
        if rows.context_tokens[row]:
            sequences = max(1, int(rows.output_tokens[same].sum()))
            alone_s = costs.decode_step_s(sequences, int(rows.context_tokens[row]))
            prompt_s = max(0.0, length_s - alone_s)
        part = prompt_s * computed[row] / computed[same].sum() / length_s
        for one in np.flatnonzero((workers == rows.worker[row]) & np.isfinite(asked.first_token_s)):
            begin = max(asked.first_token_s[one], rows.start_s[row])
            end = min(np.nan_to_num(asked.finish_s[one], nan=np.inf), rows.end_s[row])
            total[asked.client[one], rows.client[row]] += max(0.0, end - begin) * part
    return total
