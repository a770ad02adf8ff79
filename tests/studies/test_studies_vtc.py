"""Test figures and claims of the VTC paper, from made-up runs and short real ones."""

import re
from dataclasses import replace
from math import nan

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench.execute.tasks import RunContext
from fairbench.workloads.spec import load_workload
from fairbench_studies.kit.claims_page import write_page
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.paper_runs import fill
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc import arena, experiments, synthetic
from fairbench_studies.vtc.claims import CLAIMS
from fairbench_studies.vtc.command import VTC
from fairbench_studies.vtc.curves import FIGURES, panels_of, rows
from fairbench_studies.vtc.experiments import ARENA, EXPERIMENTS, Experiment, possible
from fairbench_studies.vtc.extremes import Extremes
from fairbench_studies.vtc.store import Results, read

SMALL = {"vtc-overload vtc": Extremes(20_000.0, 2, 1.0, 1.0, 1.0)}
HOLDS, REVERSED, UNCLEAR, _, OFF, _ = Outcome
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


def results(traces, gaps=(), extremes=()):
    return Results(traces, dict(gaps), dict.fromkeys(traces, "made up"), dict(extremes))


def told(parts):
    """Return the verdict on each part."""
    return [part.outcome for part in parts]


def missing(seeds):
    """Return the claims that cannot be judged."""
    return [one.claim.number for one in VTC.judge(seeds) if not one.parts]


def test_every_run_of_a_figure_or_claim_is_an_experiment():
    named = alike(EXPERIMENTS)
    everything = results(named, dict.fromkeys(EXPERIMENTS, 0.0), SMALL)
    assert all(panels_of(number, named) for number in FIGURES)
    assert missing([everything]) == []
    assert [claim.number for claim in CLAIMS] == [*range(18, 30), *range(51, 57)]


def test_without_the_trace_the_other_figures_are_drawn_and_judged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRBENCH_DATA", raising=False)
    assert {*possible()} == {*NO_TRACE}
    named = alike(NO_TRACE)
    drawn = {number for number in FIGURES if panels_of(number, named)}
    assert {*FIGURES} - drawn == {11, 12, 13}
    assert missing([results(named, dict.fromkeys(NO_TRACE, 0.0), SMALL)]) == [25, 26, 52, 53]
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
    # Half a minute more per second, for 300 s of the run.
    assert difference.curves[1].value[9] == pytest.approx(30 * 300, rel=0.02)
    assert rate.curves[1].value[30] == pytest.approx(30, rel=0.05)
    (first, *_) = table = rows([difference, rate])
    assert [*first] == ["panel", "curve", "x", "at", "y", "value"]
    assert len(table) == 3 * 19 + 2 * 59


@pytest.mark.parametrize(
    ("vtc", "fcfs", "outcomes"),
    [
        (served(30, 31), served(30, 300), [HOLDS, HOLDS, HOLDS]),
        (served(30, 70), served(30, 900), [HOLDS, OFF, HOLDS]),
        (served(30, 31), served(30, 31), [HOLDS, HOLDS, REVERSED]),
        (served(30, 130), served(30, 31), [REVERSED, OFF, REVERSED]),
    ],
)
def test_claims_on_overload_are_judged(vtc, fcfs, outcomes):
    named = {"vtc-overload vtc": vtc, "vtc-overload fcfs": fcfs}
    assert told(synthetic.judge_overload([results(named)])) == outcomes


@pytest.mark.parametrize(
    ("rates", "outcomes"),
    [
        ((30, 60, 90, 120), [HOLDS, HOLDS]),
        ((30, 60, 90, 135), [HOLDS, OFF]),
        ((75, 75, 75, 75), [OFF, OFF]),
    ],
)
def test_claims_on_weights_are_judged(rates, outcomes):
    one = results({"vtc-weighted vtc": served(*rates)})
    assert told(synthetic.judge_weights([one])) == outcomes


def test_a_gap_beyond_the_bound_is_reversed_in_every_seed_and_else_inconclusive():
    names = ("vtc-poisson-short-long", "vtc-poisson-short-long-2")
    named = {f"{name} vtc": served(30, 30.5) for name in names}
    named |= {f"{name} fcfs": served(30, 300) for name in names}
    within = results(named, {f"{name} vtc": 39_000.0 for name in names})
    beyond = results(named, {f"{name} vtc": 41_000.0 for name in names})
    rest = [HOLDS, HOLDS]
    assert told(synthetic.judge_poisson([within])) == [HOLDS, *rest] * 2
    assert told(synthetic.judge_poisson([beyond] * 2)) == [REVERSED, *rest] * 2
    parts = synthetic.judge_poisson([within, beyond])
    assert told(parts) == [UNCLEAR, *rest] * 2
    assert parts[0].ours == "41,000 (in 1 of 2 seeds)"


def limited(rate=288):
    """Return runs of the trace in which a limit of 30 serves this many units per second."""
    shares = {5: 0.44, 10: 0.68, 15: 0.80, 20: 0.89, 30: rate / 300}
    named = {f"{ARENA} rpm {n}": served(300 * share, refused=7) for n, share in shares.items()}
    return results({**named, f"{ARENA} vtc": served(300)})


@pytest.mark.slow
def test_rate_limits_refuse_requests_and_cost_throughput():
    parts = arena.judge_limits([limited()])
    assert told(parts) == [HOLDS, HOLDS, HOLDS]
    assert "7, 7, 7, 7, 7 refused" in parts[0].ours
    assert told(arena.judge_limits([limited(330)])) == [HOLDS, REVERSED, OFF]
    disagree = [limited(), limited(), limited(330)]
    assert told(arena.judge_limits(disagree)) == [UNCLEAR, UNCLEAR, HOLDS]


def late(growth):
    """Return clients whose requests wait longer and longer."""
    trace = served(3, 30)
    wait_s = growth * trace.req_time_s
    return replace(trace, first_token_latency_s=1 + wait_s, request_latency_s=2 + wait_s)


def test_an_order_is_judged_step_by_step():
    """All runs but one are alike, so only the steps of that run are decided."""
    named = {row.run: late(0.25) for row in arena.TABLE.values()}
    named[f"{ARENA} fcfs"] = late(0.5)
    parts = {part.text: part.outcome for part in arena.judge_arena([results(named)])}
    assert parts["mean: FCFS above LCF"] is HOLDS
    assert parts["mean: LCF above VTC"] is UNCLEAR
    assert parts["VTC: a mean of 252 (within 25%)"] is OFF
    assert len(parts) == 6 + 6 + 7


def test_the_page_names_cause_and_basis(tmp_path):
    named = alike(NO_TRACE)
    seeds = [results(named, dict.fromkeys(NO_TRACE, 0.0), SMALL)]
    judged = VTC.judge(seeds)
    text = VTC.page(judged, seeds)
    assert text.endswith("\n## Runs\n\n- made up; seed 0\n")
    rows_of_claims = re.findall(r"^\| \d+ \|.*", text, re.MULTILINE)
    assert len(rows_of_claims) == 18
    unknown = [*rows_of_claims[7:9], *rows_of_claims[13:15]]
    assert [line for line in rows_of_claims if line.endswith("| not run |")] == unknown
    markdown, table = write_page(judged, text, tmp_path, "vtc-claims")
    assert markdown.read_text() == text
    assert table.read_text().count("\n") == 1 + sum(
        len(parts) for one in judged for parts in one.parts.values()
    )


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
    fill(VTC.experiments(), tmp_path, context, seeds=1)
    runs = sorted(tmp_path.iterdir())
    assert len(runs) == 3
    fill(VTC.experiments(), tmp_path, context, seeds=1)
    assert sorted(tmp_path.iterdir()) == runs
    (found,) = read(tmp_path, 1)
    assert {*found.traces} == {*found.gaps} == {*FEW}
    (measured,) = found.extremes.items()
    assert measured[0] == "vtc-overload vtc"
    assert measured[1][:2] == (20_000.0, 2)
    assert 0 < measured[1].lead < 4 * 20_000.0
    assert all(len(trace) == 139 and not trace.refused for trace in found.traces.values())
    assert found.basis().count("engine lightllm") == 1
    assert [one.claim.number for one in VTC.judge([found]) if one.parts] == [18, 19, 54, 55]
    one = dict([*FEW.items()][:1])
    monkeypatch.setattr(experiments, "EXPERIMENTS", one)
    fill(VTC.experiments(), tmp_path, context, seeds=2)
    assert len([*tmp_path.iterdir()]) == 4
    *_, second, third = read(tmp_path, 3)
    assert {*second.traces} == {*one}
    assert not third.traces


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
