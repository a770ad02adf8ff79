"""Test that clients' weights reach every scheduler of a live run and of ``fairbench serve``."""

import asyncio
import sys
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.parse_flags import parse_weights, weight_flags
from fairbench.config.resolve import resolve
from fairbench.errors import RunFailed
from fairbench.workloads.plan import tenant_paths_of
from fairbench_emulator.cli import emulate
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_load import headers
from fairbench_load.backends.base import LiveOptions, sent_names
from fairbench_load.backends.workers import same_workers
from fairbench_load.client_metrics import Ledger
from fairbench_load.plugin_config import config_from, plugin_config
from fairbench_load.run import router_recipe
from fairbench_load.server_facts import PluginReport, require_active
from fairbench_serve import plan as routed_workers
from fairbench_serve.plan import started_workers
from tests.emulator.live_emulator import CONFIG, running
from tests.load.live_driving import driven
from tests.load.live_recipes import recipes_here
from tests.serve.live_router import GENERATE, PATHS, cluster

WEIGHTS = {"client-0": 2.0, "client-1": 0.1}
FLAGS = ["--weights", "client-0=2.0,client-1=0.1"]


def test_the_flag_is_written_in_its_input_form():
    assert weight_flags(WEIGHTS) == FLAGS
    assert parse_weights(FLAGS[1]) == WEIGHTS
    assert weight_flags(None) == weight_flags({}) == []


def test_the_plugin_passes_weights_to_its_scheduler():
    config = config_from(plugin_config("dlpm", {"dlpm.quantum": 100}, WEIGHTS).environment())
    assert config == plugin_config("dlpm", {"dlpm.quantum": 100}, WEIGHTS)
    home = SGLangHome(config, Ledger(), lambda refresh: [], lambda req: 0)
    quanta = [
        home.scheduler.credits.quantum_of(client) for client in ("client-0", "client-1", "another")
    ]
    assert quanta == [200, 10, 100]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 0}', '{"a": "2"}', '{"a": 1e9}'])
def test_wrong_weights_end_the_server(text, monkeypatch, capsys):
    from fairbench_engines import sglang as plugin

    monkeypatch.setenv("FAIRBENCH_LOCAL", "dlpm")
    monkeypatch.setenv("FAIRBENCH_WEIGHTS", text)
    with pytest.raises(SystemExit) as ended:
        plugin.register()
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "eights" in told or "WEIGHTS" in told
    assert told.count("\n") == 1


def test_a_run_needs_servers_with_its_weights():
    report = PluginReport(**Hooks(plugin_config("dlpm", {}, WEIGHTS), "0.5.23").report())
    require_active([report], plugin_config("dlpm", {}, WEIGHTS))
    with pytest.raises(RunFailed, match=r"the server has the weights \{'client-0': 2\.0"):
        require_active([report], plugin_config("dlpm", {}))


def live(kind, **flags):
    backend = {"backend": {"kind": kind}, "weights": WEIGHTS, "dp": 2, **flags}
    return resolve(backend | ({"model": "m"} if kind == "sglang" else {}))


def test_a_live_run_passes_the_weights_to_its_processes(monkeypatch):
    monkeypatch.setattr("fairbench_load.processes.environment.MISSING", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    spec = live("emulator")
    recipes = recipes_here(spec)
    commands = [one.command([1, 2, 3]) for one in recipes]
    for command in (*commands, router_recipe(spec, []).command([1])):
        at = command.index("--weights")
        assert command[at : at + 2] == FLAGS
    for recipe in recipes_here(live("sglang"), sys.executable):
        assert config_from(recipe.environment).weights == WEIGHTS
    assert same_workers(spec, spec)
    assert not same_workers(spec, live("emulator", weights={"client-0": 2.0}))


OWNED = {"workload": "chat", "name": "owned", "client_owners": {"client-2": "client-0"}}


def test_a_client_with_an_owner_is_passed_as_the_owners_client():
    spec = live("emulator", workload=OWNED, weights={"client-1": 3.0, "client-2": 2.0})
    assert sent_names(spec) == {"client-0": "client-0/client-0", "client-2": "client-0/client-2"}
    assert sent_names(spec) == tenant_paths_of(
        spec.client_plans()
    )  # the name under which simulated schedulers know the client
    commands = [one.command([1, 2, 3]) for one in recipes_here(spec)]
    for command in (*commands, router_recipe(spec, []).command([1])):
        at = command.index("--weights")
        assert command[at + 1] == "client-1=3.0,client-0/client-2=2.0"


def test_requests_carry_the_owners_path_and_records_the_clients_name():
    spec = resolve(
        {"workload": OWNED, "scheduler": "fcfs", "num_programs": 1, "request_rate": 1.0},
        {"chat.turns_min": 1, "chat.turns_max": 1, "chat.output_tokens": 4.0},
    )
    records, server, _ = driven(spec, target={"names": sent_names(spec)})
    names = {"client-0/client-0", "client-1", "client-0/client-2", "client-3"}
    assert {one.headers[headers.CLIENT] for one in server.requests} == names
    assert {one.headers[headers.ROUTING_KEY] for one in server.requests} == names
    assert {one.body["routing_key"] for one in server.requests} == names
    assert {one.client for one in records.requests} == {f"client-{n}" for n in range(4)}


def test_an_emulator_reports_its_weights():
    async def run():
        loop = asyncio.get_running_loop()
        settings = {"local": "vtc", "weights": WEIGHTS}
        async with running(loop, **settings) as (emulator, session):
            async with session.get("/server_info") as answer:
                info = await answer.json()
            return emulator.worker.scheduler.setup.weights, info["fairbench"]["weights"]

    assert asyncio.run(run()) == (WEIGHTS, WEIGHTS)


def test_the_router_grants_quanta_by_weight():
    async def run():
        settings = {"d2lpm.worker_quantum": 10_000}
        router = {"router": "d2lpm", "settings": settings, "weights": {"ann": 3.0}}
        async with cluster(2, router=router) as (under_test, _):
            for client in ("ann", "bob"):
                body = {**PATHS[GENERATE], "input_ids": [1] * 500}
                async with under_test.post(GENERATE, body, **{headers.CLIENT: client}) as answer:
                    assert answer.status == 200
            credit = under_test.proxy.dispatcher.router.credit
            return max(credit["ann"].values()), max(credit["bob"].values())

    assert asyncio.run(run()) == (30_000, 10_000)


@pytest.mark.parametrize("scheduler", ["dlpm", "vtc"])
def test_serve_starts_workers_with_weights_of_any_client(scheduler, tmp_path, monkeypatch):
    """Any client may appear in ``serve``, not only those of a workload."""

    @contextmanager
    def noted(spec, *more, **named):
        specs.append(spec)
        yield type("Workers", (), {"addresses": []})

    specs = []
    monkeypatch.setattr(routed_workers, "running_workers", noted)
    flags = {"dp": 1, "backend": {"kind": "emulator"}, "scheduler": scheduler}
    settings = {"vtc.weights": {"bob": 4}} if scheduler == "vtc" else {}
    with started_workers(
        *(flags, settings, LiveOptions(), tmp_path), {"org/ann": 3.0}, parts=()
    ) as routed:
        expected = {"org/ann": 3.0} | ({"bob": 4.0} if scheduler == "vtc" else {})
        assert routed.weights == expected
        assert specs[0].weights == expected


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--weights", "ann"], "--weights ann: write NAME=WEIGHT,NAME=WEIGHT with each NAME once"),
        (["--weights", "ann=2,ann=3"], "each NAME once"),
        (["--weights", "ann=-1"], "weights.ann = -1.0: must be a number from 1e-06 to 1e+06"),
        (["--weights", "ann=nan"], "weights.ann = nan: must be a number from"),
        (["--weights", "an=2", "--keys"], "unknown client in --weights 'an': choose from ann."),
    ],
)
def test_wrong_weights_are_one_line(flags, complaint, tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('"secret-key" = "ann"\n')
    flags = [*flags, str(keys)] if "--keys" in flags else flags
    told = CliRunner().invoke(app, ["serve", "--worker-url", "http://127.0.0.1:9", *flags])
    assert (told.exit_code, told.stdout) == (2, "")
    assert complaint in told.stderr
    assert told.stderr.count("\n") == 1


def test_the_emulate_command_takes_the_flag(monkeypatch):
    configured = []
    monkeypatch.setattr("fairbench_emulator.app.serve_emulator", _noting(configured))
    emulate(gpu="a100", model="llama-3.1-8b", local="vtc", weights="ann=2", settings=None)
    assert configured[0].weights == {"ann": 2.0}
    assert CONFIG.weights == {}


def _noting(configured):
    async def serve(config, announce):
        configured.append(config)

    return serve
