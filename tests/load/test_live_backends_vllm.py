"""Test vLLM as a backend, without vLLM: command line, reported facts and refusals."""

import asyncio
import json
import sys
from itertools import pairwise

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from fairbench.config.resolve import resolve
from fairbench.errors import RunFailed, UsageError
from fairbench_load.backends.vllm import PYTHON
from fairbench_load.backends.workers import live_backend
from fairbench_load.plugin_config import plugin_config
from fairbench_load.processes.addresses import WorkerAddress, parse_worker
from fairbench_load.server_facts import info_in
from fairbench_serve.worker_info import ask_workers
from tests.load.live_recipes import recipes_here
from tests.load.test_live_backends import answering

PARAMS = dict(plugin_config("dlpm", {"dlpm.quantum": 50}).params)
REPORT = {"local": "dlpm", "params": json.dumps(PARAMS), "weights": "{}"}
POOL = {"block_size": "16", "cache_dtype": "auto", "engine": "0", "num_gpu_blocks": "500"}


SCHEDULER = "fairbench_engines.vllm.scheduler.FairScheduler"


def gauge(name, labels):
    texts = [f"{key}={json.dumps(value)}" for key, value in labels.items()]
    return f"# TYPE {name} gauge\n{name}{{{','.join(texts)}}} 1.0\n"


METRICS = gauge("fairbench_scheduler", REPORT) + gauge("vllm:cache_config_info", POOL)


def spec_of(settings=(), **backend):
    flags = {"backend": {"kind": "vllm", **backend}, "model": "m", "scheduler": "d2lpm", "dp": 2}
    return resolve(flags, dict(settings))


def recipes_of(spec, monkeypatch, gpus="0,1"):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr("fairbench_load.processes.environment.MISSING", "")
    return recipes_here(spec)


def test_the_command_of_a_server_has_scheduler_ports_and_events(monkeypatch):
    spec = spec_of(
        {"dlpm.quantum": 50, "engine.max_running_requests": 8, "engine.mem_fraction_static": 0.5},
        server_args=["--enforce-eager"],
    )
    one, other = recipes_of(spec, monkeypatch)
    command = one.command([1, 2, 3])
    told = dict(pairwise(command))
    assert command[:3] == [sys.executable, "-m", "fairbench_engines.vllm"]
    assert (told["--model"], told["--port"], told["--scheduler-cls"]) == ("m", "1", SCHEDULER)
    assert (told["--max-num-seqs"], told["--gpu-memory-utilization"]) == ("8", "0.5")
    assert command[-1] == "--enforce-eager"
    events = json.loads(told["--kv-events-config"])
    assert events["endpoint"] == one.kv_events.format(port=2)
    assert events["replay_endpoint"] == "tcp://127.0.0.1:3"
    assert one.environment["FAIRBENCH_LOCAL"] == "dlpm"
    assert json.loads(one.environment["FAIRBENCH_SETTINGS"])["dlpm.quantum"] == 50
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in (one, other)] == ["0", "1"]


def test_the_own_policy_of_vllm_runs_without_the_plugin(monkeypatch):
    spec = resolve(
        {
            "backend": {"kind": "vllm", "schedule_policy": "fcfs"},
            "model": "m",
            "router": "round-robin",
        }
    )
    (recipe,) = recipes_of(spec, monkeypatch)
    assert "--scheduler-cls" not in recipe.command([1, 2, 3])
    assert recipe.environment["FAIRBENCH_LOCAL"] == ""


def test_a_cpu_build_needs_no_gpu(monkeypatch):
    monkeypatch.setattr("fairbench_load.backends.vllm.BUILT_FOR_CPU", "print(True)")
    assert [len(recipe.environment) for recipe in recipes_of(spec_of(), monkeypatch, "")] == [5, 5]
    monkeypatch.setattr("fairbench_load.backends.vllm.BUILT_FOR_CPU", "print(False)")
    with pytest.raises(UsageError, match="needs 2 GPUs"):
        recipes_of(spec_of(), monkeypatch, "")


def test_a_python_without_vllm_is_refused(monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    with pytest.raises(UsageError, match=r"lacks vllm; install vllm==0\.32\.0"):
        recipes_here(spec_of(), sys.executable)


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ({"api": "generate"}, "the API of vLLM must be completions or chat"),
        ({"server_args": ["--scheduler-cls=x"]}, "--scheduler-cls is set by fairbench"),
        ({"schedule_policy": "lpm"}, "fcfs"),
    ],
)
def test_features_that_vllm_lacks_are_refused(backend, says):
    with pytest.raises(UsageError, match=says):
        spec_of(**backend)


def test_metrics_name_the_scheduler():
    report = {"local": "dlpm", "params": PARAMS, "weights": {}}
    pool = {"max_total_num_tokens": 499 * 16, "page_size": 16}  # one block stays unused
    assert info_in(METRICS) == pool | {"fairbench": report}
    assert info_in("") == {}
    for text, on in (("true", True), ("false", False)):
        info = info_in(gauge("fairbench_scheduler", REPORT | {"async_scheduling": text}))
        assert info["fairbench"]["async_scheduling"] is on
        assert live_backend(spec_of()).served(info).async_scheduling is on
    assert live_backend(spec_of()).served(info_in(METRICS)).async_scheduling is None
    with pytest.raises(ValueError, match="could not convert"):
        info_in("a page of something else")


def test_a_server_must_use_the_eviction_policy_of_the_run():
    flags = {"backend": {"kind": "vllm"}, "model": "m", "router": "round-robin", "local": "dlpm"}
    spec = resolve(flags | {"eviction": "quota"}, {"dlpm.quantum": 50, "quota.percent": {}})
    told = live_backend(spec)._plugin()
    params = json.loads(told["FAIRBENCH_SETTINGS"])
    assert json.loads(told["FAIRBENCH_EVICTION"])["policy"] == "quota"
    report = REPORT | {"params": json.dumps(params), "eviction": "quota"}
    Asked(spec, gauge("fairbench_scheduler", report)).verify()
    for other in ("", "max-min"):
        asked = Asked(spec, gauge("fairbench_scheduler", report | {"eviction": other}))
        with pytest.raises(RunFailed, match="instead of by quota"):
            asked.verify()


class Asked:
    """A backend that gets the given answers of a server."""

    def __init__(self, spec, metrics):
        self.backend = live_backend(spec)
        self.backend.info = lambda url: info_in(metrics)

    def verify(self):
        self.backend.verify("http://h:1")


def test_a_server_with_another_scheduler_is_refused():
    Asked(spec_of({"dlpm.quantum": 50}), METRICS).verify()
    with pytest.raises(RunFailed, match=r"dlpm.quantum = 50 instead of 60"):
        Asked(spec_of({"dlpm.quantum": 60}), METRICS).verify()
    with pytest.raises(RunFailed, match="plugin is not active"):
        Asked(spec_of({"dlpm.quantum": 50}), "").verify()
    with pytest.raises(RunFailed, match="the server runs fairbench's scheduler dlpm instead of"):
        Asked(spec_of(schedule_policy="fcfs"), METRICS).verify()


def test_an_unanswered_request_is_a_failed_run():
    with answering() as url, pytest.raises(RunFailed, match="/metrics"):
        live_backend(spec_of()).info(url)


def test_the_router_learns_the_facts_of_a_vllm_worker_as_of_others(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 2048}')

    async def run():
        app = web.Application()
        models = {"data": [{"id": "m", "root": str(tmp_path)}]}
        app.router.add_get("/metrics", page(lambda: web.Response(text=METRICS)))
        app.router.add_get("/v1/models", page(lambda: web.json_response(models)))
        async with TestServer(app) as server, ClientSession() as session:
            return await ask_workers(session, [WorkerAddress(str(server.make_url("/"))[:-1])])

    info = asyncio.run(run())
    assert (info.pool_tokens, info.page_tokens, info.vocab_size) == (499 * 16, 16, 2048)
    assert info.locals == [{"dlpm"}]


def page(content):
    async def answer(request):
        return content()

    return answer


def test_events_may_come_through_a_local_socket():
    text = "http://h:1,kv=ipc://@fairbench-2,replay=tcp://127.0.0.1:3"
    assert parse_worker(text).as_option() == text
    for wrong in ("ipc://", "ipc://@"):
        with pytest.raises(UsageError, match="each given once"):
            parse_worker(f"http://h:1,kv={wrong}")
