"""Sweeps: what a grid stands for, and what is wrong in one."""

import tomllib
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbench.config import identity
from fairbench.config.resolve import resolve
from fairbench.config.sweep import (
    make_sweep,
    overridden,
    parse_axis,
    quickened,
    read_sweep,
    sweep_names,
    to_toml,
)
from fairbench.config.sweep_points import points
from fairbench.errors import DataError, UsageError


def sweep(**tables):
    return make_sweep({"name": "s", **tables})


def test_a_grid_is_every_combination_in_order():
    grid = {"workload": ["chat", "judge"], "dp": [1, 2], "scheduler": "vtc"}
    found = [(spec.workload.name, spec.dp, spec.scheduler) for spec in points(sweep(grid=grid))]
    assert found == [
        ("chat", 1, "vtc"),
        ("chat", 2, "vtc"),
        ("judge", 1, "vtc"),
        ("judge", 2, "vtc"),
    ]


def test_a_point_is_what_its_keys_resolve_to():
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
    # 480 s is the default of tot, which judge has not.
    grid = {"workload": ["tot", "judge"]}
    found = points(sweep(base={"duration_s": 480.0}, grid=grid))
    assert [spec.duration_s for spec in found] == [480.0, 480.0]


def test_identical_points_are_one():
    # LPM has no quantum.
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


def test_figure_7_has_90_points_and_no_preble_on_one_replica():
    found = points(read_sweep("fig7").model_copy(update={"num_runs": 1}))
    assert len(found) == 90
    assert not [spec for spec in found if (spec.scheduler, spec.dp) == ("preble", 1)]
    assert len({identity(spec) for spec in found}) == 90


def test_quick_sends_forty_well_behaved_programs_in_all():
    # tot: three clients of which one misbehaves; chat without misbehaviour: four.
    base = {"duration_s": 7.0}
    two, four = (
        points(quickened(sweep(base=base, grid={"workload": workload, "scenario": scenario})))[0]
        for workload, scenario in (("tot", "s1"), ("chat", "none"))
    )
    assert (two.num_programs, two.duration_s) == (20, None)
    assert (four.num_programs, four.duration_s) == (10, None)


def test_quick_has_three_seeds_at_least():
    assert [quickened(sweep(grid={}, num_runs=n)).num_runs for n in (1, 5)] == [3, 5]


@pytest.mark.parametrize(
    ("axes", "size"),
    [({}, (20, None)), ({"num_programs": 3}, (3, None)), ({"duration_s": 9.0}, (None, 9.0))],
)
def test_what_a_flag_says_counts_more_than_quick(axes, size):
    quick = quickened(sweep(grid={"workload": "tot"}))
    (found,) = points(overridden(quick, axes, num_runs=1))
    assert (found.num_programs, found.duration_s) == size


def test_settings_may_be_nested_as_toml_nests_what_is_not_quoted():
    plain = sweep(grid={"dlpm.quantum": [1, 2], "dp": 1}, base={"engine.max_prefill_tokens": 9})
    nested = """
        base.settings.engine.max_prefill_tokens = 9
        [grid]
        dlpm.quantum = [1, 2]
        dp = 1
        """
    found = sweep(**tomllib.loads(nested))
    assert found == plain
    assert list(found.grid[0]) == ["dlpm.quantum", "dp"]  # the order of the points


def test_a_backend_of_the_base_stays_a_table():
    found = sweep(grid={}, base={"backend": {"kind": "emulator", "time_scale": 9.0}})
    assert points(found)[0].backend.time_scale == 9.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[grid]\nduration_s = 'x'", "duration_s = 'x': must be a valid number"),
        ("[grid]\ndp = []", "grid: no point is left"),
    ],
)
def test_a_file_is_blamed_for_points_that_are_its_own_fault(tmp_path, text, complaint):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=f"^{path}: {complaint}"):
        points(read_sweep(str(path)), file=str(path))


def test_a_file_is_not_blamed_for_flags(tmp_path):
    path = tmp_path / "good.toml"
    path.write_text("[grid]\ndp = [1, 2]\n")
    with pytest.raises(UsageError, match=r"^dp = 0"):
        points(overridden(read_sweep(str(path)), {"dp": [0]}), file=str(path))


AXES = st.fixed_dictionaries(
    {},
    optional={
        "workload": st.lists(st.sampled_from(["chat", "tot"]), min_size=1, unique=True),
        "dp": st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True),
        "seed": st.lists(st.integers(0, 9), min_size=1, max_size=2, unique=True),
        "vtc.charge": st.lists(st.sampled_from(["extend", "input"]), min_size=1, unique=True),
    },
)


@given(AXES)
def test_a_stored_sweep_has_the_same_points(axes):
    swept = sweep(grid={"scheduler": "vtc", **axes}, exclude=[{"dp": 3}])
    assert make_sweep(tomllib.loads(to_toml(swept))) == swept


@settings(max_examples=10)
@given(AXES)
def test_there_are_as_many_points_as_combinations(axes):
    swept = sweep(grid={"scheduler": "vtc", **axes})
    assert len(points(swept)) == prod(map(len, axes.values()))


def test_flags_replace_the_values_of_every_grid():
    swept = overridden(sweep(grid=[{"dp": [1, 2]}, {"dp": 4}]), {"dp": [8]}, num_runs=2, name="t")
    assert swept.grid == [{"dp": [8]}, {"dp": [8]}]
    assert (swept.num_runs, swept.name) == (2, "t")
    assert len(points(swept)) == 2


def test_values_of_an_axis():
    assert parse_axis("dlpm.quantum=1000, 5_000") == ("dlpm.quantum", [1000, 5000])
    assert parse_axis("vtc.charge=input") == ("vtc.charge", ["input"])
    assert parse_axis("vtc.weights={a = 2, b = 1}, {}") == ("vtc.weights", [{"a": 2, "b": 1}, {}])
    with pytest.raises(UsageError, match=r"write NAME\.PARAM=VALUE"):
        parse_axis("quantum")


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ({"grid": {"dpp": 1}}, "unknown key in grid 'dpp': .* Did you mean 'dp'"),
        ({"grid": {}, "exclude": {"schedulers": "vtc"}}, "unknown key in exclude 'schedulers'"),
        ({"grid": {}, "base": {"settings": 3}}, "unknown key in base 'settings'"),
        ({"grid": {}, "numruns": 2}, "unknown key 'numruns': .* Did you mean 'num_runs'"),
        ({"grid": {}, "num_runs": 0}, "num_runs = 0: must be greater than or equal to 1"),
        ({}, "grid: missing"),
        ({"grid": 3}, "grid = 3: must be a valid list"),
        ({"grid": {}, "name": "a/b"}, "name = 'a/b': must match pattern"),
    ],
)
def test_what_is_wrong_in_a_sweep_is_named(tables, complaint):
    with pytest.raises(UsageError, match=complaint):
        sweep(**tables)


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ({"grid": {"dp": []}}, "no point is left"),
        ({"grid": {"dp": [1]}, "exclude": {"workload": "tot"}}, "no point is left"),
        ({"grid": {"seed": list(range(101)), "dp": list(range(1, 101))}}, "10,100 points, at most"),
        ({"grid": {"dp": [1, 0]}}, "dp = 0"),
        ({"grid": {"scheduler": "vct"}}, "unknown scheduler 'vct'.*Did you mean 'vtc'"),
        ({"grid": {"backend": "emulatr"}}, "unknown backend 'emulatr'"),
        ({"grid": {"vtc.chargee": "input"}}, "unknown parameter of vtc 'chargee'"),
    ],
)
def test_what_is_wrong_with_its_points_is_named(tables, complaint):
    with pytest.raises(UsageError, match=complaint):
        points(sweep(**tables))


def test_a_file_is_called_by_its_name_and_blamed_by_its_path(tmp_path):
    good, bad = tmp_path / "mine.toml", tmp_path / "bad.toml"
    good.write_text("[grid]\ndp = [1, 2]\n")
    bad.write_text("[grid]\ndq = 1\n")
    assert read_sweep(str(good)).name == "mine"
    with pytest.raises(DataError, match=rf"{bad}: unknown key in grid 'dq'"):
        read_sweep(str(bad))
    with pytest.raises(UsageError, match=r"unknown sweep 'fig77': .* Did you mean 'fig7'"):
        read_sweep("fig77")
    assert "fig7" in sweep_names()
