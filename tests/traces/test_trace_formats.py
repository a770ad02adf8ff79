"""Test each trace format on a few made-up lines: detection and reading."""

import json

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.workloads.traces import FORMATS
from fairbench.workloads.traces.programs import prompt_of_row, runs_of
from fairbench.workloads.traces.read import TraceParams, read_trace


def lines(*objects):
    return "\n".join(json.dumps(one) for one in objects)


MOONCAKE = lines(
    {"timestamp": 0, "input_length": 1030, "output_length": 6, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 7]},
    {"timestamp": 3000, "input_length": 1024, "output_length": 3, "hash_ids": [0, 1]},
)
STEP = {"src": "swe", "session": "x", "output_length": 2}
AGENT = lines(
    {**STEP, "step": 0, "t": 1760428436.5, "input_length": 20, "hash_ids": [5, 6]},
    {**STEP, "step": 1, "t": 1760428438.0, "input_length": 33, "hash_ids": [5, 6, 8]},
)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,\
Total tokens,Log Type
5,a,2.5,ChatGPT,472,18,490,Conversation log
45,a,1,ChatGPT,1087,230,1317,Conversation log
50,,1,GPT-4,9,0,9,API log
118,,7,GPT-4,417,276,693,API log
"""
ARENA = lines(
    {"t": 0.0, "client": 13, "prompt_len": 13, "output_len": 199},
    {"t": 0.207938, "client": 2, "prompt_len": 36, "output_len": 137},
)
RUN = {"client": [1, 0], "prompt_len": [256, 99], "output_len": [7, 8], "req_time": [2.0, 0.5]}
VTC = lines({"path": "a", **RUN}, {"path": "b", **RUN, "req_time": [0.25, 1.5]})
TURN = {"type": "n", "in": 100, "out": 5, "hash_ids": [1], "api_time": 1.0}
SESSION = {"id": "x", "block_size": 64, "hash_id_scope": "local"}
WEKA = lines(
    SESSION | {"requests": [TURN | {"t": 0.0}, TURN | {"t": 4.0, "in": 130}]},
    SESSION | {"id": "y", "requests": [TURN | {"t": 2.0}]},
)

ANSWERS = {  # format: (text, clients, (arrival, client, input, output) of each request)
    "mooncake": (MOONCAKE, ["all"], [(0, 0, 1030, 6), (0, 0, 600, 4), (3, 0, 1024, 3)]),
    "agent": (AGENT, ["swe"], [(0, 0, 20, 2), (1.5, 0, 33, 2)]),
    "azure": (AZURE, ["all"], [(0, 0, 4808, 10), (0.052, 0, 3180, 8)]),
    "burstgpt": (BURSTGPT, ["all"], [(0, 0, 472, 18), (40, 0, 1087, 230), (113, 0, 417, 276)]),
    "weka": (WEKA, ["all"], [(0, 0, 100, 5), (2, 0, 100, 5), (4, 0, 130, 5)]),
    "arena": (ARENA, ["2", "13"], [(0, 1, 13, 199), (0.207938, 0, 36, 137)]),
}


NESTED = ("servegen", "vtc", "serving", "vllm", "sglang", "otel", "guidellm", "llmperf")
assert set(NESTED) < set(FORMATS)


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.log"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


def rows_of(table):
    columns = (table.arrival_s, table.client, table.input_tokens, table.output_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_format_is_detected_and_read(write, name):
    text, clients, rows = ANSWERS[name]
    read = read_trace(TraceParams(write(text)))
    assert read.format == name
    assert list(read.trace.clients) == clients
    assert rows_of(read.trace.table(0)) == rows
    assert read_trace(TraceParams(write(text), format=name)).trace.clients == tuple(clients)
    for other in NESTED:  # a named format is trusted, and missing fields are reported
        if other != name:
            with pytest.raises(
                (DataError, UsageError), match=r"no requests|wrong type|runs: choose"
            ):
                read_trace(TraceParams(write(text), format=other))


def test_blocks_of_mooncake_have_512_tokens(write):
    table = read_trace(TraceParams(write(MOONCAKE))).trace.table(0)
    prompts = [prompt_of_row(table, runs_of(table), row, "own") for row in range(3)]
    first = ("block-0", 512)
    # Only block 2 ever follows block 1, so both are one segment.
    assert prompts[0] == (first, ("block-1", 512 + 6))
    assert prompts[1] == (first, ("block-7", 88))
    assert prompts[2] == (first, ("block-1", 512))


def test_batches_are_spread_until_the_next_one(write):
    read = read_trace(TraceParams(write(MOONCAKE), spread=True))
    assert read.trace.table(0).arrival_s.tolist() == [0, 1.5, 3]


def test_a_session_is_one_program_and_failures_are_left_out(write):
    trace = read_trace(TraceParams(write(BURSTGPT))).trace
    assert trace.left_out == 1
    (at_s, session), (later_s, alone) = trace.programs(0, None, 1.0)
    assert (at_s, later_s) == (0, 113)
    assert [call.think_s for call in session.calls] == [37.5, 0]  # 45 - (5 + 2.5) s
    assert [call.gap_s for call in session.calls] == [0, 0]
    assert len(alone.calls) == 1
    (twice, _) = trace.programs(0, None, 2.0)
    assert twice.item.calls[0].think_s == 18.75


def test_models_may_be_the_clients(write):
    trace = read_trace(TraceParams(write(BURSTGPT), columns="client=Model")).trace
    assert trace.clients == ("ChatGPT", "GPT-4")


def test_a_run_is_chosen_by_its_line(write):
    with pytest.raises(UsageError, match="holds 2 runs: choose one with --trace-line 1 to 2"):
        read_trace(TraceParams(write(VTC)))
    with pytest.raises(UsageError, match="--trace-line 3: must be between 1 and 2"):
        read_trace(TraceParams(write(VTC), line=3))
    read = read_trace(TraceParams(write(VTC), line=2))
    assert (read.format, read.trace.clients) == ("vtc", ("0", "1"))
    assert rows_of(read.trace.table(0)) == [(0, 1, 256, 7), (1.25, 0, 99, 8)]


def test_lists_of_a_run_have_equal_lengths(write):
    with pytest.raises(DataError, match="must be a list as long as the other lists"):
        read_trace(TraceParams(write(lines({**RUN, "client": [1]}))))


def test_runs_measured_on_servers_have_their_lists_inside(write):
    columns = {
        "client": ["ann", "bob", "ann"],
        "submit_s": [2.0, 0.5, 1.0],
        "prompt_tokens": [10, 20, 30],
        "output_tokens": [3, 4, 0],
        "ttft_s": [0.1, 0.1, 0.0],
        "latency_s": [1.5, 0.5, 0.0],
        "error": [None, None, "HTTP 429"],
    }
    run = {"run_id": "x", "engine": "vllm", "columns": columns}
    path = write(f"{json.dumps(run)}\n{json.dumps(run | {'columns': 3})}\n")
    with pytest.raises(UsageError, match="holds 2 runs: choose one with --trace-line 1 to 2"):
        read_trace(TraceParams(path))
    read = read_trace(TraceParams(path, line=1))
    assert (read.format, read.trace.clients, read.trace.left_out) == ("serving", ("ann", "bob"), 1)
    assert rows_of(read.trace.table(0)) == [(0, 1, 20, 4), (1.5, 0, 10, 3)]
    assert read.trace.table(0).end_s.tolist() == [0.5, 3.0]
    with pytest.raises(DataError, match=r"line 2: the JSON list .submit_s. .field start. is"):
        read_trace(TraceParams(path, line=2))


def test_trace_line_is_refused_for_a_file_with_a_single_run(write):
    path = write("time,isl,osl\n0,1,1\n1,2,2\n")
    with pytest.raises(
        UsageError,
        match=r"^--trace-line 1: cannot be given for this file, which holds a single run",
    ):
        read_trace(TraceParams(path, line=1))
