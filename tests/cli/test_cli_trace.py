"""Test that an error in a trace file or a flag is one line with exit code 2."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("t,isl,osl\n", "no records"),
        ("t,isl,osl\nx,1,1\n", "line 2: t = 'x': must be a number or an ISO 8601 time"),
        ("t,isl,osl\n1,1.5,1\n", "line 2: isl = 1.5: must be a whole number of tokens from 0 to"),
        ("t,isl,osl\n1,1,-1\n", "line 2: osl = -1: must be a whole number of tokens"),
        ("t,isl,osl\n1,1,1e9\n", "line 2: osl = 1000000000: must be a whole number of tokens"),
        ("t,isl,osl\n1,0,1\n", "no requests, but for 1 that failed"),
        ("t,isl,osl\nnan,1,1\n", "line 2: t = None: must be a number"),
        ("when,isl,osl\n1,1,1\n", "line 2: no column for time (has when, isl, osl)"),
        ("t,prompt_tokns,osl\n1,1,1\n", "Did you mean input_tokens=prompt_tokns?"),
        ("t,prompt_tokens,out\n1,1,1\n", "name it with --map output_tokens=COLUMN."),
        ('{"requests": [{"t": 1}]}', "(has requests): name it with --map time=COLUMN."),
        ("t,isl,osl\n1714564800,1,1\n1714564800000,1,1\n", "is a date, unlike the times before it"),
        ('{"t": 1, "isl": 1, "osl": [1]}', "line 1: osl = [1]: must be a number"),
        ('{"t": 1, "isl": 1, "osl": 1, "hash_ids": "x"}', "line 1: hash_ids = 'x': must be a"),
        (
            '{"t": 1, "isl": 1, "osl": 1, "hash_ids": [1]}',
            "hash_ids needs block_size: give the number of tokens",
        ),
        (
            '{"t": 1, "isl": 1, "osl": 1, "end": 0}',
            "end = 0: must not be before the arrival of the request",
        ),
        ("[1]", "record 1: must be a JSON object"),
        ('{"t": 1', "line 1: not JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("t,isl,osl\n1,1," + "1" * 5000, "must be a number"),
        ("\0\0\0", "is not text, or is UTF-16: save it as UTF-8"),
    ],
)
def test_a_file_that_is_no_trace_is_one_line(tmp_path, refused, text, complaint):
    path = tmp_path / "bad.log"
    path.write_text(text, encoding="utf-8")
    line = refused("run", "--trace", path)
    assert complaint in line, line
    assert "bad.log" in line
    assert not complaint.endswith("COLUMN.") or line.endswith(complaint)


def test_a_column_that_no_row_has_is_one_line(tmp_path, refused):
    path = tmp_path / "log.csv"
    path.write_text("t,isl,osl,tenant_name\n1,1,1,a\n2,1,1,b\n", encoding="utf-8")
    line = refused("run", "--trace", path, "--clients-from", "tenant_nam")
    assert "log.csv: unknown column 'tenant_nam'" in line
    assert "Did you mean 'tenant_name'?" in line
    assert "unknown column 'when'" in refused("run", "--trace", path, "--map", "time=when")
    assert "must be above 0" in refused("run", "--trace", path, "--time-scale", "0")
    output = tmp_path / "out.json"
    assert "must end in .jsonl" in refused("trace", "cut", path, "-o", output)
    nothing = refused("trace", "cut", path, "--from", "9", "-o", f"{output}l")
    assert nothing == "the chosen part of the trace has no requests; choose a larger part"
    assert "clients = 0: must be above 0" in refused("run", "--trace", path, "--clients", "0")
    assert "must end in .svg" in refused("trace", "inspect", path, "--plot", tmp_path / "a.gif")


def test_a_missing_file_and_an_irregular_file_are_one_line(tmp_path, refused):
    assert "no such file in the current folder or in" in refused("run", "--trace", "nowhere.csv")
    assert "is not a file" in refused("run", "--trace", tmp_path)
    assert "write FIELD=COLUMN" in refused("run", "--trace", "x", "--map", "client")
    needed = "--map time_ms=: write a column after =, because time_ms is needed"
    assert needed in refused("run", "--trace", "x", "--map", "time_ms=")
    assert "Did you mean 'client'?" in refused("run", "--trace", "x", "--map", "clint=x")


def test_a_trace_is_written_as_a_whole_or_not_at_all(tmp_path, refused):
    path = tmp_path / "log.csv"
    path.write_text("t,isl,osl\n0,5,1\n8,6,1\n")
    command = ["trace", "scale", path, "-o", tmp_path / "out.jsonl", "--rate"]
    assert refused(*command, "1e-320").startswith("--rate 1e-320: the trace would last more than")
    assert [one.name for one in tmp_path.iterdir()] == ["log.csv"]


def test_a_key_that_can_be_guessed_is_refused(tmp_path, refused):
    (tmp_path / "key").write_text("x" * 15)
    (tmp_path / "log.csv").write_text("t,isl,osl\n0,5,1\n")
    flags = ["-o", tmp_path / "out.jsonl", "--key-file", tmp_path / "key"]
    line = refused("trace", "anonymize", tmp_path / "log.csv", *flags)
    assert line.endswith("must hold at least 16 characters")


def test_written_traces_are_reported_in_json_too(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("t,user,isl,osl\n0,a,9,1\n4,b,9,1\n9,a,9,1\n", encoding="utf-8")
    output = tmp_path / "part.jsonl"
    result = CliRunner().invoke(
        app, ["trace", "cut", str(path), "--to", "5", "-o", str(output), "--json"]
    )
    written = {"file": str(output), "requests": 2, "clients": 2, "span_s": 4.0}
    assert json.loads(result.stdout) == written


@pytest.mark.parametrize(("users", "told"), [("a,,a", True), ("a,b,a", False), (",,", False)])
def test_requests_without_a_client_are_reported(tmp_path, users, told):
    path = tmp_path / "log.csv"
    rows = (f"{at},{user},9,1" for at, user in enumerate(users.split(",")))
    path.write_text("\n".join(["t,user,isl,osl", *rows]), encoding="utf-8")
    shown = CliRunner().invoke(app, ["trace", "inspect", str(path)]).stdout
    assert ("all stands for requests without a client" in shown) is told


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("run", "--scheduler", "vtc"),
        ("compare", "fcfs", "vtc", "--num-runs", "2"),
        ("plan", "--scheduler", "vtc", "--slo", "victim_p95_s<9s", "--num-runs", "1"),
    ],
)
def test_a_trace_without_heavy_clients_gets_a_note(tmp_path, command):
    """The unmarked heavy client counts as well-behaved, so the group's latency includes its own."""
    file = tmp_path / "log.csv"
    lines = [f"{number},{'ab'[number % 2]},10,2" for number in range(8)]
    file.write_text("\n".join(["time_s,client,isl,osl", *lines]))
    common = [*command, "--trace", str(file), "--disable-tqdm", "--result-dir", str(tmp_path)]
    for flags, said in (([], True), (["--misbehaving", "a"], False)):
        done = CliRunner().invoke(app, [*common, *flags])
        assert done.exit_code == 0, done.output
        text = " ".join(done.stdout.split())
        assert ("every client counts as well-behaved, because --misbehaving" in text) is said
