"""Test files that once broke a command: a one-line error, exit code 2, nothing written."""

import gzip
import json
import subprocess
import sys

import pytest

REQUEST = {"client": "a", "start": 0, "first_token": 1, "end": 2}
REQUEST |= {"input_tokens": 1, "output_tokens": 1}
MEASURED = {"path": "VTC/all_results_overload.jsonl", "client": [0, 1], "prompt_len": [5, 5]}
MEASURED |= {"output_len": [5, 5], "req_time": [0, 1]}
MEASURED |= {"first_token_latency": [1, 1], "request_latency": [2, 2]}
GIB = 2**30


def test_score_refuses_a_status_that_is_a_list(refused, tmp_path):
    (tmp_path / "file.jsonl").write_text(json.dumps({**REQUEST, "status": [1]}))
    assert refused("score", "file.jsonl").startswith("file.jsonl, line 1: unknown status '[1]'")


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("output_len", 2**63, "field 'output_len' must hold whole numbers from 1 to 10000000"),
        ("output_len", 10**15, "field 'output_len' must hold whole numbers from 1 to 10000000"),
        ("prompt_len", 1e300, "field 'prompt_len' must hold whole numbers from 1 to 10000000"),
        ("client", 2**40, "field 'client' must hold whole numbers from 0 to 2147483647"),
        ("req_time", 1e300, "field 'req_time' must hold times of at most 1e+10 s"),
        ("req_time", 10**400, "cannot be read: an integer of 401 digits does not fit into 64 bits"),
    ],
)
def test_validate_refuses_impossible_measurements(refused, tmp_path, field, value, complaint):
    (tmp_path / "file.jsonl").write_text(json.dumps({**MEASURED, field: [5, value]}))
    assert refused("validate", "file.jsonl") == f"file.jsonl, line 1: {complaint}"


@pytest.mark.parametrize("command", [["validate"], ["score"], ["run", "--dataset-path"]])
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"path": ' + "1" * 4000 + "}", "an integer of 4000 digits does not fit into 64 bits"),
        ('{"path": ' + "1" * 5000 + "}", "an integer of 5000 digits does not fit into 64 bits"),
    ],
)
def test_json_that_python_itself_does_not_read(refused, tmp_path, command, text, complaint):
    (tmp_path / "file.jsonl").write_text(text)
    line = refused(*command, "file.jsonl")
    dataset = "dataset " if command[0] == "run" else ""
    listed = command == ["score"] and text.startswith("[")  # the JSON may span many lines
    assert line.startswith(f"{dataset}file.jsonl{'' if listed else ', line 1'}: ")
    assert line.endswith(complaint)


TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"word": 1, "[UNK]": 0}, "unk_token": "[UNK]"},
}


@pytest.fixture
def with_tokenizer(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "data.jsonl").write_text('{"question": "a word", "answer": "b"}')

    def with_tokenizer(**parts):
        (tmp_path / "tok.json").write_text(json.dumps(TOKENIZER | parts))
        arguments = ["--dataset-path", "data.jsonl", "--tokenizer", "tok.json"]
        return ["run", "--workload", "tot", "--num-programs", "1", *arguments]

    return with_tokenizer


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {**TOKENIZER["model"], "vocab": {"word": 1}}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
    ids=["lacks its word for the unknown", "panics"],
)
def test_tokenizers_that_fail_are_refused(refused, with_tokenizer, parts):
    line = refused(*with_tokenizer(**parts))
    assert line.startswith("tokenizer tok.json: ")


BOMBS = {
    "zeros": bytes(2**20),
    "line": b"1" * 2**20,
    "lines": b'{"a":1}\n' * 2**17,
    "brackets": b"[" * 2**20,
    "lists": b"[[],[]," + b"[]," * 2**18,
}


COMMANDS = {
    "score": BOMBS,
    "validate": ["zeros", "lists"],
    "run": ["zeros"],
    "run --workload": ["zeros"],
    "run --dataset-path": ["zeros", "line", "lists"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "bomb"), [(command, bomb) for command, bombs in COMMANDS.items() for bomb in bombs]
)
def test_a_bomb_of_3_gigabytes_takes_less_than_1_gigabyte_of_memory(command, bomb, tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(BOMBS[bomb]) * 3200)  # a gzip file may consist of many members
    memory, line = limited([*command.split(), str(path)])
    assert memory < GIB
    assert line.startswith("fairbench: ")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["run"], ["score"], ["validate"], ["run", "--workload"]])
def test_an_endless_file_takes_less_than_a_gigabyte(command):
    memory, line = limited([*command, "/dev/zero"])
    assert memory < GIB
    assert line.startswith("fairbench: /dev/zero: is too large")


PEAK = """
import resource, sys
from fairbench.cli.app import app
try:
    app()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def limited(arguments):
    """Return the peak memory (bytes) of a command that fails with code 2, and its error line."""
    command = [sys.executable, "-c", PEAK, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *lines, peak_kib = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    return 1024 * int(peak_kib), lines[0]
