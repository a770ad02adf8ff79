"""Test the points of a sweep."""

from math import prod

import pytest
from hypothesis import given

from fairbench.config import identity
from fairbench.config.resolve import resolve
from fairbench.config.sweep import points, quick_form, read_sweep, with_axes
from fairbench.errors import DataError, UsageError
from tests.config.config_helpers import AXES, sweep
from tests.strategies import examples


def test_a_grid_is_every_combination_in_order():
    grid = {"workload": ["chat", "judge"], "dp": [1, 2], "scheduler": "vtc"}
    found = [(spec.workload.name, spec.dp, spec.scheduler) for spec in points(sweep(grid=grid))]
    assert found == [
        ("chat", 1, "vtc"),
        ("chat", 2, "vtc"),
        ("judge", 1, "vtc"),
        ("judge", 2, "vtc"),
    ]


def test_the_keys_of_a_point_are_resolved():
    grid = {"scheduler": "dlpm", "dlpm.quantum": [1000, 5000]}
    base = {"workload": "judge", "duration_s": 480.0, "engine.max_total_tokens": 50_000}
    expected = [
        resolve(
            {"scheduler": "dlpm", "workload": "judge", "duration_s": 480.0},
            {"dlpm.quantum": quantum, "engine.max_total_tokens": 50_000},
        )
        for quantum in (1000, 5000)
    ]
    assert points(sweep(base=base, grid=grid)) == expected


def test_a_duration_of_the_base_holds_for_every_workload():
    # 480 s is the default of tot, not of judge
    grid = {"workload": ["tot", "judge"]}
    found = points(sweep(base={"duration_s": 480.0}, grid=grid))
    assert [spec.duration_s for spec in found] == [480.0, 480.0]


def test_identical_points_run_once():
    # LPM has no quantum
    grid = {"workload": "chat", "scheduler": ["lpm", "dlpm"], "dlpm.quantum": [1000, 5000]}
    found = points(sweep(grid=grid))
    assert [spec.scheduler for spec in found] == ["lpm", "dlpm", "dlpm"]


def test_grids_add_up_and_exclusions_are_taken_out():
    grids = [{"clients": 5, "request_rate": 0.2}, {"clients": [10, 20], "request_rate": 0.1}]
    exclude = [{"clients": [20, 30], "scheduler": "d2lpm"}]
    found = points(sweep(grid=grids, exclude=exclude))
    assert [(spec.clients, spec.request_rate) for spec in found] == [(5, 0.2), (10, 0.1)]


def test_seeds_follow_the_first():
    found = points(sweep(grid={"workload": "chat", "seed": 7}, num_runs=3))
    assert [spec.seed for spec in found] == [7, 8, 9]


def test_figure_7_has_108_points_and_no_preble_on_one_replica():
    found = points(read_sweep("fig7").model_copy(update={"num_runs": 1}))
    assert len(found) == 108
    assert not [spec for spec in found if spec.dp == 1 and spec.scheduler.startswith("preble")]
    assert len({identity(spec) for spec in found}) == 108


def test_quick_sends_forty_well_behaved_programs_in_all():
    # tot has three clients, one of them heavy; chat has four and no heavy client
    base = {"duration_s": 7.0}
    two, four = (
        points(quick_form(sweep(base=base, grid={"workload": workload, "scenario": scenario})))[0]
        for workload, scenario in (("tot", "s1"), ("chat", "none"))
    )
    assert (two.num_programs, two.duration_s) == (20, None)
    assert (four.num_programs, four.duration_s) == (10, None)


@pytest.mark.parametrize(("clients", "programs"), [(3, 14), (39, 2), (50, 1)])
def test_quick_rounds_the_programs_of_a_client_up(clients, programs):
    grid = {"workload": "chat", "scenario": "none", "clients": clients}
    assert points(quick_form(sweep(grid=grid)))[0].num_programs == programs


@pytest.mark.parametrize(
    ("axes", "size"),
    [({}, (20, None)), ({"num_programs": 3}, (3, None)), ({"duration_s": 9.0}, (None, 9.0))],
)
def test_explicit_flags_override_quick(axes, size):
    quick = quick_form(sweep(grid={"workload": "tot"}))
    (found,) = points(with_axes(quick, axes, num_runs=1))
    assert (found.num_programs, found.duration_s) == size


def test_a_backend_of_the_base_stays_a_table():
    found = sweep(grid={}, base={"backend": {"kind": "emulator", "time_scale": 9.0}})
    assert points(found)[0].backend.time_scale == 9.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[grid]\nduration_s = 'x'", "duration_s = 'x': must be a valid number"),
        ("[grid]\ndp = []", "grid: all points are excluded; leave at least one"),
        (
            "[grid]\nscheduler = 'vtc'\ndp = []",
            r"grid: all points are excluded; leave at least one value in dp = \[\]$",
        ),
    ],
)
def test_an_error_in_the_points_of_a_file_names_the_file(tmp_path, text, complaint):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^{path}: {complaint}"):
        points(read_sweep(str(path)), file=str(path))


def test_an_error_in_a_flag_does_not_name_the_file(tmp_path):
    path = tmp_path / "good.toml"
    path.write_text("[grid]\ndp = [1, 2]\n")
    with pytest.raises(UsageError, match=r"^dp = 0"):
        points(with_axes(read_sweep(str(path)), {"dp": [0]}), file=str(path))


@examples(10)
@given(AXES)
def test_there_are_as_many_points_as_combinations(axes):
    swept = sweep(grid={"scheduler": "vtc", **axes})
    assert len(points(swept)) == prod(map(len, axes.values()))


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ({"grid": {"dp": []}}, "grid: all points are excluded; leave at least one"),
        (
            {"grid": {"dp": [1]}, "exclude": {"workload": "tot"}},
            "grid: all points are excluded; leave at least one",
        ),
        (
            {"grid": {"seed": list(range(101)), "dp": list(range(1, 101))}},
            "grid: has 10,100 points, and at most",
        ),
        ({"grid": {"dp": [1, 0]}}, "dp = 0"),
        ({"grid": {"scheduler": "vct"}}, "unknown scheduler 'vct'.*Did you mean 'vtc'"),
        ({"grid": {"backend": "emulatr"}}, "unknown backend 'emulatr'"),
        ({"grid": {"vtc.chargee": "input"}}, "unknown parameter of vtc 'chargee'"),
    ],
)
def test_errors_in_points_are_named(tables, complaint):
    with pytest.raises(UsageError, match=complaint):
        points(sweep(**tables))
