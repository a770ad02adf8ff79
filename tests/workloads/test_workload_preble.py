"""Test Preble's workloads: the statistics of its Table 1, and each kind's peculiarities."""

import random
from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from fairbench.core import prompt_tokens
from fairbench.schedulers.prefix_tree import Node, PrefixTree
from fairbench.workloads.items import Item
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.programs.tool_use import ToolUse, _tools
from fairbench.workloads.spec import load_workload
from tests.workloads.workload_fakes import calls_of

# [Preble] Table 1: prompt, output, shared prefix, key portion, requests that share a prefix (means)
TABLE_1 = {
    "tool-use": (1835, 43, 0.85, 0.76, 39),
    "agent": (2285, 16, 0.97, 0.76, 48),
    "programming": (3871, 190, 0.97, 0.78, 126),
    "video-qa": (9865, 4, 0.88, 0.99, 8.6),
    "loogle": (23474, 16, 0.91, 0.94, 18),
}
PROGRAMS = {"tool-use": 8300, "agent": 100, "programming": 4000, "video-qa": 600, "loogle": 200}


def params_of(workload, **changes):
    spec = load_workload(workload)
    return program_class(spec.program), make_params(
        spec.program, {**spec.params, **changes}, workload
    )


def build(workload, number=0, item=None, client="a", **changes):
    kind, params = params_of(workload, **changes)
    return kind.build(params, random.Random(f"0/{number}"), number, client, item)


def first_calls(workload, count, **changes):
    """Return the calls of the first programs."""
    kind, params = params_of(workload, **changes)
    for number in range(count):
        program = kind.build(params, random.Random(f"0/{number}"), number, "a", None)
        yield from calls_of(program)


def statistics_of(calls):
    """Return Table 1's means over requests, computed from the prefix tree of all prompts."""
    tree, ends, shared = PrefixTree(Node), [], []
    for call in calls:
        tokens = call.input_tokens
        node, place = tree.match(call.prompt, tokens)
        shared.append(node.depth / tokens)
        if node.depth < tokens:
            node = tree.extend(node, call.prompt, place, tokens)
        ends.append(node)
    requests, key_shares = Counter(), []
    for end in ends:
        key = end
        while key.parent is not None and 2 * key.length <= key.depth:
            key = key.parent
        requests[key] += 1
        key_shares.append(key.length / end.depth)
    return (
        fmean(call.input_tokens for call in calls),
        fmean(call.output_tokens for call in calls),
        fmean(shared),
        fmean(key_shares),
        fmean(requests.values()),
    )


@pytest.mark.parametrize("workload", TABLE_1)
def test_the_means_of_table_1_within_5_percent(workload):
    calls = list(first_calls(workload, PROGRAMS[workload]))
    assert statistics_of(calls) == pytest.approx(TABLE_1[workload], rel=0.05)


def test_tools_are_used_by_zipfs_law():
    calls = first_calls("tool-use", 2000, tools=4, popularity=1.0)
    uses = Counter(call.prompt[1].key for call in calls)
    # 1, 1/2, 1/3 and 1/4 of their sum
    expected = {f"tool-use/tool-{rank}": 2000 / (rank + 1) / (25 / 12) for rank in range(4)}
    assert uses == pytest.approx(expected, rel=0.2)


def test_a_tool_is_the_same_for_all_and_its_questions_are_not():
    one, other = (calls_of(build("tool-use", n, tools=1))[0].prompt for n in (1, 2))
    assert one[:2] == other[:2]
    assert one[2].key != other[2].key


def test_private_tools_are_shared_within_one_client():
    def prompt(number, client):
        call = calls_of(build("tool-use", number, client=client, tools=1, private=True))[0]
        return call.prompt

    assert prompt(1, "a")[:2] == prompt(2, "a")[:2]
    assert prompt(1, "a")[0] == prompt(1, "b")[0]
    mine, other = prompt(1, "a")[1], prompt(1, "b")[1]
    assert mine.key != other.key
    assert mine.length == other.length


def test_the_mean_of_tools_is_over_programs():
    _, params = params_of("tool-use")
    tools = _tools(params)
    shares = [b - a for a, b in zip((0.0, *tools.shares), (*tools.shares, 1.0), strict=True)]
    mean = sum(share * length for share, length in zip(shares, tools.lengths, strict=True))
    assert mean == pytest.approx(1395, abs=1)


def test_prompts_of_an_agent_grow_by_its_actions_and_observations():
    calls = calls_of(build("agent"), service_s=1.0)
    assert 34 <= len(calls) <= 62
    for before, after in pairwise(calls):
        done, seen = after.prompt[-2:]
        assert after.prompt[:-2] == before.prompt
        assert (done.key, done.length) == (f"out/{before.name}", before.output_tokens)
        assert seen.key == f"0/observation-{after.depth}"
        assert after.start_s > before.start_s + 1.0  # the environment takes time to answer


def test_the_number_of_steps_of_an_agent_varies():
    kind, params = params_of("agent")
    programs = (kind.build(params, random.Random(n), n, "a", None) for n in range(200))
    lengths = Counter(program.demand.requests for program in programs)
    assert len(lengths) > 20
    assert max(lengths.values()) < 20


def test_samples_are_the_same_prompt_at_the_same_time():
    calls = calls_of(build("programming"), service_s=5.0)
    assert len(calls) == 10
    assert {call.prompt for call in calls} == {calls[0].prompt}
    assert {call.start_s for call in calls} == {0.0}
    assert len({call.output_tokens for call in calls}) > 5


class TestRealItems:
    def test_tool_use_draws_real_tools_and_one_of_their_questions(self):
        item = Item("tools.jsonl/3", 900, ((20, 7), (30, 8)))
        prompts = [calls_of(build("tool-use", n, item=item))[0] for n in range(20)]
        assert {call.prompt[1] for call in prompts} == {("tools.jsonl/3/tool", 900)}
        assert {(c.prompt[2].length, c.output_tokens) for c in prompts} == {(20, 7), (30, 8)}

    def test_tool_use_picks_popular_tools_repeatedly(self):
        _, params = params_of("tool-use")
        picked = Counter(ToolUse.pick(params, random.Random(n), n) for n in range(1000))
        assert picked[0] > 5 * picked[9] > 0
        assert max(picked) < 200

    def test_an_agent_follows_the_real_steps(self):
        item = Item("tasks.jsonl/1", 500, ((0, 5), (12, 999)))
        calls = calls_of(build("agent", item=item))
        assert [prompt_tokens(call.prompt) for call in calls] == [520, 520 + 5 + 12]
        assert [call.output_tokens for call in calls] == [5, 64]

    def test_samples_of_a_real_problem_are_sent(self):
        calls = calls_of(build("programming", item=Item("humaneval.jsonl/1", 77)))
        assert calls[0].prompt[1] == ("humaneval.jsonl/1/problem", 77)
