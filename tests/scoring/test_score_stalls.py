"""Test that ``score`` and ``diagnose`` name who stalls whom in logs with gaps between tokens."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from tests.scoring.foreign_helpers import lines


def stream(client, start, ttft, gaps, tokens, **more):
    made = {"client": client, "start": start, "ttft": ttft, "itls": gaps}
    return {**made, "input_tokens": tokens, "output_tokens": len(gaps) + 1} | more


def stalled_log(**more):
    """Return two streams that a prompt of ``bulk`` delays for 6 s, and earlier short prompts."""
    steady = [0.02] * 100
    return [
        stream("bulk", 0.0, 0.3, [0.02] * 5, 3000, id="warm", **more),
        stream("chat", 1.0, 0.1, [*steady, 6.0, *steady], 500, id="a", **more),
        stream("code", 1.5, 0.1, [*steady[:75], 6.1, *steady], 500, id="b", **more),
        stream("bulk", 3.1, 6.0, [0.02] * 5, 60_000, id="long", **more),
    ]


def told(command, *arguments):
    result = CliRunner().invoke(app, [command, *map(str, arguments), *(["--no-plan"] *
        (command == "diagnose"))])  # fmt: skip
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def counted(command, path):
    result = CliRunner().invoke(app, [command, str(path), "--json"])
    return json.loads(result.stdout)


def test_score_names_the_prompt_and_the_client_that_stalled_others(tmp_path):
    log = lines(tmp_path / "log.jsonl", stalled_log())
    found = counted("score", log)
    assert found["stall_causes"] == [
        {
            "client": "code", "request": "b", "start_s": pytest.approx(3.1), "gap_s": 6.1,
            "by": "bulk", "by_request": "long", "sent_s": 3.1, "prompt_tokens": 60_000,
            "stalls": 2, "clients": 2,
        }
    ]  # fmt: skip
    rows = {row["client"]: row for row in found["clients"]}
    assert rows["code"]["stalled_s"] == pytest.approx(5.98, abs=0.1)
    assert rows["bulk"]["stalled_s"] == 0
    text = told("score", log)
    assert "prompts of others hold up code" in text
    assert "request b of code waited 6.10 s for a token" in text
    assert "because of a prompt of bulk (request long, 60,000 tokens" in text


@pytest.mark.parametrize("also", [{}, {"worker": 0}, {"program": "p"}])
def test_diagnose_names_the_client_whose_prompts_stall_others(tmp_path, also):
    rows = stalled_log()
    for row in rows:
        row |= {"program": row["id"]} if "program" in also else also
    log = lines(tmp_path / "log.jsonl", rows)
    text = told("diagnose", log, "--scheduler", "fcfs", "--disable-tqdm")
    assert "prompts of bulk stall other clients' answers" in text
    assert "request long, 60,000 tokens" in text


def test_prompts_of_another_replica_stall_nobody(tmp_path):
    rows = stalled_log(worker=0)
    rows[-1]["worker"] = 1
    found = counted("score", lines(tmp_path / "log.jsonl", rows))
    assert {one["by"] for one in found["stall_causes"]} == {None}
    assert "no prompt was computed for most" in told("score", tmp_path / "log.jsonl")


@pytest.mark.parametrize("command", ["score", "diagnose"])
@pytest.mark.parametrize("ends", ["latency", "end", "none"])
def test_a_log_without_gaps_says_that_stalls_are_unknown(tmp_path, command, ends):
    rows = [
        {"client": name, "start": at, "ttft": 0.5, "latency": 1.0, "input_tokens": 100,
            "output_tokens": 10}
        for at, name in enumerate(["ann", "bob", "ann"])
    ]  # fmt: skip
    for row in rows:
        length = row.pop("latency")
        row |= {"latency": {"latency": length}, "end": {"end": row["start"] + length}}.get(ends, {})
        if ends == "none" and command == "diagnose":
            del row["ttft"]
        elif ends == "none":
            row["latency"] = length
    log = lines(tmp_path / "log.jsonl", rows)
    more = ["--scheduler", "fcfs"] if command == "diagnose" else []
    assert "unknown: the records hold no gaps between tokens" in told(command, log, *more)


def test_the_page_of_a_score_has_the_matrix_and_the_causes(tmp_path):
    log = lines(tmp_path / "log.jsonl", stalled_log())
    page = tmp_path / "page.md"
    told("score", log, "--report", page)
    text = page.read_text()
    assert "Who stalls whom" in text
    assert "prompts of bulk" in text
