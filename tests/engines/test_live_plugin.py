"""Test the plugin without SGLang: when it does nothing, when it refuses, and its reports."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench.schedulers.registry import build_local
from fairbench_engines import sglang as plugin
from fairbench_engines.sglang import release
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.release import check_server
from fairbench_load.plugin_config import config_from, plugin_config
from fairbench_load.server_facts import PluginReport, fetch_report, require_active

POLL_S = 0.01
SETTINGS = {"dlpm.quantum": 500, "vtc.lift": "none", "engine.max_total_tokens": 9}


def test_without_configuration_nothing_happens(monkeypatch):
    monkeypatch.delenv("FAIRBENCH_LOCAL", raising=False)
    monkeypatch.setenv("FAIRBENCH_SETTINGS", "not even JSON")
    installed = []
    monkeypatch.setattr("fairbench_engines.sglang.hooks.install", installed.append)
    plugin.register()
    assert installed == []
    monkeypatch.setenv("FAIRBENCH_LOCAL", "dlpm")
    monkeypatch.setenv("FAIRBENCH_SETTINGS", "{}")
    plugin.register()
    assert [config.local for config in installed] == ["dlpm"]


@pytest.mark.parametrize(
    ("local", "settings", "message"),
    [
        ("dlqm", "{}", "unknown local scheduler 'dlqm'"),
        ("dlpm", "{", "FAIRBENCH_SETTINGS is not valid JSON"),
        ("dlpm", "[1]", "FAIRBENCH_SETTINGS = [1]"),
        ("dlpm", '{"dlpm.quantums": 1}', "Did you mean 'quantum'?"),
        ("dlpm", '{"dlpm.quantum": -1}', "dlpm.quantum"),
        ("dlpm", '{"vtc.lift": "none"}', "'vtc.lift' is not a parameter of dlpm"),
    ],
)
def test_a_wrong_configuration_ends_the_process(local, settings, message, monkeypatch, capsys):
    monkeypatch.setenv("FAIRBENCH_LOCAL", local)
    monkeypatch.setenv("FAIRBENCH_SETTINGS", settings)
    with pytest.raises(SystemExit) as ended:
        plugin.register()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_another_release_of_sglang_ends_the_process(monkeypatch, capsys):
    monkeypatch.setenv("FAIRBENCH_LOCAL", "vtc")
    monkeypatch.setattr(release, "installed", lambda names: "0.5.16")
    with pytest.raises(SystemExit) as ended:
        plugin.register()
    assert ended.value.code == 2
    assert "SGLang 0.5.16 is not supported" in (told := capsys.readouterr().err)
    assert "0.5.17 to 0.5.23" in told


def test_the_environment_carries_the_schedulers_own_settings():
    config = config_from(plugin_config("dlpm", SETTINGS).environment())
    assert config == plugin_config("dlpm", SETTINGS)
    assert config.params["dlpm.quantum"] == 500
    assert config.params["dlpm.no_room"] == "stop"
    assert not [name for name in config.params if not name.startswith("dlpm.")]
    assert config.build().params.quantum == 500


def server_args(**changed):
    plain = {
        "disaggregation_mode": "null",
        "dllm_algorithm": None,
        "enable_hierarchical_cache": False,
        "enable_lora": None,
        "enable_priority_scheduling": False,
        "pp_size": 1,
        "tp_size": 1,
        "dp_size": 1,
        "enable_dp_attention": False,
    }
    return SimpleNamespace(**plain | changed)


@pytest.mark.parametrize(
    ("changed", "local", "flag"),
    [
        ({"pp_size": 2}, "edf", "--pp-size 2: must be 1 for edf"),
        ({"enable_lmcache": True}, "fcfs", "--enable-lmcache is .* replaces .* prefix tree"),
        ({"encoder_only": True}, "vtc", "--encoder-only is not .* does not know their clients"),
        (
            {"disaggregation_mode": "prefill"},
            "rpm",
            "--disaggregation-mode prefill is .* would wait for a request that rpm refuses",
        ),
        ({"disaggregation_mode": "decode"}, "edf", "--disaggregation-mode decode .* edf preempts"),
        (
            {"disaggregation_mode": "decode", "pp_size": 2},
            "vtc",
            "--disaggregation-mode decode is not supported with --pp-size",
        ),
        (
            {"disaggregation_mode": "prefill", "dp_size": 2},
            "vtc",
            "--disaggregation-mode prefill is not supported with --dp-size",
        ),
        ({"enable_priority_scheduling": True}, "edf", "with this scheduler: edf preempts"),
        ({"enable_priority_scheduling": True}, "rpm", "rpm refuses requests"),
        ({"tp_size": 2}, "rpm", "--tp-size 2"),
        ({"tp_size": 2}, "edf", "--tp-size 2: must be 1 for edf"),
        ({"tp_size": 4}, "justitia", "--tp-size 4: must be 1 for justitia"),
        ({"tp_size": 2}, "equinox", "--tp-size 2: must be 1 for equinox"),
        ({"enable_dp_attention": True}, "dlpm", "--enable-dp-attention is not supported"),
        ({"attn_dp_size": 2}, "fcfs", "--attn-dp-size 2 is not supported .* wait for each other"),
        ({"dp_size": 2, "tp_size": 2}, "vtc", "--tp-size 2: must be 1 with --dp-size 2 and vtc"),
        ({"dp_size": 2, "pp_size": 2}, "dlpm", "--pp-size 2: must be 1 with --dp-size 2 and dlpm"),
        ({"dp_size": 2, "nnodes": 2}, "fcfs", "--dp-size 2 .* with --nnodes: .* one host"),
        ({"dp_size": 3}, "rpm", "rpm .* cannot share .*; use vtc or dlpm"),
        ({"dp_size": 4}, "equinox", "equinox .* cannot share"),
        (
            {"dp_size": 2, "enable_priority_scheduling": True},
            "vtc",
            "--dp-size 2 .* with --enable-priority-scheduling",
        ),
    ],
)
def test_requests_that_schedulers_cannot_account_for_are_refused(changed, local, flag):
    with pytest.raises(UsageError, match=flag):
        check_server(server_args(**changed), build_local(local, {}))
    # A plain server may run, and so may ranks that all decide alike.
    assert check_server(server_args(), build_local(local, {})) is None
    works = {"enable_lora": True, "enable_priority_scheduling": True, "is_embedding": True}
    works |= {"tp_size": 2, "pp_size": 2, "speculative_algorithm": "EAGLE"}
    assert check_server(server_args(**works), build_local("dlpm", {})) is None
    for several in ("vtc", "dlpm", "fcfs", "lpm"):
        assert check_server(server_args(dp_size=2), build_local(several, {})) is None


def test_ranks_that_measure_their_own_steps_are_refused():
    assert check_server(server_args(), build_local("dlpm-hold", {}), measures=True) is None
    with pytest.raises(UsageError, match=r"--tp-size 2: must be 1 because dlpm-hold"):
        check_server(server_args(tp_size=2), build_local("dlpm-hold", {}), measures=True)


def test_a_changed_function_of_sglang_is_refused():
    with pytest.raises(
        UsageError, match="takes the arguments self, key, default instead of self, value"
    ):
        release.check_target("collections.Counter.setdefault", ("self", "value"))
    with pytest.raises(UsageError, match=r"SGLang has no collections\.Counter\.gone"):
        release.check_target("collections.Counter.gone", ())
    release.check_target("collections.Counter.setdefault", ("self", "key"))


def test_a_hook_that_sglang_did_not_apply_is_noticed():
    with pytest.raises(RunFailed, match="did not apply"):
        release.require_applied(["collections.Counter.subtract"])


@contextmanager
def answering(body):
    """Run a server that answers ``/server_info`` with ``body``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/server_info" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def own_report(local, settings):
    return Hooks(plugin_config(local, settings), "0.5.23").report()


def test_reports_are_found_where_sglang_and_the_emulator_put_them():
    report = own_report("dlpm", SETTINGS)
    ranks = {"internal_states": [{"fairbench": report}, {"fairbench": report}]}
    emulator = {"fairbench": {"local": "vtc", "params": {}, "more": 1}, "emulated": True}
    for info, expected in ((ranks, ["dlpm", "dlpm"]), (emulator, ["vtc"]), ({}, [])):
        with answering(json.dumps(info).encode()) as url:
            assert [report.local for report in fetch_report(url)] == expected


def test_a_proxy_is_not_asked_for_reports(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with answering(b"{}") as url:
        assert fetch_report(url) == []


def test_a_server_with_an_unexpected_report_is_an_error():
    with answering(b"<html>") as url, pytest.raises(RunFailed, match="/server_info"):
        fetch_report(url)
    with pytest.raises(RunFailed, match="/server_info"):
        fetch_report("http://127.0.0.1:9")


def test_a_run_needs_the_right_scheduler_with_the_right_parameters():
    right = PluginReport(**own_report("dlpm", SETTINGS))
    require_active([right, right], plugin_config("dlpm", SETTINGS))
    with pytest.raises(RunFailed, match="not active"):
        require_active([], plugin_config("dlpm", SETTINGS))
    with pytest.raises(RunFailed, match="runs the scheduler dlpm instead of vtc"):
        require_active([right], plugin_config("vtc", SETTINGS))
    with pytest.raises(RunFailed, match=r"dlpm\.quantum = 500 instead of 10000"):
        require_active([right], plugin_config("dlpm", {}))
    other = PluginReport(**own_report("dlpm", {}))
    with pytest.raises(RunFailed, match=r"dlpm\.quantum = 10000 instead of 500"):
        require_active([right, other], plugin_config("dlpm", SETTINGS))
