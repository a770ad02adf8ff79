"""Test figures and claims of the VTC paper, from made-up runs and short real ones."""

from math import nan

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench.execute.context import RunContext
from fairbench.workloads.spec import load_workload
from fairbench_studies.kit.claim import Verdict
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc import arena, experiments, synthetic
from fairbench_studies.vtc.claims import CLAIMS
from fairbench_studies.vtc.curves import FIGURES, panels_of, rows
from fairbench_studies.vtc.experiments import ARENA, EXPERIMENTS, Experiment, possible
from fairbench_studies.vtc.store import Results, fill, read
from fairbench_studies.vtc.table import judge_vtc, missing, vtc_markdown, write_vtc

NO_TRACE = {name: one for name, one in EXPERIMENTS.items() if one.workload != ARENA}


def served(*per_s, wait_s=1.0, until_s=600, refused=0):
    """Return clients served at given rates, in requests of 3 units that take a second each."""
    found = [
        (client, 1, 1, at_s, wait_s, wait_s + 1)
        for client, units in enumerate(per_s)
        for at_s in np.arange(0, until_s, 3 / units)
    ]
    found += [(0, 1, 1, 1.0, nan, nan)] * refused
    columns = [np.array(column) for column in zip(*found, strict=True)]
    return Trace(*columns)


def alike(names):
    """Return the same values for every client of each run's workload."""
    count = {name: load_workload(EXPERIMENTS[name].workload).clients for name in names}
    made = {clients: served(*[3] * clients) for clients in {*count.values()}}
    return {name: made[clients] for name, clients in count.items()}


def results(traces, gaps=()):
    return Results(traces, dict(gaps), dict.fromkeys(traces, "made up"))


def test_every_run_of_a_figure_or_claim_is_an_experiment():
    named = alike(EXPERIMENTS)
    everything = results(named, dict.fromkeys(EXPERIMENTS, 0.0))
    assert all(panels_of(number, named) for number in FIGURES)
    assert missing(judge_vtc(everything)) == []
    assert [claim.number for claim in CLAIMS] == list(range(18, 30))


def test_without_the_trace_the_other_figures_are_drawn_and_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRBENCH_DATA", raising=False)
    assert {*possible()} == {*NO_TRACE}
    named = alike(NO_TRACE)
    drawn = {number for number in FIGURES if panels_of(number, named)}
    assert {*FIGURES} - drawn == {11, 12, 13}
    assert missing(judge_vtc(results(named, dict.fromkeys(NO_TRACE, 0.0)))) == [25, 26]
    with pytest.raises(DataError, match="FAIRBENCH_DATA"):
        EXPERIMENTS[f"{ARENA} vtc"].spec()


def test_experiments_differ_and_can_be_resolved():
    specs = [one.spec() for one in NO_TRACE.values()]
    assert len({str(spec) for spec in specs}) == len(NO_TRACE)
    assert {spec.engine for spec in specs} == {"lightllm"}


def test_figure_3_equals_hand_computed_values():
    even, uneven = served(30, 30), served(30, 60)
    named = {f"vtc-overload {name}": even for name in ("vtc", "mdrr")}
    difference, rate = panels_of(3, {**named, "vtc-overload fcfs": uneven})
    assert [curve.name for curve in difference.curves] == ["VTC", "FCFS", "MDRR"]
    assert difference.curves[0].value.max() == pytest.approx(0, abs=3)
    # Half a minute more per second for 300 s of the run.
    assert difference.curves[1].value[9] == pytest.approx(30 * 300, rel=0.02)
    assert rate.curves[1].value[30] == pytest.approx(30, rel=0.05)
    (first, *_) = table = rows([difference, rate])
    assert [*first] == ["panel", "curve", "x", "at", "y", "value"]
    assert len(table) == 3 * 19 + 2 * 59


@pytest.mark.parametrize(
    ("vtc", "fcfs", "verdict"),
    [
        (served(30, 31), served(30, 300), Verdict.REPRODUCED),
        (served(30, 70), served(30, 900), Verdict.DIRECTION_ONLY),
        (served(30, 31), served(30, 31), Verdict.NOT_REPRODUCED),
    ],
)
def test_claims_on_overload_are_judged(vtc, fcfs, verdict):
    named = {"vtc-overload vtc": vtc, "vtc-overload fcfs": fcfs}
    assert synthetic.judge_overload(results(named)).verdict is verdict


@pytest.mark.parametrize(
    ("rates", "verdict"),
    [
        ((30, 60, 90, 120), Verdict.REPRODUCED),
        ((30, 60, 90, 135), Verdict.DIRECTION_ONLY),
        ((75, 75, 75, 75), Verdict.NOT_REPRODUCED),
    ],
)
def test_claims_on_weights_are_judged(rates, verdict):
    assert synthetic.judge_weights(results({"vtc-weighted vtc": served(*rates)})).verdict is verdict


def test_a_gap_beyond_the_bound_is_not_reproduced():
    names = ("vtc-poisson-short-long", "vtc-poisson-short-long-2")
    named = {f"{name} {local}": served(30, 30) for name in names for local in ("vtc", "fcfs")}
    named |= {f"{name} fcfs": served(30, 300) for name in names}
    within = results(named, {f"{name} vtc": 39_000.0 for name in names})
    beyond = results(named, {f"{name} vtc": 41_000.0 for name in names})
    assert synthetic.judge_poisson(within).verdict is Verdict.REPRODUCED
    assert synthetic.judge_poisson(beyond).verdict is Verdict.NOT_REPRODUCED


def test_rate_limits_refuse_requests_and_cost_throughput():
    shares = {5: 0.44, 10: 0.68, 15: 0.80, 20: 0.89, 30: 0.96}
    named = {f"{ARENA} rpm {n}": served(300 * share, refused=7) for n, share in shares.items()}
    named[f"{ARENA} vtc"] = served(300)
    found = arena.judge_limits(results(named))
    assert found.verdict is Verdict.REPRODUCED
    assert "7, 7, 7, 7, 7 refused" in found.ours
    named[f"{ARENA} rpm 30"] = served(330)
    assert arena.judge_limits(results(named)).verdict is Verdict.NOT_REPRODUCED


def test_the_table_names_cause_and_basis(tmp_path):
    named = alike(NO_TRACE)
    judged = judge_vtc(results(named, dict.fromkeys(NO_TRACE, 0.0)))
    text = vtc_markdown(judged, "made up")
    assert text.endswith("The verdicts are those of seed 0, made up.\n")
    assert text.count("\n| ") == 1 + len(judged)
    markdown, table = write_vtc(judged, "made up", tmp_path)
    assert markdown.read_text() == text
    assert table.read_text().count("\n") == 1 + len(judged)


def test_different_verdicts_of_other_seeds_are_shown():
    shares = {5: 0.44, 10: 0.68, 15: 0.80, 20: 0.89, 30: 0.96}
    same = {f"{ARENA} rpm {n}": served(300 * share, refused=7) for n, share in shares.items()}
    same[f"{ARENA} vtc"] = served(300)
    other = {**same, f"{ARENA} rpm 30": served(330)}
    judged = {one.claim.number: one for one in judge_vtc(results(same), [results(same)])}
    (number,) = judged
    assert not judged[number].finding.beside
    (found,) = judge_vtc(results(same), [results(same), results(other)])
    assert found.finding.beside == {"seed 2": Verdict.NOT_REPRODUCED}
    assert "**reproduced** (seed 2: not reproduced)" in vtc_markdown([found], "made up", 3)
    assert "Seeds 1 to 2 give the same" in vtc_markdown([found], "made up", 3)


FEW = {
    f"vtc-overload {local}": Experiment("vtc-overload", local, duration_s=31.0)
    for local in ("vtc", "fcfs", "mdrr")
}


class InThisProcess:
    """An executor without other processes."""

    def run(self, tasks, interrupted):
        for number, task in enumerate(tasks):
            yield number, task(interrupted)


def test_a_store_is_filled_once_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(experiments, "EXPERIMENTS", FEW)
    context = RunContext(executor=InThisProcess())
    fill(tmp_path, context)
    runs = sorted(tmp_path.iterdir())
    assert len(runs) == 3
    fill(tmp_path, context)
    assert sorted(tmp_path.iterdir()) == runs
    found = read(tmp_path)
    assert {*found.traces} == {*found.gaps} == {*FEW}
    assert all(len(trace) == 139 and not trace.refused for trace in found.traces.values())
    assert found.basis().count("engine lightllm") == 1
    assert [one.claim.number for one in judge_vtc(found)] == [18, 19]
    one = dict([*FEW.items()][:1])
    monkeypatch.setattr(experiments, "EXPERIMENTS", one)
    fill(tmp_path, context, seeds=2)
    assert len([*tmp_path.iterdir()]) == 4
    assert {*read(tmp_path, seed=1).traces} == {*one}
    assert not read(tmp_path, seed=2).traces


@pytest.mark.slow
def test_the_command_draws_and_judges(tmp_path, monkeypatch):
    pytest.importorskip("seaborn", reason="figures need the plot extra")
    monkeypatch.setattr(experiments, "EXPERIMENTS", FEW)
    folders = [f"{name}={tmp_path / name}" for name in ("output-dir", "claims-dir", "result-dir")]
    arguments = ["reproduce", "vtc", "--disable-tqdm", *(f"--{folder}" for folder in folders)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    files = sorted(path.name for path in (tmp_path / "output-dir").iterdir())
    assert files == ["vtc-fig3.csv", "vtc-fig3.svg"]
    assert "not judged" in result.stderr
    assert "| 18 |" in (tmp_path / "claims-dir" / "vtc-claims.md").read_text()
