"""Test that every backend that an experiment can name has a file that serves it."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from typing import ClassVar, Literal

import pytest

from fairbench import doors
from fairbench.config.backend import BackendConfig, backend_kinds
from fairbench.config.resolve import resolve
from fairbench.config.spec import experiment_tables
from fairbench.errors import UsageError
from fairbench.execute.live_runs import LiveFlags, check_live
from fairbench_load.backends.base import LiveBackend, LiveOptions
from fairbench_load.backends.endpoint import told_by
from fairbench_load.backends.workers import live_backend, same_workers
from fairbench_serve.plan import planned_workers

NAMED = {
    "sglang": {"model": "m"},
    "vllm": {"model": "m"},
    "endpoint": {"backend": {"base_url": "http://h:8000"}},
}


def spec_of(kind, **flags):
    return resolve({"backend": {"kind": kind}} | NAMED.get(kind, {}) | flags)


@pytest.mark.parametrize("kind", backend_kinds())
def test_every_kind_of_backend_is_served(kind):
    spec = spec_of(kind)
    backend = live_backend(spec)
    assert isinstance(backend, LiveBackend)
    assert backend.served({}).backend == kind
    assert backend.target("http://h:1", LiveOptions()).base_url == "http://h:1"
    assert (backend.running_at is None) == spec.backend.is_managed
    assert same_workers(spec, spec.model_copy(update={"seed": 9}))
    assert not same_workers(spec, resolve({}))


def test_tables_name_the_backend_of_a_run():
    info = {"version": "0.5.23", "max_total_num_tokens": 7, "mem_fraction_static": 0.5}
    own = spec_of("sglang", backend={"kind": "sglang", "schedule_policy": "lpm"})
    served = live_backend(own).served(info)
    assert served.name == "sglang 0.5.23 with its own lpm, m"
    assert (served.pool_tokens, served.mem_fraction_static) == (7, 0.5)
    assert live_backend(spec_of("sglang")).served(info).name == "sglang 0.5.23, m"
    assert live_backend(spec_of("endpoint")).served({}).name == "http://h:8000"
    told = live_backend(spec_of("endpoint")).served({"emulated": True, "timing_profile": "a100"})
    assert (told.emulated, told.timing_profile) == (True, "a100")
    assert not live_backend(spec_of("endpoint")).served(info).emulated
    emulated = live_backend(spec_of("emulator")).served(info)
    assert (emulated.name, emulated.emulated) == ("emulator 0.5.23, llama-3.1-8b", True)


@pytest.mark.parametrize(("off", "ahead"), [(False, True), (True, False), (None, None)])
def test_a_run_says_whether_sglangs_overlap_schedule_is_on(off, ahead):
    info = {} if off is None else {"disable_overlap_schedule": off}
    assert live_backend(spec_of("sglang")).served(info).async_scheduling is ahead


def test_only_the_emulator_obeys_a_length_header():
    lengths = {
        kind: live_backend(spec_of(kind)).target("http://h", LiveOptions()).lengths
        for kind in ("sglang", "emulator", "endpoint")
    }
    assert lengths == {"sglang": "exact", "emulator": "header", "endpoint": "exact"}


@contextmanager
def answering(**answers):
    """Run a server with these JSON answers by path; it requires a key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            content = answers.get(self.path.strip("/").replace("/", "_"))
            known = content is not None and self.headers["Authorization"] == "Bearer k"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode() if known else b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("answers", "emulated"),
    [
        ({"server_info": {"emulated": True, "timing_profile": "a100"}}, True),
        ({"server_info": {"version": "0.5.23"}}, False),
        # our router sets this header
        ({"v1_models": {"data": [{"id": "m", "owned_by": "fairbench"}]}}, True),
        ({"v1_models": {"data": [{"id": "m", "owned_by": "vllm"}]}}, False),
        ({"v1_models": {"data": None}}, False),
        ({"v1_models": ["no object"]}, False),
        ({}, False),
    ],
)
def test_an_endpoint_reports_whether_it_is_an_emulator(answers, emulated):
    with answering(**answers) as url:
        told = told_by(f"{url}/", {"Authorization": "Bearer k"})
    served = live_backend(spec_of("endpoint")).served(told)
    assert served.emulated is emulated
    assert served.timing_profile == answers.get("server_info", {}).get("timing_profile")


class Mine(BackendConfig):
    """A kind of backend in a user's package."""

    runs: ClassVar[str] = f"{__name__}:MyRuns"
    kind: Literal["mine"] = "mine"
    depth: int = 1


class MyRuns:
    """Runs on the user's backend, all of which are impossible."""

    def __init__(self, flags):
        self._flags = flags

    def check(self, spec):
        raise UsageError(f"depth {spec.backend.depth}, {self._flags.drivers} drivers")


@pytest.fixture
def _installed(monkeypatch):
    def entry_points(group, found=doors.entry_points):
        own = EntryPoint("mine", f"{__name__}:Mine", group)
        return [*found(group), own] if group == doors.BACKEND_GROUP else found(group)

    monkeypatch.setattr(doors, "entry_points", entry_points)
    backend_kinds.cache_clear()
    yield
    backend_kinds.cache_clear()


@pytest.mark.usefixtures("_installed")
def test_a_package_of_the_user_adds_a_backend():
    spec = spec_of("mine", model="m", backend={"kind": "mine", "depth": 3})
    assert experiment_tables(spec)["backend"] == {"kind": "mine", "depth": 3}
    with pytest.raises(UsageError, match="depth 3, 2 drivers"):
        check_live(spec, LiveFlags(drivers=2))
    with pytest.raises(UsageError, match=r"depth = 3: only for backend mine, not emulator"):
        spec_of("emulator", backend={"kind": "emulator", "depth": 3})


@pytest.mark.usefixtures("_installed")
def test_serve_refuses_a_backend_whose_servers_it_cannot_start(monkeypatch):
    monkeypatch.setattr("fairbench_serve.plan.STARTED", ("mine",))
    flags = {"backend": {"kind": "mine"}, "model": "m"}
    with pytest.raises(UsageError, match="backend mine: fairbench serve cannot start"):
        planned_workers(flags, {}, {}, parts=())
