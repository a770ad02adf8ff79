"""Test the map of claims: its settings, its runs end to end, its table and pictures."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from fairbench.config import identity
from fairbench.config.sweep import points
from fairbench.execute.tasks import RunContext
from fairbench.results.store import StoredRun
from fairbench_studies.dlpm.claims.map_axes import (
    AXES,
    LOAD,
    POOL,
    PROFILE,
    QUANTUM,
    RUNNING,
    WORKER_QUANTUM,
    Step,
    spec_of,
    steps_round,
)
from fairbench_studies.dlpm.claims.map_points import (
    IN_FIGURE_7,
    MAPPED,
    Chart,
    Group,
    Reading,
    groups,
    map_sweep,
)
from fairbench_studies.dlpm.claims.map_table import map_markdown, write_map
from fairbench_studies.dlpm.claims.places import Place, by_seed
from fairbench_studies.dlpm.claims.table import CLAIMS
from fairbench_studies.kit.store import filling
from tests.figure_helpers import cell
from tests.one_by_one import OneByOne
from tests.slow_params import slow

CELL = {"workload": "judge", "scenario": "s1", "dp": 2}
SET = CELL | {
    "request_rate": 0.5,
    "engine.max_running_requests": 300,
    "engine.max_total_tokens": 80_000,
    "dlpm.quantum": 1000,
    "d2lpm.worker_quantum": 30_000,
    "gpu": "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10",
}
PLACE = Place("judge", "s1", 2)
SCHEDULERS = ("lpm", "vtc", "preble", "d2lpm")
TITLES = {claim.number: claim.text for claim in CLAIMS}


def on(axis, steps):
    return [(step.label, *step.changes.values()) for step in steps if step.axis == axis]


def test_axes_vary_around_the_values_of_a_configuration():
    steps = steps_round(SET, SCHEDULERS)
    assert list(dict.fromkeys(step.axis for step in steps)) == list(AXES)
    assert on(POOL, steps) == [("1",), ("1/2", 40_000), ("1/4", 20_000)]
    assert on(RUNNING, steps) == [("2,048", 2048), ("300",), ("128", 128), ("32", 32)]
    assert on(LOAD, steps) == [("x1",), ("x2", 1.0)]
    assert on(QUANTUM, steps) == [("x0.1", 100), ("x1",), ("x10", 10_000), ("x100", 100_000)]
    assert [label for label, *_ in on(WORKER_QUANTUM, steps)] == ["x0.1", "x1", "x10", "x100"]
    assert on(PROFILE, steps) == [
        ("sglang-0.5.10",),
        ("measured-sglang", "a100-80gb/llama-3.1-8b/tp1/measured-sglang"),
    ]


def test_a_default_that_is_also_on_its_axis_occurs_once():
    steps = steps_round(SET | {"engine.max_running_requests": 128}, SCHEDULERS)
    assert on(RUNNING, steps) == [("2,048", 2048), ("128",), ("32", 32)]


def test_axes_without_effect_are_left_out():
    """An A10G has one profile, and neither LPM nor VTC has a quantum."""
    a10g = SET | {"gpu": "a10g-24gb/llama-3.2-3b", "model": "llama-3.2-3b"}
    steps = steps_round(a10g, ("lpm", "vtc"))
    assert {step.axis for step in steps} == {POOL, RUNNING, LOAD}


def test_the_map_has_the_compared_values_of_its_claims():
    for group in groups():
        compared = {name for one in group.claims for m in one.measures for name in m.compared}
        assert compared == set(group.schedulers)
    by_gpu = [spec_of({**of.cells[0], "scheduler": "vtc"}).gpu[:4] for of in groups()]
    assert by_gpu == ["a100", "a10g", "a10g"]
    assert [one.number for of in groups(quick=True) for one in of.claims] == [1, 2, 4, 5, 6, 9, 15]


def test_the_load_of_a_workload_is_relative_to_its_default_rate():
    spec = spec_of(CELL)
    own = spec.workload.scenario("s1").rate * 2
    assert on(LOAD, steps_round(CELL, SCHEDULERS))[1] == ("x2", 2 * own)


def test_points_that_axes_and_claims_share_are_run_once():
    chart = Chart.of(Group(IN_FIGURE_7, (SET,), SCHEDULERS), seeds=2)
    places = {place: len(steps) for place, steps in chart.steps.items()}
    assert places == {PLACE: 19}
    # 19 values less five further defaults. There are four schedulers, but only D2LPM has quanta.
    settings, quanta = 2 + 3 + 1 + 1, 3 + 3
    expected = 2 * (4 * (1 + settings) + quanta)
    assert len(points(map_sweep([chart], "claims-map"))) == expected


def reading(measure, place, step, runs, claim=1):
    return Reading(claim, measure, place, step, measure.seen(runs), 1)


DEFAULT, HALF = Step(POOL, "1", {}), Step(POOL, "1/2", {"engine.max_total_tokens": 1})


def two_cells():
    """Return D2LPM over VTC: 0.9x and uncontended at 1, 1.2x and 3x at 1/2."""
    rate = MAPPED[0].measures[0]
    found = []
    for dp, step, gain, contended in (
        (1, DEFAULT, 0.9, True), (2, DEFAULT, 5.0, False),
        (1, HALF, 1.2, True), (2, HALF, 3.0, True),
    ):  # fmt: skip
        runs = {
            "d2lpm": by_seed(cell("d2lpm", service_rate_tok_s=gain)),
            "vtc": by_seed(cell("vtc", service_rate_tok_s=1.0, contended=contended)),
        }
        found.append(reading(rate, Place("tot", "s1", dp), step, runs))
    return found


def test_the_table_counts_contended_cells(tmp_path):
    lines = map_markdown(two_cells(), TITLES, "simulated on x").splitlines()
    assert (
        lines[-1]
        == "| 1 | D2LPM's throughput is above VTC's | service rate | **1**: 0/1, 1/2: 2/2 |"
    )
    _, table = write_map(two_cells(), TITLES, "simulated on x", tmp_path)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["at"], row["outcome"], row["value"]) for row in rows] == [
        ("1", "reversed", "0.9"),
        ("1", "not contended", "5"),
        ("1/2", "holds", "1.2"),
        ("1/2", "holds", "3"),
    ]


def test_a_picture_has_a_line_where_the_sign_flips():
    pytest.importorskip("seaborn", reason="figures need the plot extra")
    from fairbench_studies.dlpm.claims.map_picture import draw_map

    figure = draw_map(MAPPED[0], "Claim 1", two_cells(), "simulated on x")
    panels = figure.get_axes()
    assert len(panels) == 2  # two configurations and one setting
    for panel in panels:
        low, high = panel.get_ylim()
        assert low < 1 < high
        dotted = [line for line in panel.get_lines() if line.get_linestyle() == ":"]
        assert [set(line.get_ydata()) for line in dotted] == [{1.0}]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a configuration of few programs, with the default and another quantum: five runs."""
    draft = CELL | {"num_programs": 1, "warmup_s": 0.0, "max_drain_s": 50.0}
    group = Group(IN_FIGURE_7, (draft,), SCHEDULERS)
    chart = Chart(group, {PLACE: [Step(WORKER_QUANTUM, "x1", {})]}, seeds=1)
    folder = tmp_path_factory.mktemp("runs") / "claims-map"
    return chart, folder


@pytest.mark.slow
def test_the_map_end_to_end_and_resumed(tiny):
    chart, folder = tiny
    first = filling(map_sweep([chart], folder.name), folder)
    assert len(first.jobs) == len(SCHEDULERS)
    assert first.run(RunContext(executor=OneByOne())) == []
    ten = Step(WORKER_QUANTUM, "x10", {"d2lpm.worker_quantum": 9})
    more = replace(chart, steps={PLACE: [*chart.steps[PLACE], ten]})
    second = filling(map_sweep([more], folder.name), folder)
    assert (second.points, len(second.jobs)) == (5, 1)  # only D2LPM has this quantum
    halfway = more.readings(second.store.finished())
    assert not any("d2lpm" in one.measure.compared for one in halfway if one.step.label == "x10")
    assert second.run(RunContext(executor=OneByOne())) == []
    third = filling(map_sweep([more], folder.name), folder)
    assert third.jobs == []
    readings = more.readings(third.store.finished())
    per_step = sum(len(one.measures) for one in IN_FIGURE_7)
    assert len(readings) == 2 * per_step
    rates = {one.step.label: one.seen for one in readings if one.measure is MAPPED[0].measures[0]}
    assert rates["x1"].value is not None


@pytest.mark.parametrize("count", slow(4, len(groups(quick=True))))
def test_a_chart_has_only_the_runs_of_its_own_claims(count):
    charts = [Chart.of(group, 1) for group in groups(quick=True)[:count]]
    runs = {
        identity(spec): StoredRun(Path(), {"chart": number}, {})
        for number, chart in enumerate(charts)
        for spec in points(map_sweep([chart], "one"))
    }
    for number, chart in enumerate(charts):
        assert {one["chart"] for one in chart.summaries(runs)} == {number}
