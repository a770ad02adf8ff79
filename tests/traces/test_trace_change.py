"""Test ``trace cut``, ``trace scale`` and ``trace anonymize``, which write a changed trace."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.workloads.model import SPECS
from fairbench.workloads.traces.read import TraceParams, read_trace
from fairbench.workloads.traces.table import COUNTS
from fairbench_logs.traces import change
from fairbench_logs.traces.build import TableBuilder, TraceRow
from fairbench_logs.traces.change import (
    COMBINED,
    anonymized,
    combined,
    cut_trace,
    lines_of,
    scaled,
    spread_out,
    write_trace,
)
from fairbench_logs.traces.facts import shared_prefixes
from tests.traces.trace_line import TraceLine, trace_schema

ROWS = [
    TraceRow(10**9, "alice", 100, 10, max_tokens=50, blocks=(1, 2), block_size=16),
    TraceRow(2 * 10**9, "bob", 200, 20, session="chat", end_ns=3 * 10**9),
    TraceRow(4 * 10**9, "bob", 300, 30, session="chat"),
    TraceRow(5 * 10**9, "alice", 60, 6, blocks=(1, 7, 2), block_size=16),
    TraceRow(5 * 10**9, "carol", 9, 1),
]


def table_of(rows):
    builder = TableBuilder("x")
    for row in rows:
        builder.add(row)
    return builder.table()


@pytest.fixture
def table():
    return table_of(ROWS)


def read_again(table, tmp_path):
    write_trace(table, tmp_path / "written.jsonl")
    return read_trace(TraceParams(str(tmp_path / "written.jsonl"))).trace.table(0)


def columns_of(table):
    names = [*COUNTS, "arrival_s", "end_s", "first_block", "blocks"]
    return {name: repr(getattr(table, name).tolist()) for name in names} | {"c": table.clients}


def test_a_mix_of_two_traces_is_marked_wherever_it_is_played(table, tmp_path):
    """The arrivals and clients come from the first trace, and the contents from the second."""
    senders = table_of(
        [TraceRow(n * 10**9, f"tenant-{n % 2}", 1, 1, session="s") for n in range(4)]
    )
    both = combined(senders, table)
    assert both.clients == ("tenant-0", "tenant-1")
    assert both.client.tolist() == [0, 1, 0, 1]
    assert both.arrival_s.tolist() == [0, 1, 2, 3]
    for name in ("input_tokens", "output_tokens", "max_tokens", "block_size"):
        assert getattr(both, name).tolist() == getattr(table, name).tolist()[:4]
    assert both.blocks.tolist() == [1, 2, 1, 7, 2]
    assert set(both.session.tolist()) == {-1}
    read = read_again(both, tmp_path)
    assert columns_of(read) == columns_of(both)
    assert read.synthetic == (COMBINED,)
    command = ["run", "--trace", str(tmp_path / "written.jsonl"), "--scheduler", "vtc"]
    shown = CliRunner().invoke(app, [*command, "--result-dir", str(tmp_path / "runs")]).stdout
    assert f"SYNTHETIC: {COMBINED}" in shown
    assert "workload trace-written-synthetic" in shown


def test_a_written_value_reads_back_equal(table, tmp_path):
    assert columns_of(read_again(table, tmp_path)) == columns_of(table)
    with pytest.raises(UsageError, match="the file exists already; choose another name"):
        write_trace(table, tmp_path / "written.jsonl")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device"), ValueError("NaN")]
)
@pytest.mark.parametrize("lines", [0, 2])
def test_an_interrupted_or_failed_writer_leaves_no_file(table, tmp_path, monkeypatch, error, lines):
    def until_the_end(table):
        yield from [{"time": 0.0}] * lines
        raise error

    monkeypatch.setattr(change, "lines_of", until_the_end)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write_trace(table, tmp_path / "written.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_command_leaves_no_file(tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    log.write_text('{"time": 0, "client": "a", "input_tokens": 9, "output_tokens": 3}\n' * 3)

    def terminated(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(change, "lines_of", terminated)
    words = ["trace", "cut", str(log), "--to", "9", "--output-file", str(tmp_path / "cut.jsonl")]
    assert CliRunner().invoke(app, words).exit_code == 130
    assert list(tmp_path.iterdir()) == [log]


def test_every_line_follows_the_published_schema(table, tmp_path):
    lines = list(lines_of(table))
    for line in lines:
        assert set(line) <= set(TraceLine.model_fields)
        TraceLine.model_validate(line, strict=True)
    assert lines[1] == {
        **{"time": 1.0, "client": "bob", "input_tokens": 200, "output_tokens": 20},
        **{"session": "s0", "end": 2.0},
    }
    published = SPECS / "trace.schema.json"
    assert published.read_text(encoding="utf-8") == trace_schema()
    assert json.loads(trace_schema())["required"] == ["time", "input_tokens", "output_tokens"]


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        ({"start_s": 1.0}, [1, 2, 3, 4]),
        ({"start_s": 1.0, "end_s": 4.0}, [1, 2]),
        ({"head": 2}, [0, 1]),
        ({"clients": ["alice", "carol"]}, [0, 3, 4]),
        ({"clients": ["alice", "carol"], "head": 1}, [0]),
        ({"largest": 1}, [0, 3]),
        ({"largest": 1, "start_s": 1.0}, [1, 2]),
        ({}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_part_has_exactly_the_requests_of_its_time(table, flags, rows):
    part = cut_trace(table, **flags)
    assert columns_of(part) == columns_of(table_of([ROWS[row] for row in rows]))


def test_an_impossible_cut_is_refused(table):
    with pytest.raises(UsageError, match="Did you mean 'alice'"):
        cut_trace(table, clients=["alise"])
    with pytest.raises(
        UsageError, match="the chosen part of the trace has no requests; choose a larger part"
    ):
        cut_trace(table, start_s=99.0)
    with pytest.raises(UsageError, match=r"^--to 3: must be above --from 5$"):
        cut_trace(table, start_s=5.0, end_s=3.0)
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=r"--rate .*: must be above 0"):
            scaled(table, rate)


def test_twice_the_rate_gives_half_the_times(table):
    twice = scaled(table, 2.0)
    assert twice.arrival_s.tolist() == [0, 0.5, 1.5, 2, 2]
    assert twice.end_s.tolist()[1] == 1.0


def test_requests_of_one_time_are_spread_out_with_their_ends():
    rows = [TraceRow(0, "ann", 9, 1, end_ns=3 * 10**9)] * 2 + [TraceRow(2 * 10**9, "ann", 9, 1)]
    spread = spread_out(table_of(rows))
    assert spread.arrival_s.tolist() == [0, 1, 2]
    assert spread.end_s.tolist()[:2] == [3, 4]


blocks = st.lists(st.integers(0, 5), max_size=5, unique=True)


@given(st.lists(st.tuples(blocks, st.integers(1, 80)), min_size=1, max_size=6))
def test_without_names_prompts_share_as_much(found):
    table = table_of(
        TraceRow(at, f"client {at % 2}", tokens, 1, blocks=ids, block_size=16)
        for at, (ids, tokens) in enumerate(found)
    )
    hidden = anonymized(table, b"key")
    assert shared_prefixes(hidden) == shared_prefixes(table)
    ids = dict(zip(table.blocks.tolist(), hidden.blocks.tolist(), strict=True))
    assert len(set(ids.values())) == len(ids)


def test_one_key_gives_one_label_and_another_key_another(table):
    one, again, other = (anonymized(table, key) for key in (b"a", b"a", b"b"))
    assert one.clients == again.clients
    assert one.blocks.tolist() == again.blocks.tolist()
    assert not set(one.clients) & set(other.clients)
    assert not set(one.blocks.tolist()) & set(other.blocks.tolist())


def test_texts_are_removed_and_their_sharing_stays(tmp_path):
    system = "You are a helpful assistant of Example Corp. " * 20
    log = [
        {"time": 0, "user": "jane@x.org", "messages": [chat("system", system), chat("user", "hi")]},
        {"time": 1, "user": "joe@x.org", "messages": [chat("system", system), chat("user", "yo")]},
        {"time": 2, "user": "jane@x.org", "prompt": "something else entirely"},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps(one | {"completion_tokens": 5}) for one in log))
    done = [
        CliRunner().invoke(app, ["trace", "anonymize", str(path), "-o", f"{tmp_path}/{name}.jsonl"])
        for name in ("one", "two")
    ]
    assert [one.exit_code for one in done] == [0, 0], done[0].output
    text = (tmp_path / "one.jsonl").read_text(encoding="utf-8")
    assert text != (tmp_path / "two.jsonl").read_text(encoding="utf-8")  # each has its own key
    assert not [word for word in ("Example", "jane", "joe", "hi") if word in text]
    first, second, third = map(json.loads, text.splitlines())
    assert first["client"] == third["client"] != second["client"]
    whole = len("system\n" + system) // 92
    assert first["hash_ids"][:whole] == second["hash_ids"][:whole]
    assert first["hash_ids"][-1] != second["hash_ids"][-1]
    assert not set(third["hash_ids"]) & set(first["hash_ids"])
    assert first["input_tokens"] == -(-10 * (len(system) + len("system\n\nuser\nhi\n")) // 46)


def chat(role, content):
    return {"role": role, "content": content}


def test_the_commands_write_playable_traces(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,user,isl,osl\n0,a,5,1\n1,b,6,1\n3,a,7,1\n", encoding="utf-8")
    (tmp_path / "key").write_text("a secret of some length\n", encoding="utf-8")
    commands = [
        ["cut", str(path), "--to", "2"],
        ["scale", f"{tmp_path}/0.jsonl", "--rate", "4"],
        ["anonymize", f"{tmp_path}/1.jsonl", "--key-file", f"{tmp_path}/key"],
    ]
    for number, command in enumerate(commands):
        arguments = ["trace", *command, "-o", f"{tmp_path}/{number}.jsonl"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert done.stdout == f"trace  {tmp_path}/{number}.jsonl: 2 requests of 2 clients\n"
    (_, second) = map(json.loads, (tmp_path / "2.jsonl").read_text().splitlines())
    assert (second["time"], second["input_tokens"]) == (0.25, 6)
    assert second["client"].startswith("c-")
