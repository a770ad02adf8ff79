"""Test current and former names of settings, in flags, files and stored experiments."""

import json
import tomllib
from pathlib import Path

import pytest

from fairbench.config import identity, to_toml
from fairbench.config.resolve import read_spec, resolve
from fairbench.config.settings import (
    STORED_AS,
    current_keys,
    flat_settings,
    params_by_part,
    stored_tables,
)
from fairbench.config.sweep import make_sweep, points, with_axes
from fairbench.sim.run import simulate
from fairbench.workloads.spec import load_workload

BASELINES = Path(__file__).resolve().parents[2] / "results" / "baseline"
STORED = sorted(BASELINES.iterdir())
TINY = {"workload": "chat", "scenario": "none", "num_programs": 1}
VALUES = {"cluster.eviction_delay_s": 0.5, "timing.error_pct": 7.0}
EITHER = pytest.mark.parametrize(("key", "old"), STORED_AS.items())


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_a_stored_experiment_has_the_same_identity(path):
    spec = read_spec(path / "experiment.toml")
    assert identity(spec) == json.loads((path / "manifest.json").read_text())["spec_identity"]
    plain = spec.model_copy(update={"given": None})
    assert to_toml(plain) == (path / "experiment.toml").read_text(encoding="utf-8")
    assert spec.settings["cluster.eviction_delay_s"] == 0.1
    assert spec.settings["timing.error_pct"] == 0.0


def test_every_former_name_of_a_setting_has_a_current_one():
    known = {
        f"{part}.{name}" for part, params in params_by_part().items() for name in vars(params())
    }
    assert set(STORED_AS) <= known
    assert known.isdisjoint(STORED_AS.values())


@EITHER
def test_both_names_mean_the_same(key, old):
    specs = [resolve(TINY, {name: VALUES[key]}) for name in (key, old)]
    specs += [
        resolve(
            {}, {}, {**TINY, "settings": {name.split(".")[0]: {name.split(".")[1]: VALUES[key]}}}
        )
        for name in (key, old)
    ]
    workload = load_workload("chat").model_dump(mode="json", exclude_none=True)
    for name in (key, old):
        own = {**workload, "settings": {**workload["settings"], name: VALUES[key]}}
        assert resolve({**TINY, "workload": own}).settings[key] == VALUES[key]
    assert [spec.settings[key] for spec in specs] == [VALUES[key]] * 4
    assert old not in specs[1].settings
    assert len({identity(spec) for spec in specs}) == 1
    again = resolve({}, {}, tomllib.loads(to_toml(specs[0])))
    assert again == specs[0]


@EITHER
def test_a_flag_under_either_name_overrides_a_file_under_the_other(key, old):
    for flag, stored in ((key, old), (old, key)):
        part, _, param = stored.partition(".")
        file = {**TINY, "settings": {part: {param: VALUES[key]}}}
        assert resolve({}, {flag: 0.25}, file).settings[key] == 0.25


@EITHER
def test_axes_of_a_sweep_have_either_name(key, old):
    for one, other in ((key, old), (old, key)):
        sweep = make_sweep({"name": "x", "base": TINY, "grid": {one: [1.0, 2.0]}})
        assert [spec.settings[key] for spec in points(sweep)] == [1.0, 2.0]
        changed = with_axes(sweep, {other: [3.0]})
        assert [spec.settings[key] for spec in points(changed)] == [3.0]


def test_the_later_of_two_names_of_one_setting_holds():
    assert current_keys({"engine.timing_error_pct": 1, "timing.error_pct": 2}) == {
        "timing.error_pct": 2
    }


def test_tables_of_a_file_are_read_and_written_unchanged():
    settings = {"dlpm.quantum": 5, "engine.step_by_step": True, **VALUES}
    tables = stored_tables(settings)
    assert tables["engine"] == {
        "step_by_step": True, "eviction_delay_s": 0.5, "timing_error_pct": 7.0,
    }  # fmt: skip
    assert flat_settings(tables) == settings


def test_the_simulator_accepts_former_names():
    for name in ("timing.error_pct", "engine.timing_error_pct"):
        assert simulate(resolve(TINY, {name: 3.0})).summary["timing_error_pct"] == 3.0
    pool = {"engine.max_total_tokens": 4000}
    flags = {"workload": "chat", "num_programs": 8, "scheduler": "preble", "dp": 2}
    flags["request_rate"] = float("inf")
    found = [
        simulate(resolve(flags, {**pool, name: delay})).summary["duration"]
        for name in ("cluster.eviction_delay_s", "engine.eviction_delay_s")
        for delay in (0.1, 500.0)
    ]
    assert found[:2] == found[2:]
    assert found[0] != found[1]
