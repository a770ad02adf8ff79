"""Test that a plan from a log says if the simulated cluster differs from the recorded one."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import experiment
from fairbench.sim.run import simulate

UNLIKE = "The simulated cluster does not resemble yours: the TTFT P95 of"


def log(path, *, factor=None, flood=(), seconds=60):
    """Write a log of three clients. ``factor`` adds a simulated replay's waits, multiplied."""
    rows = [(n / 2.0, f"c{n % 3}") for n in range(2 * seconds)]
    rows += [(at / 20, "heavy") for at in range(*(20 * one for one in flood))] if flood else []
    lines = [f"{at:.3f},{who},2000,50" for at, who in sorted(rows)]
    head = "timestamp,client,input_tokens,output_tokens"
    path.write_text("\n".join([head, *lines]))
    if factor is None:
        return path
    requests = simulate(experiment({"trace": str(path), "scheduler": "fcfs"}, {})).requests
    waits = sorted(
        zip(requests["arrival_s"], requests["first_token_s"] - requests["arrival_s"], strict=True)
    )
    timed = [
        f"{line},{wait * factor:.4f},{wait * factor + 1:.4f}"
        for line, (_, wait) in zip(lines, waits, strict=True)
    ]
    path.write_text("\n".join([f"{head},ttft,latency", *timed]))
    return path


def planned(file, folder, *options):
    arguments = ["plan", "--trace", file, "--slo", "ttft_p99<9s", "--dp", "1..2", "--num-runs", "1"]
    arguments += ["--no-sharing", "--scheduler", "fcfs", "--result-dir", folder, "--disable-tqdm"]
    result = CliRunner().invoke(app, [str(one) for one in [*arguments, *options]])
    assert result.exit_code in (0, 1), result.output
    return result.stdout


@pytest.mark.parametrize(
    ("factor", "flood", "who"),
    [(40.0, (), "all clients"), (0.01, (20, 30), "the other clients"), (9.0, (0, 9), "the other")],
)
def test_a_log_of_another_cluster_is_told_first(tmp_path, factor, flood, who):
    file = log(tmp_path / "log.csv", factor=factor, flood=flood)
    text = " ".join(planned(file, tmp_path / "runs").split())
    assert text.startswith(f"{UNLIKE} {who}")
    assert "Name your GPU and model with --gpu and --model." in text


@pytest.mark.parametrize("flood", [(), (20, 30)])
def test_a_log_of_this_cluster_is_planned_without_a_warning(tmp_path, flood):
    file = log(tmp_path / "log.csv", factor=1.0, flood=flood)
    answer = json.loads(planned(file, tmp_path / "runs", "--json"))
    recorded = answer["recorded"]
    assert recorded["alike"] is True
    assert recorded["logged_ttft_p95_s"] == pytest.approx(recorded["replayed_ttft_p95_s"], abs=0.3)
    (folder,) = (tmp_path / "runs").iterdir()
    stored = json.loads((folder / "answer.json").read_text())["recorded"]
    assert stored == recorded


def test_a_log_without_first_tokens_is_not_compared(tmp_path):
    answer = json.loads(planned(log(tmp_path / "log.csv"), tmp_path / "runs", "--json"))
    assert "recorded" not in answer


def test_a_plan_that_goes_on_and_its_page_say_it_again(tmp_path):
    file = log(tmp_path / "log.csv", factor=40.0)
    planned(file, tmp_path / "runs")
    (folder,) = (tmp_path / "runs").iterdir()
    again = CliRunner().invoke(app, ["plan", "--resume", str(folder), "--disable-tqdm"])
    assert again.stdout.startswith(UNLIKE)
    assert CliRunner().invoke(app, ["show", str(folder)]).stdout.startswith(UNLIKE)
    page = tmp_path / "page.html"
    assert CliRunner().invoke(app, ["report", str(folder), "-o", str(page)]).exit_code == 0
    assert UNLIKE in page.read_text(encoding="utf-8")
