"""Test the four program kinds: shapes, prompts, demand, and the averages of Table 2."""

import random
from collections import Counter
from itertools import islice, pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Demand, prompt_tokens
from fairbench.errors import UsageError
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.items import Item
from fairbench.workloads.plan import program_stream
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.spec import load_workload, workload_names
from tests.workloads.workload_fakes import calls_of, demand_of


def build(workload, item=None, program_id=7, seed=0, **overrides):
    spec = load_workload(workload)
    params = make_params(spec.program, {**spec.params, **overrides}, workload)
    rng = random.Random(seed)
    return program_class(spec.program).build(params, rng, program_id, "client-0", item)


def well_behaved(workload, programs, seed):
    """Return the well-behaved clients' programs of the first scenario, as in a run."""
    spec = load_workload(workload)
    plans = [p for p in plan_clients(spec, "s1", num_programs=programs) if not p.misbehaving]
    for plan in plans:
        for _, program in program_stream(plan, seed=seed):
            yield program


def keys(prompt):
    return [segment.key for segment in prompt]


class TestAllowedOutputs:
    """Trees and judges make outputs of fixed lengths, and may ask for more than they need."""

    @pytest.mark.parametrize("workload", ["tot", "judge"])
    def test_more_output_is_reserved_and_no_answer_gets_longer(self, workload):
        usual, greedy = calls_of(build(workload)), calls_of(build(workload, max_new_tokens=4096))
        assert {call.max_new_tokens for call in greedy} == {4096}
        assert all(call.max_new_tokens == call.output_tokens for call in usual)
        assert [call.output_tokens for call in greedy] == [call.output_tokens for call in usual]
        assert build(workload, max_new_tokens=4096).demand == build(workload).demand

    @pytest.mark.parametrize(
        ("workload", "field"), [("tot", "output_tokens"), ("judge", "judgement_tokens")]
    )
    def test_a_limit_below_the_output_is_refused(self, workload, field):
        said = f"max_new_tokens = 255: must be at least {field} = 256"
        with pytest.raises(ValueError, match=said):
            build(workload, max_new_tokens=255)


class TestTreeOfThought:
    @pytest.mark.parametrize(("branches", "generations"), [(2, 30), (3, 120), (4, 340)])
    def test_generations_per_tree_equal_the_formula(self, branches, generations):
        # b + b^2 + b^3 + b^4
        assert len(calls_of(build("tot", branches=branches))) == generations

    def test_levels_fork_and_wait_for_their_parent(self):
        calls = calls_of(build("tot", branches=3), service_s=10.0)
        assert Counter(call.depth for call in calls) == {0: 3, 1: 9, 2: 27, 3: 81}
        assert all(call.start_s == 10.0 * call.depth for call in calls)

    def test_siblings_share_one_prompt_and_cousins_do_not(self):
        calls = calls_of(build("tot", branches=3))
        groups = Counter(call.prompt for call in calls)
        # a root prompt, then one prompt per thought of the three upper levels.
        assert len(groups) == 1 + 3 + 9 + 27
        assert set(groups.values()) == {3}

    def test_a_prompt_grows_by_the_thought_and_the_next_turn(self):
        calls = {call.name: call for call in calls_of(build("tot"))}
        root = calls["plan-1"].prompt
        assert keys(root) == ["tot/instruction", "7/question"]
        below = calls["plan-1/execute-0"].prompt
        assert below[:2] == root
        assert below[2:] == (("out/plan-1", 256), ("tot/turn-execute", 32))
        deepest = calls["plan-1/execute-0/reflect-0/answer-1"].prompt
        assert prompt_tokens(deepest) == prompt_tokens(root) + 3 * (256 + 32)

    def test_demand_of_a_tree_equals_a_hand_computation(self):
        program = build("tot", question_tokens=480.0, question_sigma=0.0)
        # The root has 546. Levels of 2, 4, 8, 16 calls have 288 more tokens each: 30*546 +
        # 288*(4+16+48).
        assert program.demand == Demand(30, 30 * 546 + 288 * 68, 30 * 256)

    def test_question_scale_is_ten_times_the_question(self):
        short = calls_of(build("tot"))[0].prompt
        long = calls_of(build("tot", question_scale=10.0))[0].prompt
        assert long[0] == short[0]
        assert long[1].length == 10 * short[1].length


class TestJudge:
    @pytest.mark.parametrize("dimensions", [1, 2, 8, 16])
    def test_there_are_two_more_requests_than_dimensions(self, dimensions):
        assert len(calls_of(build("judge", dimensions=dimensions))) == dimensions + 2

    def test_judgements_share_only_the_root(self):
        first, second, *_ = calls_of(build("judge"))
        assert keys(first.prompt) == ["judge/system", "7/article", "judge/dimension-0"]
        assert first.prompt[:2] == second.prompt[:2]
        assert second.prompt[2].key == "judge/dimension-1"

    def test_merge_reads_all_judgements_and_score_reads_the_merge(self):
        calls = calls_of(build("judge", dimensions=3), service_s=5.0)
        merge, score = calls[-2:]
        judged = [f"out/judgement-{number}" for number in range(3)]
        assert keys(merge.prompt) == [
            "judge/system", "7/article", *judged, "judge/merge-instruction",
        ]  # fmt: skip
        assert score.prompt[:-2] == merge.prompt
        assert keys(score.prompt)[-2:] == ["out/merge", "judge/score-instruction"]
        assert (merge.start_s, score.start_s) == (5.0, 10.0)
        assert (merge.output_tokens, score.output_tokens) == (256, 2)
        assert [call.depth for call in calls] == [0, 0, 0, 1, 2]

    def test_demand_of_a_judge_equals_a_hand_computation(self):
        program = build("judge", article_sigma=0.0)
        # The root has 2701, judgements 2*(2701+48), the merge 2701+512+16 = 3229, and the score
        # 3229+256+20 = 3505.
        assert program.demand == Demand(4, 5498 + 3229 + 3505, 2 * 256 + 256 + 2)

    def test_extra_tokens_are_fresh_and_before_the_article(self):
        prompt = calls_of(build("judge", extra_tokens=600))[0].prompt
        assert prompt[1] == ("7/extra", 600)
        assert prompt[2].key == "7/article"


class TestLongQA:
    def test_many_questions_about_one_document_come_in_order_of_time(self):
        calls = calls_of(build("long-qa"))
        assert len(calls) == 16
        assert len({call.prompt[:2] for call in calls}) == 1
        assert len({call.prompt[2].key for call in calls}) == 16
        times = [call.start_s for call in calls]
        assert times[0] == 0.0
        assert times == sorted(times)

    def test_a_question_does_not_wait_for_the_previous_answer(self):
        program = build("long-qa")
        quick = [call.start_s for call in calls_of(program, service_s=0.0)]
        slow = [call.start_s for call in calls_of(program, service_s=1e6)]
        assert quick == slow

    def test_gaps_are_one_second_on_average(self):
        gaps = []
        for program in well_behaved("long-qa", 150, seed=5):
            times = [call.start_s for call in calls_of(program)]
            gaps += [later - earlier for earlier, later in pairwise(times)]
        assert fmean(gaps) == pytest.approx(1.0, rel=0.05)

    def test_the_reserved_output_is_32_and_the_document_is_fresh(self):
        one, two = calls_of(build("long-qa"))[0], calls_of(build("long-qa", program_id=8))[0]
        assert one.max_new_tokens == 32
        assert (one.prompt[0].key, one.prompt[1].key) == ("long-qa/instruction", "7/document")
        assert two.prompt[1].key == "8/document"

    def test_the_scale_of_documents(self):
        plain = calls_of(build("long-qa"))[0].prompt[1].length
        assert calls_of(build("long-qa", document_scale=2.0))[0].prompt[1].length == 2 * plain


class TestChat:
    def test_history_grows_by_message_and_answer(self):
        calls = calls_of(build("chat", turns_min=3, turns_max=3))
        assert keys(calls[2].prompt) == [
            "7/user-0", "out/turn-0", "7/user-1", "out/turn-1", "7/user-2",
        ]  # fmt: skip
        assert calls[2].prompt[: len(calls[1].prompt)] == calls[1].prompt
        assert [call.depth for call in calls] == [0, 1, 2]

    def test_a_turn_waits_for_the_answer_and_then_thinks(self):
        program = build("chat", turns_min=2, turns_max=2)
        quick, slow = calls_of(program, 0.0), calls_of(program, 100.0)
        assert quick[1].start_s > 0
        assert slow[1].start_s == pytest.approx(quick[1].start_s + 100.0)

    def test_think_time_is_five_seconds_on_average(self):
        gaps = []
        for program in well_behaved("chat", 1000, seed=3):
            times = [call.start_s for call in calls_of(program)]
            gaps += [later - earlier for earlier, later in pairwise(times)]
        assert fmean(gaps) == pytest.approx(5.0, rel=0.05)

    def test_turns_stay_within_their_limits(self):
        programs = list(well_behaved("chat", 1000, seed=1))
        turns = Counter(program.demand.requests for program in programs)
        assert sorted(turns) == [2, 3, 4, 5, 6]
        assert fmean(turns.elements()) == pytest.approx(4.0, rel=0.03)
        calls = [call for program in programs for call in calls_of(program)]
        assert {call.max_new_tokens for call in calls} == {512}
        lengths = [call.output_tokens for call in calls]
        assert max(lengths) == 512
        # The length is not constant: half of the answers are well below the mean of 142.
        assert sorted(lengths)[len(lengths) // 2] < 125


class TestTable2:
    """Mean prefix and output are within 3% of [DLPM] Table 2, over well-behaved programs."""

    @staticmethod
    def check(calls, prefix, prefix_mean, output_mean):
        assert fmean(map(prefix, calls)) == pytest.approx(prefix_mean, rel=0.03)
        assert fmean(call.output_tokens for call in calls) == pytest.approx(output_mean, rel=0.03)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_tree_of_thought_has_the_averages_of_the_table(self, seed):
        programs = [calls_of(program) for program in well_behaved("tot", 1000, seed)]
        self.check([calls[0] for calls in programs], lambda call: call.input_tokens, 546, 256)
        assert {call.output_tokens for call in programs[0]} == {256}

    @pytest.mark.parametrize("seed", [0, 1])
    def test_judge_has_the_averages_of_the_table(self, seed):
        programs = [calls_of(program) for program in well_behaved("judge", 1000, seed)]
        judgements = [call for calls in programs for call in calls if call.depth == 0]
        self.check(judgements, lambda call: prompt_tokens(call.prompt[:2]), 2701, 256)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_long_qa_has_the_averages_of_the_table(self, seed):
        calls = [
            call for program in well_behaved("long-qa", 500, seed) for call in calls_of(program)
        ]
        self.check(calls, lambda call: prompt_tokens(call.prompt[:2]), 21449, 15)

    @pytest.mark.parametrize("seed", [0, 1])
    def test_chat_has_the_averages_of_the_table(self, seed):
        calls = [call for program in well_behaved("chat", 3000, seed) for call in calls_of(program)]
        self.check(calls, lambda call: call.prompt[-1].length, 56, 142)


@pytest.mark.parametrize("workload", workload_names())
def test_demand_equals_the_requests_in_every_scenario(workload):
    spec = load_workload(workload)
    for scenario in spec.scenario_names:
        for plan in plan_clients(spec, scenario):
            for _, program in islice(program_stream(plan, seed=2), 3):
                calls = calls_of(program)
                assert program.demand == demand_of(calls)
                assert len({call.name for call in calls}) == len(calls)


WORKLOADS = {load_workload(name).program: name for name in reversed(workload_names())}


@given(
    st.sampled_from(sorted(WORKLOADS)),
    st.integers(0, 3000),
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 900)), min_size=1, max_size=9),
)
def test_demand_is_exact_for_any_real_item(kind, text_tokens, exchanges):
    item = Item("data/1", text_tokens, tuple(exchanges))
    program = build(WORKLOADS[kind], item=item)
    calls = calls_of(program)
    assert program.demand == demand_of(calls)


@pytest.mark.parametrize("workload", workload_names())
def test_a_run_is_repeatable_and_differs_between_seeds(workload):
    program = build(workload)
    assert calls_of(program) == calls_of(program) == calls_of(build(workload))
    if load_workload(workload).program != "single":  # those may all have the same length
        assert calls_of(program) != calls_of(build(workload, seed=1))


@pytest.mark.parametrize("workload", workload_names())
def test_only_instructions_are_shared_between_programs(workload):
    def contents(program_id):
        prompts = [call.prompt for call in calls_of(build(workload, program_id=program_id))]
        return {key for prompt in prompts for key in keys(prompt) if not key.startswith("out/")}

    shared = contents(1) & contents(2)
    spec = load_workload(workload)
    assert all(key.startswith((f"{spec.name}/", f"{spec.program}/")) for key in shared)
    assert all(key.startswith("1/") for key in contents(1) - shared)


class TestRealItems:
    def test_lengths_of_the_item_replace_drawn_ones(self):
        item = Item("gsm8k.jsonl/3", 61)
        assert calls_of(build("tot", item=item))[0].prompt[1] == ("gsm8k.jsonl/3/question", 61)
        article = calls_of(build("judge", item=item))[0].prompt[1]
        assert article == ("gsm8k.jsonl/3/article", 61)

    def test_scale_applies_to_real_questions(self):
        item = Item("gsm8k.jsonl/3", 61)
        assert calls_of(build("tot", item=item, question_scale=10.0))[0].prompt[1].length == 610

    def test_long_qa_asks_all_the_questions_and_cuts_answers_off(self):
        item = Item("docs.jsonl/1", 9000, ((11, 5), (12, 99)))
        calls = calls_of(build("long-qa", item=item))
        assert [call.prompt[2].length for call in calls] == [11, 12]
        assert [call.output_tokens for call in calls] == [5, 32]
        assert calls[0].prompt[1] == ("docs.jsonl/1/document", 9000)

    def test_chat_follows_the_real_turns(self):
        item = Item("talk.jsonl/1", 0, ((11, 5), (12, 999)))
        calls = calls_of(build("chat", item=item))
        assert [call.prompt[-1].length for call in calls] == [11, 12]
        assert [call.output_tokens for call in calls] == [5, 512]


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("chat", {"turns_max": 2, "think_mean_s": 5.0}, True),
        ("chat", {"turns_max": 2, "think_mean_s": 0.0}, False),
        ("chat", {"turns_min": 1, "turns_max": 1, "think_mean_s": 5.0}, False),
        ("long-qa", {"questions": 2, "gap_mean_s": 1.0}, True),
        ("long-qa", {"questions": 2, "gap_mean_s": 0.0}, False),
        ("long-qa", {"questions": 1, "gap_mean_s": 1.0}, False),
        ("agent", {"steps_min": 2, "steps_max": 2, "step_gap_s": 1.0}, True),
        ("agent", {"steps_min": 2, "steps_max": 2, "step_gap_s": 0.0}, False),
        ("agent", {"steps_min": 1, "steps_max": 1, "step_gap_s": 1.0}, False),
        ("judge", {}, False),
    ],
)
def test_time_passes_between_calls_only_with_several_calls_and_a_gap(kind, params, expected):
    params = make_params(kind, load_workload(kind).params | params, kind)
    assert program_class(kind).pauses(params) is expected


def test_an_unknown_kind_gets_the_nearest_name():
    with pytest.raises(UsageError, match=r"program kind 'chatt'.*Did you mean 'chat'"):
        program_class("chatt")
