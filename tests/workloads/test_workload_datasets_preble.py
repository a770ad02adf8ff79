"""Test real input of Preble's workloads: ToolBench, HumanEval, NExT-QA, tau-bench, ALFWorld."""

import gzip
import json
import random
from math import ceil
from statistics import correlation, fmean, median, pstdev

import pytest

from fairbench.errors import DataError
from fairbench.workloads.datasets import load_source
from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.spec import load_workload
from tests.workloads.workload_fakes import calls_of, shared_data


def source(tmp_path, kind, text, name="data.jsonl"):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return load_source(kind, str(path))


def items(made):
    return sorted((made.item(0, n) for n in range(len(made))), key=lambda item: item.key)


def length(text):
    return ceil(len(text) / 4.6)


def test_queries_about_the_same_tools_are_one_tool(tmp_path):
    tools = [{"name": "t" * 100}]
    rows = [
        {"query": "a" * 46, "tools": tools, "final": "b" * 92},
        {"query": "c" * 92, "tools": tools, "final": ""},
        {"query": "d" * 46, "tools": [{"name": "other"}], "final": "e" * 46},
    ]
    made = source(tmp_path, "tool-use", "\n".join(map(json.dumps, rows)))
    one, other = items(made)
    assert one.exchanges[0] == (10, 20)
    assert one.exchanges[1][0] == 20
    assert one.text_tokens == length(json.dumps(tools))
    assert len(other.exchanges) == 1


HEADER = "video,frame_count,question,answer,a0,a1,a2,a3,a4\n"


@pytest.mark.parametrize("name", ["videos.csv", "videos.csv.gz"])
def test_questions_about_one_video_are_one_document(tmp_path, name):
    rows = "7,300,why,2,a,b,cccccccccccccc,d,e\n7,300,where,0,a,b,c,d,e\n9,30,who,1,a,b,c,d,e\n"
    one, other = items(source(tmp_path, "long-qa", HEADER + rows, name))
    assert (one.text_tokens, len(one.exchanges)) == (2560, 2)
    assert one.exchanges[0][1] == length("c" * 14)
    assert (other.text_tokens, len(other.exchanges)) == (256, 1)


def test_a_trajectory_of_messages_is_read(tmp_path):
    def traj(*messages):
        return json.dumps({"traj": [{"role": r, "content": c} for r, c in messages]})

    policy = "p" * 460
    text = "\n".join(
        traj(("system", policy), ("user", "u" * 46), ("assistant", "a" * 92),
             ("tool", "t" * 46), ("user", "u" * 46), ("assistant", "z" * 46))
        for _ in range(2)
    )  # fmt: skip
    one, other = items(source(tmp_path, "agent", text))
    assert (one.text_tokens, one.exchanges) == (100, ((10, 20), (20, 10)))
    assert one.text_key == other.text_key == "data.jsonl/text-1"
    assert one.key != other.key


def test_a_react_trajectory_is_read(tmp_path):
    text = "You see a cup.\n> think: take it\nOK.\n> take cup\nYou have it.\n"
    (item,) = items(source(tmp_path, "agent", json.dumps({"one": text}), "react.json"))
    assert item.text_tokens == length("You see a cup.")
    assert [said for _, said in item.exchanges] == [length("think: take it"), length("take cup")]
    assert item.exchanges[0][0] <= 1 <= item.exchanges[1][0] + 1


def test_agents_with_the_same_policy_share_its_text(tmp_path):
    rows = [
        json.dumps({"traj": [{"role": "system", "content": "p" * 460},
                             {"role": "assistant", "content": key * 46}]})
        for key in "ab"
    ]  # fmt: skip
    made = source(tmp_path, "agent", "\n".join(rows))
    params = make_params("agent", load_workload("agent").params, "x")
    kind = program_class("agent")
    prompts = [
        calls_of(kind.build(params, random.Random(n), n, "a", made.item(0, n)))[0].prompt
        for n in (0, 1, 2)  # the third agent is of the second pass
    ]
    assert prompts[0][:2] == prompts[1][:2] == prompts[2][:2]
    assert prompts[0][1] == ("data.jsonl/text-1", 100)


@pytest.mark.parametrize(
    ("kind", "text", "name", "complaint"),
    [
        (
            "long-qa",
            HEADER + "7,many,why,2,a,b,c,d,e\n",
            "x.csv",
            "line 2: .*must be a number of frames",
        ),
        ("long-qa", HEADER + "7,30,why,9,a,b,c,d,e\n", "x.csv", "line 2: .*number of a choice"),
        (
            "agent",
            '{"traj": [{"role": "user", "content": "x"}]}',
            "x.jsonl",
            "field 'traj': must hold a system message and an assistant message",
        ),
        ("agent", '{"a": "no steps"}', "x.json", "entry 'a': .*lines that begin with >"),
        ("agent", "[1, 2]", "x.json", "must be a JSON object"),
        (
            "tool-use",
            '{"query": "q", "tools": [], "final": ""}',
            "x.jsonl",
            "'tools': must not be empty",
        ),
        (
            "samples",
            '{"prompt": "", "canonical_solution": ""}',
            "x.jsonl",
            "'prompt': must not be empty",
        ),
        ("samples", '{"question": "q"}', "x.jsonl", "for programs of kind tree-of-thought"),
        ("agent", "a", "x.txt", r"must end in \.jsonl, \.csv"),
    ],
)
def test_conflicts_are_named(tmp_path, kind, text, name, complaint):
    with pytest.raises(DataError, match=complaint):
        source(tmp_path, kind, text, name)


@pytest.mark.parametrize(
    ("kind", "name", "count", "text_tokens", "exchanges"),
    [
        ("tool-use", "toolbench_eval.jsonl.gz", 535, 802, 1.12),
        ("samples", "humaneval.jsonl.gz", 164, 98, 0),
        ("agent", "taubench_airline_gpt4o.jsonl.gz", 100, 1339, 12.3),
        ("agent", "alfworld_react_prompts.json.gz", 36, 96, 13.5),
        ("long-qa", "nextqa_test.csv.gz", 1000, 9681, 8.56),
    ],
)
def test_the_data_sets_themselves_are_read(kind, name, count, text_tokens, exchanges):
    made = items(load_source(kind, shared_data(name)))
    assert len(made) == count
    assert fmean(item.text_tokens for item in made) == pytest.approx(text_tokens, rel=0.01)
    assert fmean(len(item.exchanges) for item in made) == pytest.approx(exchanges, rel=0.01)


def test_longer_videos_have_hardly_more_questions():
    """[Preble] §H, against NExT-QA: Table 1's 8.6 (2) questions, and a correlation of 0.10."""
    made = items(load_source("long-qa", shared_data("nextqa_test.csv.gz")))
    asked = [len(item.exchanges) for item in made]
    assert (fmean(asked), pstdev(asked)) == pytest.approx((8.6, 2.0), rel=0.01)
    lengths = [item.text_tokens for item in made]
    assert correlation(lengths, asked) == pytest.approx(0.104, abs=0.001)
    middle = median(lengths)
    longer, shorter = (
        fmean(count for count, tokens in zip(asked, lengths, strict=True) if half(tokens))
        for half in (lambda tokens: tokens >= middle, lambda tokens: tokens < middle)
    )
    assert longer / shorter == pytest.approx(1.04, abs=0.005)


def test_a_program_asks_all_questions_of_its_own_video():
    made = load_source("long-qa", shared_data("nextqa_test.csv.gz"))
    params = make_params("long-qa", load_workload("video-qa").params, "video-qa")
    kind = program_class("long-qa")
    for number in range(50):
        item = made.item(0, number)
        program = kind.build(params, random.Random(number), number, "a", item)
        calls = calls_of(program)
        assert len(calls) == len(item.exchanges)
        assert {call.prompt[1].length for call in calls} == {item.text_tokens}
