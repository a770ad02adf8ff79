"""Test experiments whose replicas run an installed engine's own scheduler code."""

import pytest

from fairbench.config import to_toml
from fairbench.config.resolve import experiment, resolve
from fairbench.config.spec import file_tables
from fairbench.errors import UsageError
from fairbench.execute.comparison import plan_comparison
from fairbench.results.experiments import grid_labels
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.summary import basis

CODE = {"engine_code": "fork/bin/python"}


@pytest.mark.parametrize(
    ("flags", "router", "local"),
    [
        ({}, "d2lpm", "fcfs"),
        ({"schedule_policy": "my-policy"}, "d2lpm", "my-policy"),
        ({"local": "my-policy"}, "d2lpm", "my-policy"),
        ({"schedule_policy": "lpm", "router": "preble-e2"}, "preble-e2", "lpm"),
        ({"scheduler": "lpm"}, "round-robin", "lpm"),
        ({"scheduler": "d2lpm+my-policy"}, "d2lpm", "my-policy"),
        ({"scheduler": "d2lpm", "schedule_policy": "hrrn"}, "d2lpm", "hrrn"),
        ({"scheduler": "d2lpm"}, "d2lpm", "dlpm"),
        ({"scheduler": "vtc", "router": "d2lpm"}, "d2lpm", "vtc"),
        ({"schedule_policy": "vtc"}, "d2lpm", "vtc"),
    ],
)
def test_the_engines_policy_is_the_local_scheduler(flags, router, local):
    spec = experiment({**CODE, **flags}, {})
    assert (spec.router, spec.local) == (router, local)
    assert spec.backend is None
    again = resolve({}, {}, file_tables(spec))
    assert again == spec
    assert to_toml(again) == to_toml(spec)


def test_lpm_and_schedulers_of_fairbench_have_parameters():
    settings = {name.partition(".")[0] for name in experiment(CODE, {}).settings}
    assert not settings & {"fcfs", "lpm", "dlpm"}
    inside = experiment({**CODE, "scheduler": "d2lpm"}, {"dlpm.quantum": 7}).settings
    assert (inside["dlpm.quantum"], inside["dlpm.no_room"]) == (7, "stop")
    assert experiment({**CODE, "scheduler": "lpm"}, {"lpm.queue_limit": 7}).settings[
        "lpm.queue_limit"
    ] == 7  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "settings", "message"),
    [
        ({"local": "rpm"}, {}, "local = 'rpm': refuses requests, which is not supported with"),
        ({"local": "edf"}, {"edf.chunks": "x"}, "edf.chunks"),
        ({"local": "dlpm"}, {"dlpm.quantum": 0}, "dlpm.quantum = 0: "),
        ({"schedule_policy": "a", "local": "b"}, {}, "local = 'b': cannot be combined with"),
        (
            {"engine": "lightllm"},
            {},
            "not supported for engine lightllm; engine must be sglang or vllm",
        ),
        ({"backend": "emulator"}, {}, "supported only in simulations, not by backend emulator"),
        (
            {"eviction": "quota"},
            {},
            "eviction = 'quota': not supported with engine_code: needs a scheduler of fairbench",
        ),
        (
            {"eviction": "retention", "local": "dlpm"},
            {},
            "eviction = 'retention': not supported with engine_code: choose from lru, lfu, fifo",
        ),
        (
            {"eviction": "fifo", "engine": "vllm"},
            {},
            "eviction = 'fifo': not supported with engine_code: choose from lru, lfu, quota",
        ),
        (
            {"eviction": "fifo", "local": "dlpm"},
            {"memory.share": True},
            "memory.share = True: needs an eviction policy with shares: set eviction to 'quota'",
        ),
        (
            {"eviction": "lru", "server_args": ["--radix-eviction-policy=lfu"]},
            {},
            "eviction = 'lru': cannot be combined with server_args, which set 'lfu'",
        ),
        (
            {"gateway": "drr"},
            {"gateway.order": "longest-prefix"},
            "gateway.order = 'longest-prefix': not supported with engine_code",
        ),
        ({"prefill": 1, "decode": 1}, {}, "prefill = 1: not supported with engine_code"),
        (
            {},
            {"engine.load_cap": "auto"},
            "engine.load_cap = 'auto': not supported with engine_code",
        ),
        (
            {},
            {"engine.release": "0.5.17"},
            "engine.release = '0.5.17': not supported with engine_code",
        ),
        (
            {},
            {"engine.enable_mixed_chunk": True},
            "engine.enable_mixed_chunk = True: not supported with engine_code",
        ),
        ({}, {"admission.policy": "demote"}, "admission control: not supported with engine_code"),
        ({"router": "my-router"}, {}, "unknown router 'my-router'"),
    ],
)
def test_what_the_code_has_not_is_refused_in_one_line(flags, settings, message):
    with pytest.raises(UsageError) as refused:
        experiment({**CODE, **flags}, settings)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "flags", "settings"),
    [
        ("sglang", ["--chunked-prefill-size", "4096"], {"engine.chunked_prefill_size": 4_096}),
        (
            "sglang",
            ["--schedule-conservativeness=0.5", "--max-running-requests", "8"],
            {"engine.schedule_conservativeness": 0.5, "engine.max_running_requests": 8},
        ),
        (
            "vllm",
            ["--no-enable-prefix-caching", "--max-num-seqs", "64"],
            {"vllm.enable_prefix_caching": False, "vllm.max_num_seqs": 64},
        ),
    ],
)
def test_flags_of_a_server_are_settings_of_the_code(engine, flags, settings):
    spec = experiment({**CODE, "engine": engine, "server_args": flags}, {})
    assert spec == experiment({**CODE, "engine": engine}, settings)
    assert spec.backend is None
    assert {key: spec.settings[key] for key in settings} == settings
    assert resolve({}, {}, file_tables(spec)) == spec


@pytest.mark.parametrize(
    ("engine", "flags", "settings", "message"),
    [
        ("sglang", ["--lora-paths", "x"], {}, "engine_code of sglang '--lora-paths': choose from"),
        ("sglang", ["--max-num-seqs", "8"], {}, "'--max-num-seqs': choose from --chunked-prefill"),
        ("vllm", ["--max-num-seq", "8"], {}, "Did you mean '--max-num-seqs'?"),
        ("vllm", ["--no-block-size"], {}, "'--no-block-size': choose from --block-size"),
        ("vllm", ["--enable-prefix-caching=1"], {}, "--enable-prefix-caching takes no value"),
        ("vllm", ["--max-num-seqs", "--watermark=0"], {}, "--max-num-seqs needs a value"),
        ("sglang", ["--max-running-requests=0"], {}, "engine.max_running_requests = 0: "),
        ("sglang", ["8"], {}, "unknown flag in server_args for engine_code of sglang '8'"),
        (
            "sglang",
            ["--max-running-requests=8"],
            {"engine.max_running_requests": 9},
            "engine.max_running_requests = 9: cannot be combined with server_args, which set 8",
        ),
    ],
)
def test_other_flags_of_a_server_are_refused_in_one_line(engine, flags, settings, message):
    with pytest.raises(UsageError) as refused:
        experiment({**CODE, "engine": engine, "server_args": flags}, settings)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_eviction_policy_of_the_engine_is_a_key():
    words = ["--radix-eviction-policy", "lfu", "--max-running-requests=8"]
    spec = experiment({**CODE, "server_args": words}, {})
    assert spec.eviction == "lfu"
    assert spec.settings["engine.max_running_requests"] == 8
    assert not [name for name in spec.settings if name.startswith("lfu")]
    assert not spec.records_memory
    assert experiment({**CODE, "eviction": "of-a-fork"}, {}).eviction == "of-a-fork"
    assert resolve({}, {}, file_tables(spec)) == spec


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_an_eviction_policy_of_fairbench_has_parameters(engine):
    flags = {**CODE, "local": "dlpm", "eviction": "quota", "engine": engine}
    spec = experiment(flags, {"quota.percent": {"well-behaved-1": 50.0}})
    assert spec.settings["quota.percent"] == {"well-behaved-1": 50.0}
    assert not spec.records_memory
    assert resolve({}, {}, file_tables(spec)) == spec


def test_passes_are_charged_only_with_the_code():
    spec = experiment({**CODE, "charge_pass": True}, {})
    assert spec.charge_pass
    assert resolve({}, {}, file_tables(spec)) == spec
    assert build_manifest(spec, complete=True, watch=Stopwatch.start())["reproducible"] is False
    plain = resolve({"charge_pass": False}, {}, file_tables(spec))
    assert plain == experiment(CODE, {})
    assert "reproducible" not in build_manifest(plain, complete=True, watch=Stopwatch.start())
    with pytest.raises(UsageError, match="charge_pass = True: needs engine_code"):
        experiment({"charge_pass": True}, {})


def test_without_the_code_an_unknown_policy_is_refused():
    with pytest.raises(UsageError, match="unknown local scheduler 'my-policy'"):
        experiment({"local": "my-policy"}, {})
    with pytest.raises(UsageError, match="schedule_policy"):
        experiment({"schedule_policy": "lpm"}, {})


def test_a_comparison_has_one_experiment_for_each_code():
    plan = plan_comparison([], {"engine_code": ["A", "B"], "dp": 2}, {}, 2)
    assert [one.spec.engine_code for one in plan.to_run] == ["A", "B"]
    names = [
        label.scheduler for label in grid_labels([file_tables(one.spec) for one in plan.to_run])
    ]
    assert [name.partition('engine_code="')[2][0] for name in names] == ["A", "B"]
    several = plan_comparison(["lpm", "d2lpm+mine"], {"engine_code": ["A", "B"]}, {}, 2)
    assert [(one.spec.local, one.spec.engine_code) for one in several.to_run] == [
        ("lpm", "A"), ("lpm", "B"), ("mine", "A"), ("mine", "B"),
    ]  # fmt: skip
    inside = plan_comparison(["lpm", "d2lpm"], {"engine_code": ["A"]}, {}, 2)
    assert [one.spec.local for one in inside.to_run] == ["lpm", "dlpm"]
    with pytest.raises(UsageError, match="given twice"):
        plan_comparison([], {"engine_code": ["A", "A"]}, {}, 2)


def test_a_result_names_the_code():
    code = {"engine": "sglang", "version": "0.5.23", "digest": "0123456789", "commit": None}
    summary = {"simulated": True, "timing_profile": "a100", "engine_code": {**code, "changed": []}}
    assert basis(summary) == "simulated on a100, decided by sglang 0.5.23 (code 01234567)"
    summary["engine_code"] |= {"commit": "fedcba9876", "changed": ["srt/managers/scheduler.py"]}
    assert basis(summary) == (
        "simulated on a100, decided by sglang 0.5.23 at fedcba98 (code 01234567, 1 changed file)"
    )
