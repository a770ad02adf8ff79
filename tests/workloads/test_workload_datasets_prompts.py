"""Test plain data sets of prompts: one request each, by usual and by named fields."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError, UsageError
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.datasets import load_source
from fairbench.workloads.plan import program_stream
from fairbench.workloads.spec import load_workload
from tests.workloads.workload_fakes import calls_of, demand_of


def text_of(tokens):
    """Return a text with the given number of tokens by the approximation."""
    return "x" * int(tokens * 4.6)


def lengths(path, names=None):
    """Return the tokens of each record's prompt, and of its answer if it has one."""
    source = load_source("single", str(path), None, names)
    found = [source.item(0, number) for number in range(len(source))]
    found.sort(key=lambda item: int(item.key.rsplit("/", 1)[1]))
    return [(item.text_tokens, *(said for _, said in item.exchanges)) for item in found]


def written(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({"prompt": text_of(10)}, (10,)),
        ({"prompt": text_of(10), "output": text_of(7)}, (10, 7)),
        ({"id": 4, "prompt": text_of(12), "response": text_of(3), "score": None}, (12, 3)),
        ({"prompt": text_of(5), "completion": text_of(9)}, (5, 9)),
        ({"prompt": text_of(5), "canonical_solution": "return"}, (5,)),
        ({"instruction": text_of(20), "input": "", "output": text_of(4)}, (20, 4)),
        ({"instruction": "x" * 22, "input": "x" * 23, "output": text_of(4)}, (10, 4)),
        ({"instruction": text_of(20)}, (20,)),
        ({"instruction": text_of(8), "input": None, "answer": text_of(2)}, (8, 2)),
        (text_of(6), (6,)),
        ({"text": text_of(6)}, (6,)),
    ],
)
def test_records_of_prompts_are_requests(record, tokens, tmp_path):
    assert lengths(written(tmp_path / "data.jsonl", record, record)) == [tokens] * 2


@pytest.mark.parametrize(
    ("record", "names"),
    [
        ({"q": text_of(11), "a": text_of(2)}, {"prompt": "q", "output": "a"}),
        ({"x": {"user": text_of(11)}, "a": text_of(2)}, {"prompt": "x.user", "output": "a"}),
        ({"x.user": text_of(11), "output": text_of(2)}, {"prompt": "x.user"}),
        ({"prompt": "no", "instruction": text_of(11), "r": text_of(2)},
         {"prompt": "instruction", "answer": "r"}),
    ],
)  # fmt: skip
def test_named_fields_are_read(record, names, tmp_path):
    assert lengths(written(tmp_path / "data.jsonl", record), names) == [(11, 2)]


def test_every_kind_of_file_is_read(tmp_path):
    records = [{"prompt": text_of(n), "output": text_of(n + 1)} for n in (3, 8)]
    (tmp_path / "list.json").write_text(json.dumps(records))
    (tmp_path / "object.json").write_text(json.dumps(dict(enumerate(records))))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "rows.parquet")
    rows = "\n".join(["prompt,output", *(f"{r['prompt']},{r['output']}" for r in records)])
    (tmp_path / "rows.csv").write_text(rows)
    for name in ("list.json", "object.json", "rows.parquet", "rows.csv"):
        assert lengths(tmp_path / name) == [(3, 4), (8, 9)], name


def test_a_request_has_its_prompt_and_its_answer_or_a_drawn_one(tmp_path):
    data = written(tmp_path / "d.jsonl", {"prompt": text_of(40), "output": text_of(9)})
    spec = load_workload("prompts")
    for path, outputs in (
        (data, {9}),
        (written(tmp_path / "p.jsonl", {"prompt": text_of(40)}), set(range(64, 449))),
    ):
        source = load_source("single", str(path))
        programs = [
            program
            for plan in plan_clients(spec, "s1", num_programs=6)
            for _, program in program_stream(plan, seed=0, source=source)
        ]
        calls = [calls_of(program) for program in programs]
        assert {len(one) for one in calls} == {1}
        assert {segment.length for (one,) in calls for segment in one.prompt} == {40}
        assert {one.output_tokens for (one,) in calls} <= outputs
        assert [one.demand for one in programs] == [demand_of(one) for one in calls]
        assert len({one.prompt[0].key for (one,) in calls}) == len(programs)


@pytest.mark.parametrize(
    ("record", "names", "error"),
    [
        ({"question": "x"}, {}, r"line 1: .*kind tree-of-thought.*--dataset-map FIELD=NAME"),
        ({"frage": "x"}, {}, r"line 1: missing field 'prompt'.*--dataset-map FIELD=NAME"),
        ({"prompt": ""}, {}, "field 'prompt': must not be empty"),
        ({"prompt": 3}, {}, "field 'prompt': must be a string"),
        ({"prompt": "a", "output": [1]}, {}, "field 'output': must be a string"),
        ({"instruction": "a", "input": {"b": 1}}, {}, "field 'input': must be a string"),
        ({"prompt": "a"}, {"prompt": "q"}, "line 1: missing field 'q'"),
        ({"q": {"a": 1}}, {"prompt": "q.b"}, "line 1: missing field 'q.b'"),
        ({"history": []}, {}, "are for programs of kind chat"),
    ],
)
def test_wrong_records_are_refused_in_one_line(record, names, error, tmp_path):
    with pytest.raises(DataError, match=error) as caught:
        lengths(written(tmp_path / "data.jsonl", record), names)
    assert "\n" not in str(caught.value)


def test_unknown_fields_and_other_workloads_are_refused(tmp_path):
    data = str(written(tmp_path / "data.jsonl", {"prompt": "a"}))
    with pytest.raises(UsageError, match=r"unknown field in --dataset-map 'promt'.*'prompt'"):
        load_source("single", data, None, {"promt": "a"})
    with pytest.raises(DataError, match="kind single, as --workload prompts does"):
        load_source("chat", data)


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--dataset-map", "prompt=q"], "dataset_map: needs dataset_path"),
        (["--dataset-map", "prompt"], "--dataset-map prompt: write FIELD=NAME"),
        (["--dataset-map", "prompt=a", "--dataset-map", "prompt=b"], "each FIELD once"),
    ],
)
def test_wrong_flags_are_refused(flags, error):
    done = CliRunner().invoke(app, ["run", "--workload", "prompts", *flags])
    assert done.exit_code == 2
    assert error in " ".join(done.stderr.split())


def test_a_stored_experiment_keeps_the_names_of_fields(tmp_path):
    data = written(tmp_path / "data.jsonl", {"q": text_of(30), "prompt": "no"})
    flags = ["--dataset-path", str(data), "--dataset-map", "prompt=q", "--num-programs", "1"]
    common = ["--result-dir", str(tmp_path / "runs"), "--json"]
    done = CliRunner().invoke(app, ["run", "--workload", "prompts", *flags, *common])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)
    assert first["total_input_tokens"] == 30 * first["num_requests"]
    (path,) = (tmp_path / "runs").iterdir()
    done = CliRunner().invoke(app, ["run", str(path / "experiment.toml"), *common])
    assert json.loads(done.stdout) == first
