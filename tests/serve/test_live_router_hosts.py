"""Test requests from pages of other sites, and a router that is given as its own worker."""

import asyncio
import socket

import pytest
from multidict import CIMultiDict

from fairbench_load import headers
from tests.serve.live_router import GENERATE, PATHS, cluster
from tests.serve.test_live_router_admin import administered

OWN = [
    {},
    {"Host": "localhost:8000"},
    {"Host": "LOCALHOST"},
    {"Host": "10.1.2.3:8000"},
    {"Host": "[::1]:8000"},
    {"Host": "[fd00::1]"},
    {"Host": socket.gethostname()},
    {"Host": "router.example:8000"},  # allowed here
    {"Host": "localhost:8000", "Origin": "http://localhost:3000"},
    {"Host": "10.1.2.3:8000", "Origin": "http://10.1.2.3:8000"},
    {"Host": "localhost", "Origin": "https://router.example"},
]
FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
    {"Host": "localhost.evil.example"},
    {"Host": "router.example.evil"},
    {"Host": "[oops"},
    {"Host": ""},
    {"Origin": "http://evil.example"},
    {"Origin": "http://10.1.2.3"},
    {"Origin": "null"},
    {"Origin": "http://[oops"},
    {"Host": "127.0.0.1@evil.example"},
]
ALLOWED = {"hosts": ["Router.example"]}
PAGES = ("/health", "/metrics", "/v1/models", "/nothing")


def statuses(sent, **router):
    """Return the status of every page and of a request, and whether the worker was asked."""

    async def run():
        async with cluster(1, router=router) as (under_test, (worker,)):
            found = []
            for page in PAGES:
                async with under_test.session.get(under_test.url + page, headers=sent) as answer:
                    found.append(answer.status)
            async with under_test.post(GENERATE, **sent) as answer:
                return [*found, answer.status], sum(path == GENERATE for path, *_ in worker.seen)

    return asyncio.run(run())


TWICE = [
    [("Authorization", "Bearer a"), ("Authorization", "Bearer b")],
    [("Authorization", "Bearer a"), ("Authorization", "Bearer a")],
    [(headers.CLIENT, "ann"), (headers.CLIENT, "bob")],
    [("X-SMG-Routing-Key", "ann"), ("X-SMG-Routing-Key", "bob")],
    [(headers.DEADLINE, "10"), (headers.DEADLINE, "10000")],
    [(headers.PROGRAM, "1"), (headers.PROGRAM, "2")],
]


@pytest.mark.parametrize("twice", TWICE)
@pytest.mark.parametrize("keys", [None, {"a": "ann", "b": "bob"}])
def test_a_deciding_header_is_given_once(twice, keys):
    """A proxy before the router may have checked the other header."""
    sent = CIMultiDict(twice)
    sent.setdefault("Authorization", "Bearer a")

    async def run():
        async with cluster(1, router={"keys": keys}) as (under_test, (worker,)):
            found = []
            async with under_test.session.post(
                under_test.url + GENERATE, json=PATHS[GENERATE], headers=sent
            ) as answer:
                found.append((answer.status, "given twice" in await answer.text()))
            async with under_test.session.get(
                f"{under_test.url}/v1/models", headers=sent
            ) as answer:
                found.append((answer.status, "given twice" in await answer.text()))
            async with administered(under_test, key="a") as admin:
                status, told = await admin.ask("GET", headers=sent)
            found.append((status, "given twice" in told["error"]["message"]))
            return found, len(worker.seen)

    found, reached = asyncio.run(run())
    assert found == [(400, True)] * 3
    assert reached == 0


@pytest.mark.parametrize("sent", OWN)
def test_requests_to_a_name_of_the_router_are_served(sent):
    assert statuses(sent, **ALLOWED) == ([200, 200, 200, 404, 200], 1)


@pytest.mark.parametrize("sent", FOREIGN)
def test_pages_of_other_sites_are_refused(sent):
    assert statuses(sent, **ALLOWED) == ([403] * 5, 0)


def test_any_host_name_is_served_if_allowed_or_with_keys():
    sent = {"Host": "any.example", "Origin": "http://other.example"}
    assert statuses(sent, hosts=["*"])[0][-1] == 200
    sent["Authorization"] = "Bearer key"
    assert statuses(sent, keys={"key": "ann"})[0][-1] == 200


def test_a_request_without_a_host_is_served():
    async def run():
        async with cluster(1) as (under_test, _):
            port = int(under_test.url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
            return line

    assert b" 200 " in asyncio.run(run())


def test_a_router_is_not_added_to_its_own_workers_under_any_name():
    async def run():
        async with cluster(1) as (under_test, _), administered(under_test) as admin:
            port = under_test.url.rpartition(":")[2]
            told = []
            for host in ("127.0.0.1", "localhost", "127.0.0.2"):
                json = {"url": f"http://{host}:{port}"}
                told.append(await admin.ask("POST", json=json))
            return told, await admin.states()

    told, states = asyncio.run(run())
    # 127.0.0.2 may not be an address of this machine
    reached = [one for one in told if one[0] == 409]
    assert len(reached) >= 2
    assert all("this router itself" in one["error"]["message"] for _, one in reached)
    assert states[0] == "up"
    assert "up" not in [state for worker, state in states.items() if worker]


def test_a_worker_learns_which_routers_a_request_has_passed():
    async def run():
        async with cluster(1, router={"router_id": "b"}) as (under_test, (worker,)):
            async with under_test.post(GENERATE, **{headers.ROUTERS: "a"}) as answer:
                assert answer.status == 200
            async with under_test.post(GENERATE, **{headers.ROUTERS: "a,b"}) as answer:
                return answer.status, worker.seen[0][1][headers.ROUTERS], len(worker.seen)

    assert asyncio.run(run()) == (508, "a,b", 1)
