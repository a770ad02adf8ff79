"""Test workers with their own keys: which worker gets which key, and that no key is shown."""

import asyncio
import logging

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError, UsageError
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.keys_file import WorkerKeys, worker_keys
from tests.load.live_null_server import null_server
from tests.serve.live_router import CHAT, GENERATE, PATHS, Worker, cluster, router_before, streamed

KEYS = ("secret-of-0", "secret-of-1")


async def keyed_workers():
    """Run two workers, each with its own key. Yield their addresses with the keys."""
    workers = [Worker(key=key, load=[0, 0, 0.0]) for key in KEYS]
    for worker in workers:
        await worker.start()
    return workers, [WorkerAddress(one.url, key=one.key) for one in workers]


@pytest.mark.parametrize("keys", [None, {"client-key": "ann"}])
def test_each_worker_gets_its_own_key_on_every_page(keys, caplog):
    """The pages are health, facts, loads, models and requests. No client's key reaches them."""
    caplog.set_level(logging.DEBUG, "fairbench")

    async def run():
        workers, addresses = await keyed_workers()
        settings = {"gateway": "fcfs", "saturation": "utilization", "keys": keys}
        try:
            async with router_before(addresses, **settings) as under_test:
                statuses = []
                for path in [*PATHS, *PATHS]:
                    sent = {"Authorization": "Bearer client-key"}
                    async with under_test.post(path, streamed(path), **sent) as answer:
                        await answer.read()
                        statuses.append(answer.status)
                async with under_test.session.get(
                    f"{under_test.url}/v1/models", headers=sent
                ) as answer:
                    statuses.append(answer.status)
                return statuses, under_test.up, workers
        finally:
            for worker in workers:
                await worker.stop()

    statuses, up, workers = asyncio.run(run())
    assert statuses == [200] * (2 * len(PATHS) + 1)
    assert up == {0, 1}
    for worker in workers:
        assert worker.strangers == []
        assert worker.polls > 0
        shown = {headers["Authorization"] for _, headers, _ in worker.seen}
        assert shown == {f"Bearer {worker.key}"}
    assert not any(key in caplog.text for key in (*KEYS, "client-key"))


def test_a_worker_whose_key_is_wrong_is_down_and_gets_nothing(caplog):
    async def run():
        workers, addresses = await keyed_workers()
        addresses[1] = WorkerAddress(addresses[1].url, key="wrong")
        try:
            async with router_before(addresses) as under_test, under_test.post(GENERATE) as answer:
                return answer.status, under_test.up, workers[1].seen
        finally:
            for worker in workers:
                await worker.stop()

    assert asyncio.run(run()) == (200, {0}, [])
    assert "worker 1 is down" in caplog.text
    assert "wrong" not in caplog.text


def test_without_worker_keys_a_clients_key_is_forwarded():
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            async with under_test.post(CHAT, Authorization="Bearer its-own") as answer:
                assert answer.status == 200
            return worker.seen[0][1]["Authorization"]

    assert asyncio.run(run()) == "Bearer its-own"


A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


def test_keys_are_given_by_flag_and_by_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f'"{A}/" = "k1"\n"*" = "k2"\n')
    keys = worker_keys(None, path)
    assert [keys.signed(WorkerAddress(url)).key for url in (A, B)] == ["k1", "k2"]
    path.write_text(f'"{A}" = "k1"\n')
    keys = worker_keys("k3", path)
    assert [keys.signed(WorkerAddress(url)).key for url in (A, B)] == ["k1", "k3"]
    assert worker_keys(None, path).signed(WorkerAddress(B)).authorization == {}
    with pytest.raises(UsageError, match=f"choose from {B}"):
        keys.check_named([B])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "must contain at least one key"),
        ("SECRET", "line 1"),
        ('"SECRET" = "http://10.0.0.1:8000"', 'key 1: write "http://HOST:PORT" = "KEY"'),
        (f'"{A},kv=tcp://10.0.0.1:1" = "SECRET"', 'key 1: write "http://HOST:PORT"'),
        (f'"{A}" = 7', "key 1: must consist of"),
        (f'"{A}" = "SECRET\\r\\nx: y"', "key 1: must consist of printable ASCII"),
        (f'"{A}" = "SECRET "', "without leading or trailing spaces"),
        (f'"{A}" = "SECRETé"', "printable ASCII"),
    ],
)
def test_errors_in_the_worker_keys_file_show_no_key(tmp_path, content, complaint):
    path = tmp_path / "keys.toml"
    path.write_text(content)
    with pytest.raises(DataError) as raised:
        worker_keys(None, path)
    assert complaint in str(raised.value)
    assert "SECRET" not in str(raised.value)


def test_keys_do_not_appear_in_representations():
    keys = WorkerKeys({A: "SECRET"}, "SECRET")
    worker = keys.signed(WorkerAddress(A))
    assert worker.authorization == {"Authorization": "Bearer SECRET"}
    assert "SECRET" not in f"{keys} {worker} {worker.as_option()}"


WORKER = ("--worker-url", A)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((*WORKER, "--worker-key", "SECRET "), "--worker-key: must be printable ASCII"),
        ((*WORKER, "--worker-key-file", "no-such.toml"), "no-such.toml: cannot be read"),
        (("--dp", "1", "--worker-key", "SECRET"), "--worker-key needs --worker-url"),
    ],
)
def test_wrong_usage_is_one_line_without_the_key(arguments, complaint):
    result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "SECRET" not in result.stderr


def test_a_dry_run_shows_no_key_of_a_worker():
    flags = ("--worker-key", "SECRET", "--port", "0", "--dry-run")
    told = CliRunner().invoke(app, ["serve", *WORKER, *flags])
    assert told.exit_code == 0, told.output
    assert A in told.stdout
    assert "SECRET" not in told.output


def test_a_run_takes_the_key_of_its_endpoint_from_a_file_and_stores_it_nowhere(tmp_path):
    key = tmp_path / "key"
    key.write_text("SECRET\n")
    load = ("--workload", "chat", "--scenario", "none", "--clients", "2", "--num-programs", "1")
    load += ("--request-rate", "inf", "--set", "chat.turns_max=2")
    load += ("--set", "chat.think_mean_s=0.01")

    async def run():
        async with null_server(keep=True) as server:
            flags = ("--base-url", server.url, "--api-key-file", str(key), "--disable-tqdm")
            arguments = ["run", *flags, *load, "--result-dir", str(tmp_path / "runs")]
            result = await asyncio.to_thread(CliRunner().invoke, app, arguments)
            return result, {one.headers.get("authorization") for one in server.requests}

    result, shown = asyncio.run(run())
    assert result.exit_code == 0, result.output
    assert shown == {"Bearer SECRET"}
    assert "SECRET" not in result.output
    stored = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert stored
    assert not any(b"SECRET" in path.read_bytes() for path in stored)


@pytest.mark.parametrize(
    ("content", "more", "complaint"),
    [
        ("", (), "must hold a key: one line"),
        ("SECRET\nSECRET\n", (), "must hold a key: one line"),
        ("SECRET" * 9_999, (), "must hold a key: one line"),
        (
            "SECRET",
            ("--header", "authorization=x"),
            ("--api-key-file and --header Authorization both set the key: give only one of them"),
        ),
    ],
)
def test_a_wrong_key_of_an_endpoint_is_one_line(tmp_path, content, more, complaint):
    key = tmp_path / "key"
    key.write_text(content)
    result = CliRunner().invoke(app, ["run", "--base-url", A, "--api-key-file", str(key), *more])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "SECRET" not in result.stderr
