"""Test a foreign router before emulated workers, from its command to the records."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fairbench.config.resolve import read_experiment, resolve
from fairbench.results.manifest import program_version
from fairbench.sim.run import simulate
from fairbench_load.headers import CLIENT, OUTPUT_TOKENS, answer_id, tag, with_tag, worker_in
from fairbench_load.records import read_records
from fairbench_load.run import router_recipe, takes_requests
from fairbench_load.summary import NO_WORKER
from tests.load.live_cli import descendants, lines, only, running, wait_until

PROXY = f"{sys.executable} {Path(__file__).with_name('live_foreign_router.py')} {{port}} "
PROXY += "{worker_url_list}"
RUN = ["run", "--backend", "emulator", "--dp", "2", "--workload", "chat", "--scenario", "none"]
RUN += ["--clients", "3"]
SHORT = [*RUN, "--num-programs", "2", "--time-scale", "8", "--json"]
SMG = os.environ.get("FAIRBENCH_SGLANG_ROUTER") or shutil.which("sglang-router")


def ran(tmp_path, *arguments, code=0):
    """Return (summary, directory, stderr) of a run, after a check that its processes are gone."""
    with running(*arguments, "--result-dir", tmp_path) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == code, stderr
    return json.loads(stdout), only(tmp_path), stderr


def behind(*options):
    return [*SHORT, "--router-command", " ".join([PROXY, *options])]


@cache
def simulated():
    """Simulate the same experiment, which gives the lengths that answers must have."""
    flags = {"dp": 2, "workload": "chat", "scenario": "none", "clients": 3, "num_programs": 2}
    return simulate(resolve(flags | {"scheduler": "fcfs"})).summary


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--drop-headers"]])
def test_workers_behind_a_foreign_router_are_known_by_their_own_names(tmp_path, options):
    found, path, _ = ran(tmp_path, *behind(*options))
    assert (found["complete"], found["scheduler"], found["router"]) == (
        *(True, "external+fcfs"),
        "external",
    )
    records = read_records(path / "live").requests
    assert len(records) == simulated()["num_requests"] == found["completed"]
    by_worker = Counter(record.worker for record in records)
    assert set(by_worker) == {0, 1}
    assert abs(by_worker[0] - by_worker[1]) <= 1  # round robin
    assert found["total_output_tokens"] == simulated()["total_output_tokens"]
    assert found["cache_hit_rate"] > 0
    assert "router" not in found["notes"]
    manifest = json.loads((path / "manifest.json").read_text())["external_router"]
    assert manifest["version"].startswith("Python 3")
    assert "{worker_url_list}" in manifest["command"]
    again = resolve({}, {}, read_experiment(path / "experiment.toml"))
    assert again.backend.external_router == manifest["command"]


@pytest.mark.slow
def test_a_router_that_forwards_no_metadata_is_reported(tmp_path):
    found, path, _ = ran(tmp_path, *behind("--drop-all"))
    assert {record.worker for record in read_records(path / "live").requests} == {-1}
    assert found["notes"]["router"].startswith("the router forwards neither fairbench's headers")
    assert found["max_service_gap"] is None
    assert found["notes"]["max_service_gap"] == NO_WORKER


@pytest.mark.slow
def test_a_dying_router_ends_the_run_with_its_finished_requests(tmp_path):
    found, path, stderr = ran(tmp_path, *behind("--die-after", "8"), code=1)
    why = "the router ended during the run, with exit code 7 (out of luck); "
    assert found["notes"]["complete"].startswith(why)
    assert why in stderr
    records = read_records(path / "live").requests
    assert 0 < found["completed"] == sum(record.finish_s is not None for record in records) < 8


@pytest.mark.slow
def test_a_router_that_fails_to_start_is_shown_by_its_log(tmp_path):
    command = "sh -c 'echo no such policy; exit 3' {port} {worker_urls}"
    with running(*SHORT, "--router-command", command, "--result-dir", tmp_path) as process:
        _, stderr = process.communicate()
    assert process.returncode == 1
    assert "router ended with exit code 3" in stderr
    assert "no such policy" in stderr


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_router_behind(tmp_path):
    flags = [*RUN, "--duration", "20000", "--router-command", PROXY, "--result-dir", tmp_path]
    with running(*flags) as process:
        records = "*/live/requests.jsonl"
        wait_until(lambda: any(lines(path) > 3 for path in tmp_path.glob(records)), process)
        assert len(descendants(process.mark)) >= 4
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130  # ``running`` checks that no process is left


@pytest.mark.slow
@pytest.mark.skipif(
    SMG is None,
    reason="needs sglang-router: it is not on PATH, and FAIRBENCH_SGLANG_ROUTER is not set",
)
@pytest.mark.parametrize(
    ("theirs", "ours"), [("round_robin", "round-robin"), ("cache_aware", "cache-aware")]
)
def test_the_router_of_sglang_hits_as_often_as_its_model(tmp_path, theirs, ours):
    command = f"{SMG} launch --host {{host}} --port {{port}} --prometheus-host {{host}} "
    command += f"--prometheus-port {{port2}} --policy {theirs} --worker-urls {{worker_urls}}"
    found, path, _ = ran(tmp_path, *SHORT, "--router-command", command)
    spec = read_experiment(path / "experiment.toml")
    flags = {"backend": "sim", "router": ours}
    rules = {"cache-aware.rules": "sgl-model-gateway"} if ours == "cache-aware" else {}
    expected = simulate(resolve(flags, rules, spec)).summary
    assert found["completed"] == expected["num_requests"]
    assert {record.worker for record in read_records(path / "live").requests} == {0, 1}
    assert found["cache_hit_rate"] == pytest.approx(expected["cache_hit_rate"], abs=0.1)


def command_of(*words):
    return {"backend": {"kind": "emulator", "router_command": list(words)}, "dp": 2}


def test_placeholders_are_replaced():
    spec = resolve(
        command_of("R", "--on={host}:{port}", "--metrics", "{port2}", "--w", "{worker_urls}")
    )
    assert (spec.scheduler, spec.backend.api) == ("external+fcfs", "completions")
    recipe = router_recipe(spec, [Address("http://a:1"), Address("http://b:2")])
    words = ["R", "--on=127.0.0.1:7", "--metrics", "8", "--w", "http://a:1", "http://b:2"]
    assert recipe.command([7, 8]) == words
    spec = resolve(command_of("R", "{port}", "--all={worker_url_list}", "-w={worker_urls}", "{}"))
    recipe = router_recipe(spec, [Address("http://a:1"), Address("http://b:2")])
    words = ["R", "7", "--all=http://a:1,http://b:2", "-w=http://a:1", "-w=http://b:2", "{}"]
    assert recipe.command([7, 8]) == words


class Address:
    def __init__(self, url):
        self.url = url


def test_facts_survive_in_the_request_id():
    told = {CLIENT: "a b&c=d", OUTPUT_TOKENS: "57", "authorization": "Bearer x"}
    text = tag(3, told)
    assert "Bearer" not in text
    assert text.isprintable()
    assert dict(with_tag({"x-request-id": text})) == {
        "x-request-id": text,
        CLIENT: "a b&c=d",
        OUTPUT_TOKENS: "57",
    }
    assert with_tag({"x-request-id": text, CLIENT: "who says so"})[CLIENT] == "who says so"
    forged = "fairbench?x-fairbench-client=a&authorization=b"
    assert "authorization" not in with_tag({"x-request-id": forged})
    assert with_tag({"x-request-id": "req-1"}) == {"x-request-id": "req-1"}


def test_an_answer_names_its_worker():
    assert worker_in(answer_id(12, "abc")) == 12
    assert [worker_in(text) for text in ("", "cmpl-1", "worker-x-1", "worker-3")] == [-1] * 4


@pytest.mark.parametrize(
    ("pages", "ready"),
    [
        ({"/health": 200}, True),
        ({"/v1/models": 200}, True),
        ({"/health": 200, "/readiness": 503}, False),
        ({"/health": 200, "/v1/models": 503}, False),
        ({"/health": 200, "/v1/models": 401}, True),
        ({}, False),
    ],
)
def test_a_router_is_ready_when_none_of_its_pages_denies_it(pages, ready):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(pages.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            assert takes_requests(f"http://127.0.0.1:{server.server_port}") is ready
        finally:
            server.shutdown()
    assert takes_requests(f"http://127.0.0.1:{server.server_port}") is False


def test_the_version_of_a_program_is_found(tmp_path):
    def program(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    assert program_version(program("one", "echo one 1.2; echo more")) == "one 1.2"
    assert program_version(program("two", "exit 2")) is None
    program("python", 'echo "package of $3 0.1"')
    assert program_version(program("three", "exit 2")) == "package of three 0.1"
    assert program_version(str(tmp_path / "none")) is None
