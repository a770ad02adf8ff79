"""Test the points of a grid and the errors in a sweep."""

import tomllib
from math import inf

import pytest
from hypothesis import given

from fairbench.config.sweep import (
    make_sweep,
    parse_axis,
    points,
    quick_form,
    read_sweep,
    sweep_names,
    sweep_toml,
    with_axes,
)
from fairbench.errors import DataError, UsageError
from tests.config.config_helpers import AXES, sweep


def test_quick_has_at_least_three_seeds():
    assert [quick_form(sweep(grid={}, num_runs=n)).num_runs for n in (1, 5)] == [3, 5]


def test_settings_may_be_nested_as_in_toml_without_quotes():
    plain = sweep(grid={"dlpm.quantum": [1, 2], "dp": 1}, base={"engine.max_prefill_tokens": 9})
    nested = """
        base.settings.engine.max_prefill_tokens = 9
        [grid]
        dlpm.quantum = [1, 2]
        dp = 1
        """
    found = sweep(**tomllib.loads(nested))
    assert found == plain
    # the order of the keys is that of the points
    assert list(found.grid[0]) == ["dlpm.quantum", "dp"]


@given(AXES)
def test_a_stored_sweep_has_the_same_points(axes):
    swept = sweep(grid={"scheduler": "vtc", **axes}, exclude=[{"dp": 3}])
    assert make_sweep(tomllib.loads(sweep_toml(swept))) == swept


def test_a_stored_sweep_keeps_infinities():
    """Sweeps are stored as JSON, which has no infinity."""
    swept = sweep(grid={"request_rate": [1.0, inf], "fair-finish.slack": inf}, base={"seed": 1})
    assert make_sweep(tomllib.loads(sweep_toml(swept))) == swept


def test_flags_replace_the_values_of_every_grid():
    swept = with_axes(sweep(grid=[{"dp": [1, 2]}, {"dp": 4}]), {"dp": [8]}, num_runs=2, name="t")
    assert swept.grid == [{"dp": [8]}, {"dp": [8]}]
    assert (swept.num_runs, swept.name) == (2, "t")
    assert len(points(swept)) == 2


def test_an_axis_accepts_its_values():
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
        ({"grid": [3]}, r"grid\.0 = 3: must be a valid"),
        ({"grid": {}, "base": 3}, "base = 3: must be a valid"),
        ({"grid": {}, "name": "a/b"}, "name = 'a/b': must match pattern"),
    ],
)
def test_errors_in_a_sweep_are_named(tables, complaint):
    with pytest.raises(UsageError, match=complaint):
        sweep(**tables)


def test_messages_name_a_file_as_it_was_given_and_errors_name_its_path(tmp_path):
    good, bad = tmp_path / "mine.toml", tmp_path / "bad.toml"
    good.write_text("[grid]\ndp = [1, 2]\n")
    bad.write_text("[grid]\ndq = 1\n")
    assert read_sweep(str(good)).name == "mine"
    with pytest.raises(DataError, match=rf"{bad}: unknown key in grid 'dq'"):
        read_sweep(str(bad))
    with pytest.raises(UsageError, match=r"unknown sweep 'fig77': .* Did you mean 'fig7'"):
        read_sweep("fig77")
    assert "fig7" in sweep_names()
