"""Test that claims of the VTC and Preble papers can be judged from the values of each seed."""

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench_studies.kit.rows import ROOT, read_rows, write_rows
from fairbench_studies.preble.command import PREBLE
from fairbench_studies.vtc.command import VTC
from fairbench_studies.vtc.experiments import EXPERIMENTS
from tests.studies import test_studies_preble as preble
from tests.studies import test_studies_vtc as vtc

RESULTS = ROOT / "results"


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def of_vtc():
    """Return three seeds of made-up runs of every experiment, with uneven clients in some runs."""
    named = vtc.alike(EXPERIMENTS)
    named["vtc-overload fcfs"] = vtc.served(30, 300)
    named["vtc-weighted vtc"] = vtc.served(30, 61, 90, 119)
    named["vtc-increasing fcfs"] = vtc.served(3, 3, wait_s=1 / 3)
    gaps = {**dict.fromkeys(EXPERIMENTS, 0.1), "vtc-poisson-short-long vtc": 39_999.9}
    return [
        vtc.results(named, gaps, {"vtc-overload vtc": vtc.SMALL["vtc-overload vtc"]._replace(
            lead=100.0 * seed)}) for seed in range(3)
    ]  # fmt: skip


def of_preble():
    change = preble.scaled(1.2345678901234567, figure="fig5", system="round-robin")
    return preble.results(change, noise=(1.0, 1.5, 0.7))


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "made"), [(VTC, of_vtc), (PREBLE, of_preble)])
def test_claims_are_the_same_from_runs_and_from_their_values(tmp_path, paper, made):
    results = made()
    expected = paper.page(paper.judge(results), results)
    (tmp_path / "seeds").mkdir()
    write_rows(tmp_path / "seeds" / f"{paper.name}.csv", paper.keep(results))
    target = tmp_path / "new"
    result = invoke(paper.name, "--from", tmp_path, "--claims-dir", target)
    assert result.exit_code == 0, result.output
    assert (target / f"{paper.name}-claims.md").read_text() == expected
    assert result.stdout.endswith(expected)
    assert expected.count("| not run |") == 0


@pytest.mark.parametrize("name", ["vtc", "preble"])
def test_the_stored_page_is_what_the_stored_values_give(tmp_path, name):
    assert invoke(name, "--from", RESULTS, "--claims-dir", tmp_path).exit_code == 0
    for page in (f"{name}-claims.md", f"{name}-claims.csv"):
        assert (tmp_path / page).read_bytes() == (RESULTS / page).read_bytes()


@pytest.mark.slow
def test_a_claim_without_stored_values_is_not_judged():
    results = of_vtc()
    VTC.judge(results)
    rows = [row for row in VTC.keep(results) if row["workload"] != "vtc-weighted"]
    again = VTC.judge(VTC.recall(rows))
    assert [one.claim.number for one in again if not one.parts] == [28]


def test_a_changed_value_changes_the_verdict():
    results = of_vtc()
    VTC.judge(results)
    rows = VTC.keep(results)
    (lead,) = [row for row in rows if row["measure"] == "extremes of theorems"][2:]
    assert lead["value"] == "[20000.0,2,200.0,1.0,1.0]"
    lead["value"] = "[20000.0,2,80001.0,1.0,1.0]"
    parts = {one.claim.number: one.parts["here"] for one in VTC.judge(VTC.recall(rows))}
    assert [vtc.told(parts[number]) for number in (54, 55)] == [[vtc.REVERSED], [vtc.HOLDS]]


@pytest.mark.parametrize(
    "text", ["workload,seed\nvtc-overload,0\n", "workload,seed\nx\n", "workload\n"]
)
@pytest.mark.parametrize("paper", ["vtc", "preble"])
def test_a_file_of_something_else_is_an_error_in_one_line(tmp_path, paper, text):
    missing = invoke(paper, "--from", tmp_path, "--claims-dir", tmp_path / "new")
    assert missing.stderr.count("\n") == 1
    assert f"{paper}.csv: no such file; run `fairbench reproduce {paper}`" in missing.stderr
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / f"{paper}.csv").write_text(text)
    result = invoke(paper, "--from", tmp_path, "--claims-dir", tmp_path / "new")
    assert (result.exit_code, result.stderr.count("\n")) == (missing.exit_code, 1)
    assert "holds no per-seed values" in result.stderr


def test_rows_of_a_file_are_the_rows_that_were_written(tmp_path):
    results = of_preble()
    write_rows(tmp_path / "preble.csv", PREBLE.keep(results))
    assert PREBLE.recall(read_rows(tmp_path / "preble.csv")) == results
