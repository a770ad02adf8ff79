"""Test the comparison of an engine's own code with the model, without an engine."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.sim.run import simulate
from fairbench_calibration.validate import engine_check
from fairbench_calibration.validate.engine_check import (
    check_engine,
    check_lines,
    compared,
    random_spec,
    release_settings,
)

CODE = {"engine": "sglang", "version": "0.0.1", "digest": "0123456789abcdef"}


def with_code(result):
    return replace(result, summary={**result.summary, "engine_code": CODE})


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_random_runs_repeat_themselves_and_differ_from_each_other(engine):
    specs = [random_spec(engine, seed) for seed in range(12)]
    assert specs == [random_spec(engine, seed) for seed in range(12)]
    assert len({(one.workload.name, one.local, one.dp) for one in specs}) > 4
    assert {one.engine for one in specs} == {None if engine == "sglang" else "vllm"}


def test_equal_runs_have_no_difference():
    spec = random_spec("sglang", 3)
    found = compared(spec, simulate(spec), with_code(simulate(spec)))
    assert (found.differing, found.first) == (0, None)
    assert check_lines(found) == [f"{found.name}: {found.requests:,} requests, equal records"]


def test_the_first_difference_is_the_earliest_changed_record():
    spec = random_spec("sglang", 3)
    ours, theirs = simulate(spec), with_code(simulate(spec))
    columns = dict(theirs.requests)
    finish, admitted = (columns[name].copy() for name in ("finish_s", "admitted_s"))
    late, early = int(np.nanargmax(finish)), int(np.nanargmin(admitted))
    finish[late] += 1
    admitted[early] += 0.25
    columns |= {"finish_s": finish, "admitted_s": admitted}
    found = compared(spec, ours, replace(theirs, requests=columns))
    assert found.differing == 2
    first = found.first
    assert (first.request, first.column) == (columns["request_id"][early], "admitted_s")
    assert first.theirs == first.ours + 0.25
    assert check_lines(found)[1].startswith(f"  first: request {first.request} of {first.client}: ")


def test_a_missing_request_counts_as_a_difference():
    spec = random_spec("sglang", 3)
    ours, theirs = simulate(spec), with_code(simulate(spec))
    fewer = {name: column[1:] for name, column in ours.requests.items()}
    found = compared(spec, replace(ours, requests=fewer), theirs)
    assert (found.differing, found.first) == (1, None)


@pytest.mark.parametrize(
    ("engine", "version", "settings"),
    [
        ("sglang", "0.5.17", {"engine.release": "0.5.17"}),
        ("sglang", "0.5.23+cpu", {"engine.release": "0.5.23"}),
        ("sglang", "0.9.1", {}),
        ("vllm", "0.33.0", {"vllm.release": "0.33"}),
        ("vllm", "unknown", {}),
    ],
)
def test_the_model_follows_the_release_of_the_code(engine, version, settings):
    assert release_settings(engine, version) == settings


@pytest.mark.slow
def test_the_command_exits_with_1_after_a_difference(monkeypatch):
    def stand_in(spec, interrupted=None):
        """Simulate an engine whose chunks are smaller than the model's."""
        if spec.engine_code is None:
            return simulate(spec)
        own = {"settings": {**spec.settings, "engine.chunked_prefill_size": 512}}
        return with_code(simulate(spec.model_copy(update={"engine_code": None, **own})))

    class Installed:
        @staticmethod
        def installed(python):
            return CODE

    monkeypatch.setattr(engine_check, "simulate", stand_in)
    monkeypatch.setattr(engine_check, "through", lambda group, engine: Installed)
    assert all(one.differing for one in check_engine("python", "sglang", range(2)))
    done = CliRunner().invoke(app, ["engine-check", "--engine-code", "python", "--streams", "2"])
    assert done.exit_code == 1
    assert "sglang 0.0.1 (code 01234567): 2 of 2 runs differ from the model" in done.output
    done = CliRunner().invoke(
        app, ["engine-check", "--engine-code", "python", "--streams", "1", "--json"]
    )
    told = json.loads(done.output)
    assert told["runs"][0]["differing"] > 0
