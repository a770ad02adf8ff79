"""Test eviction policies on a run's servers: what reaches the plugin, and what is refused early."""

import json
from types import SimpleNamespace

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import RunFailed, UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.policies import QuotaEviction
from fairbench_engines.sglang import release
from fairbench_engines.sglang.eviction import check_tree
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.release import check_eviction
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import live_backend
from fairbench_load.plugin_config import EVICTION, Evicting, config_from, plugin_config
from fairbench_load.server_facts import PluginReport, require_active

QUOTAS = {"quota.percent": {"client-0": 60.0}}
EVICTING = Evicting("quota", ("client-0", "client-1"))


def spec_of(kind="sglang", settings=None, **flags):
    backend = {"kind": kind, **flags.pop("backend", {})}
    flags = {"workload": "long-qa", "model": "M", "backend": backend} | flags
    return resolve(flags, settings or {})


def test_a_policy_reaches_the_plugin_with_its_parameters_and_clients():
    told = plugin_config("fcfs", QUOTAS, {"client-1": 2.0}, EVICTING).environment()
    config = config_from(told)
    assert config == plugin_config("fcfs", QUOTAS, {"client-1": 2.0}, EVICTING)
    policy = config.build_eviction()
    assert isinstance(policy, QuotaEviction)
    policy.prepare(Setup(config.clients, config.weights, 1000))
    assert policy.limit("client-0") == 600
    assert policy.limit("client-1") == 400


@pytest.mark.parametrize("policy", [None, "lru"])
def test_the_default_eviction_of_a_server_installs_nothing(policy):
    config = config_from(plugin_config("fcfs", {}, None, Evicting(policy, ("a",))).environment())
    assert config == plugin_config("fcfs", {})
    hooks = Hooks(config, "0.5.23")
    assert hooks.eviction is None
    assert not any("ScheduleBatch.prepare" in target for target in hooks.by_target())
    assert "eviction" not in hooks.report()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({EVICTION: '{"policy": "max-mni", "clients": ["a"]}'}, "max-min"),
        ({EVICTION: '{"policy": "max-min"}'}, "must have the form"),
        ({EVICTION: "max-min"}, "is not valid JSON"),
        ({"FAIRBENCH_SETTINGS": '{"quota.percent": {}}'}, "not a parameter of fcfs"),
        (
            plugin_config("fcfs", QUOTAS, None, EVICTING).environment()
            | {EVICTION: '{"policy": "quota", "clients": ["client-00", "b"]}'},
            "client-00",
        ),
    ],
)
def test_a_wrong_policy_ends_the_server_with_a_line(told, message, monkeypatch, capsys):
    from fairbench_engines import sglang as plugin

    for name, value in ({"FAIRBENCH_LOCAL": "fcfs"} | told).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        plugin.register()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_run_needs_servers_with_its_eviction_policy():
    report = PluginReport(**Hooks(plugin_config("fcfs", QUOTAS, None, EVICTING), "0.5.23").report())
    assert report.eviction == "quota"
    require_active([report], plugin_config("fcfs", QUOTAS, evicting=EVICTING))
    with pytest.raises(RunFailed, match="cached tokens by quota instead of in its own order"):
        require_active([report], plugin_config("fcfs", {}))
    with pytest.raises(RunFailed, match="cached tokens by quota instead of by max-min"):
        require_active([report], plugin_config("fcfs", {}, evicting=Evicting("max-min", ("a",))))
    with pytest.raises(RunFailed, match=r"quota\.percent"):
        require_active([report], plugin_config("fcfs", {}, evicting=EVICTING))
    plain = PluginReport(**Hooks(plugin_config("fcfs", {}), "0.5.23").report())
    with pytest.raises(RunFailed, match="cached tokens in its own order instead of by quota"):
        require_active([plain], plugin_config("fcfs", QUOTAS, evicting=EVICTING))


def test_a_backend_starts_servers_with_the_policy_of_the_run():
    spec = spec_of(eviction="max-min", scheduler="vtc", clients=3)
    backend = live_backend(spec)
    told = json.loads(backend._plugin()[EVICTION])
    assert told == {"policy": "max-min", "clients": ["client-0", "client-1", "client-2"]}
    assert backend.needs() != live_backend(spec_of(scheduler="vtc", clients=3)).needs()
    assert backend.wanted(LiveOptions()).python.check == "check_evicting"
    plain = live_backend(spec_of(eviction="lru", scheduler="vtc", clients=3))
    assert json.loads(plain._plugin()[EVICTION]) == {}
    assert plain.wanted(LiveOptions()).python.check == "check_version"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"kind": "emulator", "eviction": "lfu", "model": "llama-3.2-3b"},
            "backend emulator has its own eviction policy",
        ),
        ({"kind": "vllm", "eviction": "retention"}, "quota-lending, max-min for backend vllm"),
        (
            {"kind": "vllm", "eviction": "lfu", "scheduler": "fcfs"}
            | {"backend": {"schedule_policy": "fcfs"}},
            "leave backend.schedule_policy out",
        ),
        ({"eviction": "max-mni"}, "max-min"),
        (
            {"eviction": "retention"},
            "must be one of lru, lfu, quota, quota-lending, max-min for backend sglang",
        ),
        (
            {"eviction": "lfu", "scheduler": "fcfs", "backend": {"schedule_policy": "fcfs"}},
            "leave backend.schedule_policy out",
        ),
        ({"memory_records": True}, "memory_records = True: backend sglang"),
    ],
)
def test_settings_that_no_server_supports_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        spec_of(**flags)


def test_quotas_use_the_names_that_requests_contain(monkeypatch):
    from fairbench_load.backends import base

    spec = spec_of(eviction="quota", settings=QUOTAS, clients=2)
    monkeypatch.setattr(base, "sent_names", lambda _: {"client-0": "team/client-0"})
    assert base.sent_settings(spec)["quota.percent"] == {"team/client-0": 60.0}
    assert base.sent_evicting(spec) == ("quota", ("team/client-0", "client-1"))


@pytest.mark.parametrize(
    ("found", "refused"), [("0.5.23", False), ("0.5.22", True), ("0.5.17+cpu", True)]
)
def test_a_release_without_hooks_for_a_policy_is_refused(found, refused, monkeypatch):
    monkeypatch.setattr(release, "installed", lambda _: found)
    assert release.check_version() == found
    if not refused:
        assert release.check_evicting() == found
        return
    with pytest.raises(
        UsageError, match=r"install SGLang 0\.5\.23, or leave the setting eviction out"
    ):
        release.check_evicting()


def test_ranks_with_separate_clocks_cannot_keep_sessions():
    check_eviction(SimpleNamespace(tp_size=2), "max-min")
    check_eviction(SimpleNamespace(tp_size=1), "retention")
    with pytest.raises(UsageError, match="--tp-size 2: must be 1"):
        check_eviction(SimpleNamespace(tp_size=2), "retention")


def test_a_tree_of_another_kind_is_refused(monkeypatch):
    from fairbench_engines.sglang import eviction

    monkeypatch.setattr(eviction, "is_radix", lambda tree: False)
    monkeypatch.setattr(eviction, "is_unified", lambda tree: False)
    tree = SimpleNamespace(tree_components=[SimpleNamespace(name="MAMBA")])
    with pytest.raises(UsageError, match="SimpleNamespace with MAMBA"):
        check_tree(tree)
    monkeypatch.setattr(eviction, "is_radix", lambda tree: True)
    check_tree(SimpleNamespace())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"disable_radix_cache": True}, "--disable-radix-cache is not supported with eviction lfu"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE .* takes memory"),
        ({"speculative_algorithm": "NGRAM"}, "--speculative-algorithm NGRAM .* takes memory"),
        ({"is_embedding": True}, "--is-embedding .* loses the clients"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache .* to the host"),
        ({"disaggregation_mode": "decode"}, "--disaggregation-mode decode .* prompts"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode prefill .* prompts"),
    ],
)
def test_a_server_that_leaves_a_policy_without_facts_is_refused(given, says):
    check_eviction(SimpleNamespace(tp_size=1, **given), None)
    with pytest.raises(UsageError, match=says):
        check_eviction(SimpleNamespace(tp_size=1, **given), "lfu")
    check_eviction(SimpleNamespace(tp_size=1, disaggregation_mode="null"), "lfu")
