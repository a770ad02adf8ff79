"""``fairbench diagnose`` on logs with known answers: replicas, floods, and doubtful replays."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app

HEADER = "time,client,input_tokens,output_tokens"


def invoke(*arguments):
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments), "--disable-tqdm"])


def said(*arguments):
    """Return the text of a diagnosis in one line."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.split())


def numbers(*arguments):
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def steady(clients, every_s, until_s):
    """Return (time, client) of clients that send a request every ``every_s`` seconds."""
    count = int(until_s / every_s)
    sent = [
        ((n + code / clients) * every_s, f"c{code}")
        for n in range(count)
        for code in range(clients)
    ]
    return sorted(sent)


def written(path, rows, header=HEADER):
    lines = [",".join(str(cell) for cell in row) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.mark.parametrize("engine", ["sglang", "vllm", "lightllm"])
def test_a_light_load_needs_one_replica_of_each_engine(engine, tmp_path):
    """Two requests a second of 1,000 and 100 tokens: an A100 serves some 10 of them."""
    log = written(tmp_path / "log.csv", [(*one, 1000, 100) for one in steady(10, 5.0, 100.0)])
    found = numbers(log, "--no-plan", "--scheduler", "fcfs", "--engine", engine)
    assert found["dp"] == 1
    assert found["schedulers"][0]["others_p95_s"] < 1.0
