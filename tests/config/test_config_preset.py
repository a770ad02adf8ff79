"""Test presets: a paper's documented settings, overridden by the user's."""

from math import inf

import pytest

from fairbench.config.defaults import preset_names, read_preset
from fairbench.config.resolve import experiment, read_spec, resolve
from fairbench.config.spec import identity, to_toml
from fairbench.config.sweep import make_sweep, points
from fairbench.errors import DataError, UsageError

PAPER = {"preset": "dlpm-paper", "workload": "judge"}

MINE = """
description = "mine"
paper = "none"
[[facts]]
key = "{key}"
value = 2
source = "here"
"""


@pytest.mark.parametrize("name", preset_names())
def test_every_fact_of_a_preset_reaches_the_experiment(name):
    preset = read_preset(name)
    spec = resolve({"preset": name, "local": "dlpm", "router": "d2lpm"})
    for key, value in preset.experiment.items():
        if key not in ("gpu", "engine"):
            assert getattr(spec, key) == value
    assert spec.gpu.startswith(preset.values["gpu"])
    assert (spec.engine or "sglang") == preset.values["engine"]
    assert all(spec.settings.get(key, value) == value for key, value in preset.settings.items())
    assert all(fact.source for fact in preset.facts)


def test_the_dlpm_paper_used_a_pool_of_20000_and_a_program_every_two_seconds():
    spec = resolve(PAPER | {"scheduler": "d2lpm", "dp": 4})
    assert spec.settings["engine.max_total_tokens"] == 20_000
    assert spec.settings["engine.max_running_requests"] == 2048  # the workload judge itself sets 64
    assert spec.settings["dlpm.quantum"] == 50_000
    assert spec.settings["d2lpm.worker_quantum"] == 100_000
    good = spec.client_plans()[1]
    assert (good.arrivals.num_programs, spec.duration_s, spec.burstiness) == (50, None, inf)
    assert good.arrivals.rates[0].programs_per_s == 0.5 * 4


def test_flags_and_settings_override_a_preset():
    spec = resolve(
        PAPER | {"num_programs": 7, "request_rate": 3.0, "burstiness": 1.0},
        {"engine.max_total_tokens": 50_000, "dlpm.quantum": 9},
    )
    assert spec.settings["engine.max_total_tokens"] == 50_000
    assert (spec.num_programs, spec.request_rate, spec.burstiness) == (7, 3.0, 1.0)
    assert resolve(PAPER, {"dlpm.quantum": 9}).settings["dlpm.quantum"] == 9


def test_a_stored_experiment_repeats_and_follows_another_preset(tmp_path):
    spec = resolve(PAPER | {"scheduler": "vtc", "dp": 2})
    file = tmp_path / "experiment.toml"
    file.write_text(to_toml(spec), encoding="utf-8")
    assert read_spec(file) == spec
    other = resolve({"preset": "vtc-paper"}, {}, {"preset": "dlpm-paper"})
    assert (other.engine, other.settings["lightllm.max_total_tokens"]) == ("lightllm", 10_000)


def test_the_name_of_a_preset_has_no_meaning():
    spec = resolve(PAPER)
    assert identity(spec) == identity(spec.model_copy(update={"preset": None}))


def test_a_sweep_may_have_a_preset():
    swept = make_sweep({"name": "s", "base": PAPER, "grid": {"dp": [1, 2]}})
    assert [spec.settings["engine.max_total_tokens"] for spec in points(swept)] == [20_000] * 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"preset": "dlpm-papre"}, "unknown preset 'dlpm-papre'.* Did you mean 'dlpm-paper'"),
        ({**PAPER, "engine": "vllm"}, "engine = 'vllm': preset dlpm-paper is for engine 'sglang'"),
        (
            {**PAPER, "workload": "vtc-overload", "engine": "lightllm"},
            "preset dlpm-paper is for engine",
        ),
        ({**PAPER, "workload": "long-qa"}, "holds no document of 21,449 tokens"),
        (
            {**PAPER, "backend": {"kind": "emulator"}},
            "preset = 'dlpm-paper': presets need the simulator",
        ),
        (
            {**PAPER, "backend": {"kind": "sglang"}},
            "preset = 'dlpm-paper': presets need the simulator",
        ),
    ],
)
def test_conflicts_with_a_preset_are_one_line(flags, message):
    with pytest.raises(UsageError, match=message) as caught:
        resolve(flags)
    assert "\n" not in str(caught.value)


def test_long_qa_runs_with_a_pool_that_the_user_gives():
    spec = resolve(PAPER | {"workload": "long-qa"}, {"engine.max_total_tokens": 50_000})
    assert spec.settings["engine.max_total_tokens"] == 50_000


def test_a_preset_of_the_user_is_a_file(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE.format(key="dp"), encoding="utf-8")
    assert resolve({"preset": str(mine)}).dp == 2
    mine = tmp_path / "wrong.toml"
    mine.write_text(MINE.format(key="replicas"), encoding="utf-8")
    with pytest.raises(DataError, match=r"wrong\.toml: unknown key 'replicas'"):
        resolve({"preset": str(mine)})


def test_a_preset_without_an_engine_leaves_the_engine_to_the_user(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(MINE.format(key="dp"), encoding="utf-8")
    assert resolve({"preset": str(mine), "engine": "vllm"}).engine == "vllm"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("engine.chunk", "unknown parameter of engine 'chunk'"),
        ("engin.max_total_tokens", "unknown prefix of a setting 'engin'"),
        ("window", "window = 2: choose from arrivals, whole"),
    ],
)
def test_a_wrong_value_of_a_preset_is_reported_with_its_file(tmp_path, key, message):
    mine = tmp_path / "wrong.toml"
    mine.write_text(MINE.format(key=key), encoding="utf-8")
    with pytest.raises(DataError, match=rf"^preset \S*wrong\.toml: {message}"):
        resolve({"preset": str(mine), "workload": "judge"})


def test_a_value_that_only_a_preset_gives_is_not_called_the_users(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("client,arrival_s,input_tokens,output_tokens\na,0,10,5\n", encoding="utf-8")
    flags = {"trace": str(trace), "preset": "dlpm-paper"}
    advice = "give burstiness = 1.0, or leave the preset out"
    with pytest.raises(DataError, match=f"^preset dlpm-paper: burstiness = inf: .*; {advice}$"):
        experiment(flags, {})
    assert experiment({**flags, "burstiness": 1.0}, {}).preset == "dlpm-paper"
