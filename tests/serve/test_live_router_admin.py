"""Test adding and draining workers over HTTP, on a separate port, while requests run."""

import asyncio
import logging
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import ClientSession
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.schedulers.routing.bases import FleetRouter
from fairbench_load import headers
from fairbench_load.http_server import listening_beside
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve import breaker
from fairbench_serve.addresses import same_worker
from fairbench_serve.admin import admin_app
from fairbench_serve.keys_file import WorkerKeys
from tests.emulator.live_emulator import running
from tests.serve.live_router import (
    GENERATE,
    PATHS,
    RouterUnderTest,
    Worker,
    cluster,
    router_before,
    until,
)

D2LPM = {"router": "d2lpm", "settings": {"d2lpm.worker_quantum": 300}}
POLLED = {"router": "least-loaded", "gateway": "vtc", "saturation": "utilization"}
STREAM = {**PATHS[GENERATE], "stream": True}


class Admin:
    """A client of the admin endpoint at ``url``."""

    def __init__(self, session, url, **sent):
        self.session, self.url, self.sent = session, url, sent

    async def ask(self, method, path="/workers", **how):
        how = {"headers": self.sent, **how}
        async with self.session.request(method, self.url + path, **how) as answer:
            return answer.status, await answer.json()

    async def states(self):
        _, told = await self.ask("GET")
        return {row["worker"]: row["state"] for row in told["workers"]}

    async def add(self, url, **more):
        return await self.ask("POST", json={"url": url, **more})

    async def drain(self, worker):
        return await self.ask("DELETE", f"/workers/{worker}")


@asynccontextmanager
async def administered(under_test: RouterUnderTest, key=None, keys=None, **sent):
    """Yield the admin endpoint of a router."""
    pages = admin_app(under_test.membership, keys or WorkerKeys(), key)
    async with listening_beside(pages, 0, "--admin-port") as url:
        yield Admin(under_test.session, url, **sent)


@asynccontextmanager
async def worker(**settings):
    """Start a worker that the router does not know."""
    one = Worker(**settings)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()


@asynccontextmanager
async def held_cluster():
    """Run a router before two workers that wait before their last word. Yield its admin."""
    async with cluster(2, held_at=2) as (under_test, workers), administered(under_test) as admin:
        yield under_test, workers, admin


async def emulated(stack, number):
    """Run an emulator in this process. Yield its address."""
    loop = asyncio.get_running_loop()
    settings = {"local": "dlpm", "kv_events_port": 0, "number": number}
    emulator, session = await stack.enter_async_context(running(loop, **settings))
    async with session.get("/health") as answer:
        url = str(answer.url.origin())
    return WorkerAddress(url, emulator.publisher.endpoint, emulator.publisher.replay_endpoint)


class Load:
    """Clients that send one request after the other, each with a longer prompt than the last."""

    def __init__(self, under_test):
        self.under_test = under_test
        self.served = []  # for each request in order of its start: number, status, worker
        self.begun = 0
        self.over = False

    async def client(self, name):
        ids = [1000 * name + n for n in range(40)]
        while not self.over:
            number, self.begun = self.begun, self.begun + 1
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 3}}
            sent = {headers.CLIENT: f"client-{name}"}
            async with self.under_test.post(GENERATE, body, **sent) as answer:
                told = await answer.json()
                self.served.append((number, answer.status, answer.headers[headers.WORKER]))
                assert len(told["output_ids"]) == 3
            ids = [*ids, *told["output_ids"], 7] if len(ids) < 400 else ids[:40]

    def workers(self, since):
        return {worker for number, _, worker in self.served if number >= since}


@pytest.mark.parametrize(
    "router",
    [
        {**D2LPM, "gateway": "dlpm"},
        pytest.param(D2LPM, marks=pytest.mark.slow),
        pytest.param({"router": "preble-e2"}, marks=pytest.mark.slow),
        pytest.param(POLLED, marks=pytest.mark.slow),
    ],
    ids=["gateway", "d2lpm", "preble", "utilization"],
)
def test_adding_and_draining_workers_under_load_loses_no_request(router):
    """Eight clients use emulated workers with KV events. Later requests obey each change."""

    async def run():
        async with AsyncExitStack() as stack:
            first, second, third = [await emulated(stack, number) for number in range(3)]
            under_test = await stack.enter_async_context(router_before([first, second], **router))
            admin = await stack.enter_async_context(administered(under_test))
            load = Load(under_test)
            clients = [asyncio.create_task(load.client(name)) for name in range(8)]
            await until(lambda: len(load.served) > 60)
            assert load.workers(0) == {"0", "1"}
            text = third.as_option()
            status, row = await admin.add(text)
            assert (status, row["worker"], row["state"]) == (201, 2, "up")
            await until(lambda: sum(worker == "2" for _, _, worker in load.served) > 20)
            status, row = await admin.drain(0)
            assert (status, row["state"] in ("draining", "removed")) == (202, True)
            drained_at = load.begun
            await until(lambda: 0 not in under_test.proxy.dispatcher.flights)
            removed_at = len(load.served)
            await until(lambda: len(load.served) > removed_at + 100)
            load.over = True
            await asyncio.gather(*clients)
            async with under_test.session.get(f"{under_test.url}/metrics") as answer:
                metrics = await answer.text()
            return load, drained_at, await admin.states(), under_test.proxy.dispatcher, metrics

    load, drained_at, states, dispatcher, metrics = asyncio.run(run())
    assert {status for _, status, _ in load.served} == {200}
    assert len(load.served) == load.begun
    assert load.workers(drained_at) == {"1", "2"}
    assert states == {1: "up", 2: "up"}
    assert dispatcher.under_way == 0
    credit = getattr(dispatcher.router, "credit", {})
    assert all(set(one) == {1, 2} for one in credit.values())
    assert 'worker="0"' not in metrics
    assert 'fairbench_worker_up{worker="2"} 1.0' in metrics
    if credit:  # a router that uses KV events
        assert 'fairbench_kv_event_losses{worker="2"} 0.0' in metrics


@asynccontextmanager
async def one_of_two_streams():
    """Run two workers, of which the ``busy`` worker has begun an answer."""
    async with (
        cluster(2, held_at=2) as (under_test, workers),
        administered(under_test) as admin,
        under_test.post(GENERATE, STREAM) as answer,
    ):
        await answer.content.readany()
        yield under_test, workers, admin, answer, int(answer.headers[headers.WORKER])


def test_requests_at_a_drained_worker_finish():
    async def run():
        async with one_of_two_streams() as (under_test, workers, admin, answer, busy):
            _, row = await admin.drain(busy)
            assert (row["state"], row["under_way"]) == ("draining", 1)
            workers[1 - busy].held_at = None
            for _ in range(6):
                async with under_test.post(GENERATE) as other:
                    assert other.headers[headers.WORKER] == str(1 - busy)
            await asyncio.sleep(0.2)  # its health is checked every 50 ms
            assert await admin.states() == {busy: "draining", 1 - busy: "up"}
            assert (await admin.drain(busy))[0] == 202  # the worker changes nothing
            workers[busy].released.set()
            data = await answer.read()
            assert await admin.states() == {1 - busy: "up"}
            assert (await admin.drain(busy))[0] == 404
            return data.endswith(b"data: [DONE]\n\n"), b"error" in data

    assert asyncio.run(run()) == (True, False)


def test_a_drained_worker_that_dies_is_removed_with_its_requests():
    async def run():
        async with one_of_two_streams() as (under_test, workers, admin, answer, busy):
            await admin.drain(busy)
            await workers[busy].stop()
            data = await answer.read()
            await until(lambda: list(under_test.proxy.dispatcher.flights) == [1 - busy])
            return b"error" in data, under_test.proxy.dispatcher.under_way

    assert asyncio.run(run()) == (True, 0)


def test_a_worker_that_is_down_joins_once_it_is_up():
    async def run():
        async with (
            cluster(1) as (under_test, _),
            administered(under_test) as admin,
            worker(healthy=False) as late,
        ):
            status, row = await admin.add(late.url)
            assert (status, row["state"]) == (201, "down")
            late.healthy = True
            await until(lambda: under_test.up == {0, 1})
            served = []
            for _ in range(4):
                async with under_test.post(GENERATE) as answer:
                    served.append(answer.headers[headers.WORKER])
            return sorted(served)

    assert asyncio.run(run()) == ["0", "0", "1", "1"]


def test_an_added_worker_is_asked_for_its_load_and_its_facts():
    """The router uses the worker's own key, and blocks token ids that would kill the worker."""

    async def run():
        router = {"gateway": "fcfs", "saturation": "utilization"}
        small = {"vocab_size": 1_000}
        async with (
            cluster(1, router=router, info={"vocab_size": 2_000}, load=[0, 0, 0.0]) as (
                under_test,
                _,
            ),
            administered(under_test, keys=WorkerKeys(default="k")) as admin,
            worker(key="k", info=small, load=[0, 0, 0.0]) as added,
            worker(key="own", load=[0, 0, 0.0]) as other,
        ):
            body = {"input_ids": [1_500], "sampling_params": {"max_new_tokens": 1}}
            statuses = []
            async with under_test.post(GENERATE, body) as answer:
                statuses.append(answer.status)
            assert (await admin.add(added.url))[1]["state"] == "up"
            assert (await admin.add(other.url, key="own"))[1]["state"] == "up"
            async with under_test.post(GENERATE, body) as answer:
                statuses.append(answer.status)
            await until(lambda: added.polls and other.polls)
            assert added.strangers == other.strangers == []
            _, told = await admin.ask("GET")
            assert not any("key" in row for row in told["workers"])
            await admin.drain(1)
            polls = added.polls
            await asyncio.sleep(0.3)  # its load was requested every 50 ms
            return statuses, added.polls - polls

    statuses, polls = asyncio.run(run())
    assert statuses == [200, 400]
    assert polls <= 1


def test_a_drained_idle_worker_gets_no_probe(monkeypatch):
    monkeypatch.setattr(breaker, "FIRST_REST_S", 0.05)

    async def run():
        async with cluster(2) as (under_test, workers), administered(under_test) as admin:
            workers[0].status = 500
            for _ in range(20):
                async with under_test.post(GENERATE) as answer:
                    assert answer.status == 200
            assert await admin.states() == {0: "ejected", 1: "up"}
            reached = len(workers[0].seen)
            await admin.drain(0)
            await asyncio.sleep(0.2)
            for _ in range(10):
                async with under_test.post(GENERATE) as answer:
                    assert answer.status == 200
            return await admin.states(), len(workers[0].seen) - reached

    assert asyncio.run(run()) == ({1: "up"}, 0)


NAMES = [
    *("http://localhost:{}", "http://LOCALHOST:{}//", "http://127.0.0.1:0{}/", "http://127.1:{}"),
    *(
        "http://[::1]:{}",
        "http://0.0.0.0:{}",
        "http://[::ffff:127.0.0.1]:{}/./",
        "HTTP://localhost:{}",
    ),
    f"http://{socket.gethostname()}:{{}}",
]


def test_a_worker_is_not_added_again_under_another_name():
    async def run():
        async with cluster(1) as (under_test, (known,)), administered(under_test) as admin:
            found = [await admin.add(name.format(known.port)) for name in NAMES]
            # the path of a gateway
            found += [await admin.add(f"http://127.0.0.1:{known.port}/other")]
            async with worker() as other:
                names = (f"http://localhost:{other.port}", other.url, f"{other.url}/")
                found += await asyncio.gather(*map(admin.add, names))  # all at once
            return [status for status, _ in found]

    *known, other, first, second, third = asyncio.run(run())
    assert known == [409] * len(NAMES)
    assert (other, sorted((first, second, third))) == (201, [201, 409, 409])


def test_names_that_a_gateway_tells_apart_are_different_workers(monkeypatch):
    """Behind one address of an ingress, there are many workers."""

    def resolved(host, _):
        return [(None, None, None, "", ("203.0.113.7", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    known = ["http://a.example", "http://node1:80"]
    assert same_worker("http://b.example", known) is None
    assert same_worker("http://a.example:81", known) is None
    assert same_worker("http://a.example.:80", known) == known[0]
    assert same_worker("http://203.0.113.7", known) == known[0]
    assert same_worker("http://node1.cluster.local", known) == known[1]
    assert same_worker("http://node10", known) is None


def test_addresses_of_different_machines_differ():
    urls = ["http://10.0.0.1:80", "http://10.0.0.2:80", "http://10.0.0.1:81", "http://127.0.0.2:80"]
    for number, url in enumerate(urls):
        assert same_worker(url, urls[:number] + urls[number + 1 :]) is None
    assert same_worker("http://10.0.0.1/", urls) == "http://10.0.0.1:80"
    assert same_worker("https://unknown.invalid/", ["https://unknown.invalid:443"]) is not None


def test_the_last_worker_is_not_drained_and_no_worker_is_added_twice():
    async def run():
        async with cluster(2) as (under_test, workers), administered(under_test) as admin:
            told = [await admin.add(f"{workers[0].url}/"), await admin.drain(0)]
            told += [await admin.drain(1), await admin.drain(7)]
            return [
                (status, body.get("error", {}).get("message")) for status, body in told
            ], workers

    told, workers = asyncio.run(run())
    assert told == [
        (409, f"{workers[0].url} is already worker 0"),
        (202, None),
        (409, "worker 1 is the only available worker, and cannot be drained"),
        (404, "there is no worker 7"),
    ]


def test_a_router_with_fixed_workers_refuses_changes(monkeypatch):
    async def run():
        async with cluster(2) as (under_test, _), administered(under_test) as admin:
            for hook in ("on_worker_join", "on_worker_leave"):
                monkeypatch.delattr(FleetRouter, hook)
            return await admin.add("http://127.0.0.1:9"), await admin.drain(0), await admin.states()

    added, drained, states = asyncio.run(run())
    complaint = "workers cannot be added or drained with the router round-robin"
    for status, told in (added, drained):
        assert (status, told["error"]["message"]) == (409, complaint)
    assert states == {0: "up", 1: "up"}


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("how", "status", "complaint"),
    [
        (
            {"data": b"{", "headers": {"Content-Type": "application/json"}},
            400,
            "the body must be JSON",
        ),
        (
            {"data": b"[" * 9_999, "headers": {"Content-Type": "application/json"}},
            400,
            "must be JSON",
        ),
        ({"data": b'{"url": "\xff"}', "headers": JSON}, 400, "the body must be JSON"),
        (
            {"data": b"{}", "headers": {**JSON, "Content-Encoding": "gzip"}},
            415,
            "an encoded body is not supported here: send the body without Content-Encoding",
        ),
        ({"data": b'{"url": "http://h"}'}, 415, "send it with Content-Type"),
        ({"data": b"x" * 70_000, "headers": {"Content-Type": "application/json"}}, 413, ""),
        ({"json": ["http://h"]}, 400, 'send {"url"'),
        ({"json": {"url": 7}}, 400, 'send {"url"'),
        ({"json": {"url": "h:1"}}, 400, "url h:1: 'h:1' must be an address http://HOST[:PORT]"),
        ({"json": {"url": "http://h\n::error::x"}}, 400, "must be an address http://HOST[:PORT]"),
        (
            {"json": {"url": "http://h,kv=1"}},
            400,
            "must be kv=tcp://HOST:PORT or replay=tcp://HOST:PORT",
        ),
        ({"json": {"url": "http://h", "keys": "SECRET"}}, 400, "choose from url and key"),
        ({"json": {"url": "http://h", "key": "SECRET\n"}}, 400, "key: must consist of"),
    ],
)
def test_a_wrong_body_changes_nothing(how, status, complaint):
    async def run():
        async with cluster(1) as (under_test, _), administered(under_test) as admin:
            how.setdefault("headers", {})
            return await admin.ask("POST", **how), await admin.states()

    (found, told), states = asyncio.run(run())
    assert found == status
    assert complaint in told["error"]["message"]
    assert "SECRET" not in told["error"]["message"]
    assert states == {0: "up"}


def test_only_holders_of_the_admin_key_are_served_and_no_foreign_page_is(caplog):
    caplog.set_level(logging.DEBUG, "fairbench")

    async def run():
        keys = {"client-key": "ann"}
        async with (
            cluster(2, router={"keys": keys}) as (under_test, _),
            administered(under_test, key="SECRET") as admin,
        ):
            told = []
            for shown in ("", "SECRET", "Basic SECRET", "Bearer client-key", "Bearer SECRETé"):
                for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/0"), ("GET", "/x")):
                    sent = {"headers": {"Authorization": shown}, "json": {"url": "http://h"}}
                    told.append((await admin.ask(method, f"/workers{path}", **sent))[0])
            right = {"Authorization": "Bearer SECRET"}
            foreign = {**right, "Host": "evil.example"}
            told.append((await admin.ask("GET", headers=foreign))[0])
            told.append((await admin.ask("GET", headers={**right, "Host": "localhost:1"}))[0])
            told.append((await admin.ask("GET", "/", headers=right))[0])
            # The clients' port lacks this path.
            told.append(await under_test.status("/workers"))
            return told

    told = asyncio.run(run())
    assert told == [401] * 20 + [403, 200, 404, 404]
    assert "SECRET" not in caplog.text


def test_serve_has_the_endpoint_on_a_separate_port(tmp_path):
    """The endpoint runs in a process with a key. The log shows the address and no key."""
    (tmp_path / "admin").write_text("ADMIN-SECRET\n")
    (tmp_path / "keys.toml").write_text('"CLIENT-SECRET" = "ann"\n')

    async def run():
        async with worker() as one, worker(key="WORKER-SECRET") as two, ClientSession() as session:
            flags = ("--worker-url", one.url, "--router", "round-robin", "--port", "0")
            flags += ("--keys", tmp_path / "keys.toml", "--worker-key", "WORKER-SECRET")
            flags += ("--admin-port", "0", "--admin-key-file", tmp_path / "admin")
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "fairbench", "serve", *map(str, flags)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                url = (await process.stdout.readline()).decode().strip()
                log = ""
                while "admin endpoint: " not in log:
                    log += (await process.stderr.readline()).decode()
                where = log.rpartition("admin endpoint: ")[2].strip().removesuffix("/workers")
                admin = Admin(session, where, Authorization="Bearer ADMIN-SECRET")
                assert (await admin.add(two.url))[1]["state"] == "up"
                sent = {"Authorization": "Bearer CLIENT-SECRET"}
                for _ in range(4):
                    async with session.post(
                        url + GENERATE, json=PATHS[GENERATE], headers=sent
                    ) as answer:
                        assert answer.status == 200
                assert (await admin.drain(0))[0] == 202
                return len(one.seen), len(two.seen), await admin.states(), process, log
            finally:
                process.terminate()
                log += (await process.communicate())[1].decode()
                assert "SECRET" not in log
                assert "worker 1 is added" in log
                assert "worker 0 is removed" in log

    first, second, states, process, _ = asyncio.run(run())
    assert (first, second, states, process.returncode) == (2, 2, {1: "up"}, 0)


WORKER = ("--worker-url", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--admin-port", "70000"), "--admin-port"),
        (("--admin-key-file", "admin"), "--admin-key-file needs --admin-port"),
        (("--admin-port", "0", "--admin-key-file", "none"), "none: cannot be read"),
        (("--admin-port", "0", "--keys", "keys"), "needs --admin-key-file if --keys is given"),
        (
            ("--admin-port", "0", "--worker-key", "k"),
            "needs --admin-key-file if keys of workers is given",
        ),
        (("--admin-port", "0", "--keys", "keys", "--admin-key-file", "both"), "key of a client"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, monkeypatch, arguments, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "keys").write_text('"SECRET" = "ann"\n')
    (tmp_path / "both").write_text("SECRET\n")
    result = CliRunner().invoke(app, ["serve", "--port", "0", *WORKER, *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "SECRET" not in result.stderr


def test_an_admin_port_that_is_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        flags = ("--port", "0", "--admin-port", port)
        result = CliRunner().invoke(app, ["serve", *WORKER, *flags])
    assert result.exit_code == 2
    assert f"--admin-port {port}: " in result.stderr
