"""Test that the backend is part of an experiment's identity, unless it is the simulator."""

import tomllib

import pytest

from fairbench.config import identity, to_toml
from fairbench.config.backend import AS_SERVED, NO_PROFILE, backend_kinds
from fairbench.config.parse_flags import STARTED
from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench_load.kinds import Emulator, Endpoint, SGLang

SGLANG = {"backend": {"kind": "sglang"}, "model": "models/tiny"}
EMULATOR = {"backend": {"kind": "emulator", "time_scale": 4.0}}
ENDPOINT = {"backend": {"base_url": "http://host:8000"}}


def stored(flags):
    """Return the stored experiment file of a run with these flags."""
    return tomllib.loads(to_toml(resolve(flags)))


def complaint(*arguments):
    with pytest.raises(UsageError) as caught:
        resolve(*arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("flags", [{}, SGLANG, EMULATOR, ENDPOINT])
def test_a_stored_experiment_gives_the_same_spec(flags):
    assert resolve({}, {}, stored(flags)) == resolve(flags)


def test_a_simulated_spec_has_no_backend_keys():
    assert "backend" not in to_toml(resolve({}))
    assert identity(resolve({"backend": {"kind": "sim"}})) == identity(resolve({}))


def test_each_backend_is_an_experiment_of_its_own():
    changed = [
        SGLANG,
        {**SGLANG, "model": "other"},
        {**SGLANG, "backend": {"kind": "sglang", "tp": 2}},
        {**SGLANG, "backend": {"kind": "sglang", "server_args": ["--dtype", "float32"]}},
        EMULATOR,
        {"backend": {"kind": "emulator"}},
        ENDPOINT,
        {},
    ]
    assert len({identity(resolve(flags)) for flags in changed}) == len(changed)


def test_real_hardware_has_no_timing_profile():
    assert resolve(SGLANG).gpu == NO_PROFILE
    assert resolve(ENDPOINT).gpu == NO_PROFILE
    assert resolve(EMULATOR).gpu == resolve({}).gpu


def test_an_endpoint_keeps_its_own_settings():
    spec = resolve(ENDPOINT)
    assert spec.backend == Endpoint(base_url="http://host:8000", api="completions")
    assert {spec.scheduler, spec.router, spec.local, spec.model} == {AS_SERVED}
    assert spec.settings == {}


def test_a_flag_changes_one_setting_of_the_stored_backend():
    spec = resolve({"backend": {"tp": 2}}, {}, stored(SGLANG))
    assert spec.backend == SGLang(tp=2)
    assert spec.model == "models/tiny"
    assert resolve({"scheduler": "vtc"}, {}, stored(EMULATOR)).backend == Emulator(time_scale=4.0)


@pytest.mark.parametrize("before", [{}, SGLANG, EMULATOR, ENDPOINT])
def test_another_backend_drops_the_stored_ones_settings(before):
    assert resolve({"backend": {"kind": "sim"}}, {}, stored(before)) == resolve({})
    assert resolve({"backend": {"kind": "emulator"}}, {}, stored(before)).gpu == resolve({}).gpu
    assert resolve(ENDPOINT, {}, stored(before)) == resolve(ENDPOINT)
    assert resolve(SGLANG, {}, stored(before)) == resolve(SGLANG)


def test_sglang_may_schedule_itself():
    flags = {**SGLANG, "backend": {"kind": "sglang", "schedule_policy": "lpm"}}
    spec = resolve(flags)
    assert (spec.router, spec.local, spec.scheduler) == ("d2lpm", "lpm", "d2lpm+lpm")
    assert resolve({}, {}, stored(flags)) == spec
    assert identity(spec) != identity(resolve({**SGLANG, "local": "lpm"}))
    assert (
        "local = 'vtc': cannot be combined with schedule_policy = 'lpm', the server's "
        "own scheduling; give only one of them"
    ) in complaint({**flags, "local": "vtc"})


def test_times_that_differ_from_those_of_a_stored_endpoint_are_refused():
    spec = resolve({"duration_s": 50.0}, {}, stored(ENDPOINT))
    assert (spec.duration_s, spec.warmup_s) == (50.0, 5.0)


@pytest.mark.parametrize(
    ("flags", "settings", "expected"),
    [
        ({"backend": {"kind": "sglan"}}, {}, "unknown backend 'sglan': choose from emulator"),
        (
            {"backend": {"kind": "sglang"}},
            {},
            "model: missing; backend sglang needs --model, a path or",
        ),
        ({"backend": {"time_scale": 2.0}}, {}, "time_scale = 2.0: only for backend emulator, not"),
        (
            {"backend": {"kind": "emulator", "tp": 2}},
            {},
            "tp = 2: only for backend sglang or vllm, not emu",
        ),
        ({"backend": {"kind": "emulator", "tpp": 2}}, {}, "unknown key of backend emulator 'tpp'"),
        (
            {"backend": {"kind": "emulator", "time_scale": 0.0}},
            {},
            "backend.time_scale = 0.0: must",
        ),
        (
            {"backend": {"kind": "emulator", "time_scale": 1e300}},
            {},
            "backend.time_scale = 1e+300: must be less than or equal to 1000000",
        ),
        (
            {"backend": {"kind": "emulator", "time_scale": float("nan")}},
            {},
            "backend.time_scale = nan: must",
        ),
        (
            ENDPOINT,
            {"dlpm.quantum": 3},
            "dlpm.quantum = 3: cannot be set with base_url, because a running",
        ),
        ({"backend": {"kind": "endpoint"}}, {}, "backend.base_url: missing"),
        ({"backend": {"base_url": "host:8000"}}, {}, "base_url = 'host:8000': write http://HOST"),
        (
            {"backend": {"base_url": "http://u:p@h"}},
            {},
            "base_url: must not contain credentials, because the URL is",
        ),
        ({"backend": 7}, {}, "backend = 7: must be a name or a table"),
        ({**SGLANG, "gpu": "a100"}, {}, "gpu = 'a100': backend sglang runs on real hardware"),
        (SGLANG, {"engine.timing_error_pct": 5}, "timing.error_pct = 5.0: backend sglang has"),
        (
            SGLANG,
            {"engine.full_reservation": True},
            "engine.full_reservation = True: backend sglang",
        ),
        (EMULATOR, {"timing.error_pct": 5}, "timing.error_pct = 5.0: backend emulator has no"),
        (SGLANG, {"cluster.eviction_delay_s": 2}, "cluster.eviction_delay_s = 2.0: backend sgl"),
        (ENDPOINT, {"engine.max_total_tokens": 9}, "engine.max_total_tokens = 9: backend endpoint"),
        (
            {**ENDPOINT, "scheduler": "vtc"},
            {},
            "scheduler = 'vtc': cannot be set with base_url, because a",
        ),
        (
            {**ENDPOINT, "router": "d2lpm"},
            {},
            "router = 'd2lpm': cannot be set with base_url, because a",
        ),
    ],
)
def test_invalid_backends_are_refused(flags, settings, expected):
    assert expected in complaint(flags, settings)


@pytest.mark.parametrize("arg", ["--port", "--host=0.0.0.0", "--tp-size", "--schedule-policy=lpm"])
def test_flags_of_the_launcher_are_refused_as_server_args(arg):
    flag = arg.partition("=")[0]
    flags = {**SGLANG, "backend": {"kind": "sglang", "server_args": ["--dtype", "half", arg]}}
    assert f"server_args: {flag} is set by fairbench itself" in complaint(flags)


@pytest.mark.parametrize("arg", ["--enable-dp-attention", "--dp=2", "--dp-size", "--enable-dp-a"])
def test_data_parallelism_within_a_server_is_refused_with_the_reason(arg):
    flag = arg.partition("=")[0]
    flags = {**SGLANG, "backend": {"kind": "sglang", "server_args": ["--dtype", "half", arg]}}
    assert f"server_args: {flag} is not supported: fairbench counts a server" in complaint(flags)


def test_an_error_in_the_backend_of_a_file_names_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"mine\.toml: unknown backend 'gpu'"):
        resolve({}, {}, {"backend": "gpu"}, path="mine.toml")


def test_two_words_in_one_server_argument_are_refused():
    flags = {**SGLANG, "backend": {"kind": "sglang", "server_args": ["--device cpu"]}}
    assert "server_args: '--device cpu' has 2 words, and each item must be one word" in complaint(
        flags
    )
    json_value = {**SGLANG, "backend": {"kind": "sglang", "server_args": ["--x", '{"a": 1}']}}
    assert resolve(json_value).backend.server_args == ["--x", '{"a": 1}']


def test_the_help_names_the_backends_that_are_started():
    assert sorted(STARTED) == sorted(
        kind for kind, one in backend_kinds().items() if one.is_managed
    )
