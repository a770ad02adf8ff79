"""Test that requests with the same time are played in the order of the file."""

import json

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app


@pytest.fixture
def played(tmp_path):
    def played(clients, *flags, times=None):
        lines = [
            {"time": at, "client": name, "input_tokens": 2000, "output_tokens": 50}
            for at, name in zip(times or [0] * len(clients), clients, strict=True)
        ]
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = ["run", "--trace", log, "--scheduler", "fcfs", "--result-dir", tmp_path / "runs"]
        result = CliRunner().invoke(app, [*map(str, words), *flags])
        assert result.exit_code == 0, result.output
        (run,) = (tmp_path / "runs").iterdir()
        table = pq.read_table(run / "requests.parquet").to_pydict()
        summary = json.loads((run / "summary.json").read_text())
        by_id = dict(zip(table["request_id"], table["client"], strict=True))
        return [by_id[one] for one in sorted(by_id)], summary["clients"]

    return played


@pytest.mark.parametrize("clients", ["babababa", "ccbbaa", "abcabc", "bbbaabab"])
def test_requests_with_the_same_time_keep_the_order_of_the_file(played, clients):
    assert played(clients)[0] == list(clients)


def test_an_earlier_time_comes_first_on_any_line(played):
    order, _ = played("cbabca", times=[5, 0, 0, 5, 0, 5])
    assert order == list("bac" + "cba")


def test_clients_that_alternate_wait_equally_long(played, tmp_path):
    _, (a, b) = played("ba" * 12)
    apart_s = abs(a["p50_s"] - b["p50_s"])
    for run in (tmp_path / "runs").iterdir():
        run.rename(tmp_path / "before")
    _, (a, b) = played("b" * 12 + "a" * 12)
    assert a["p50_s"] > b["p50_s"] + 5 * apart_s
