"""Test peer routers: accepted senders, merged totals, and two real processes."""

import asyncio
import io
import random
import sys
from collections import Counter
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from math import isfinite

import msgspec
import pytest
from aiohttp import ClientSession, web
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.schedulers.peers import Totals
from fairbench_load import headers
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.addresses import reserved
from fairbench_serve.config import RouterConfig
from fairbench_serve.peers import PATH, PeerMessage, PeerState, settings_hash
from tests.fuzz.fuzz_files import mutated
from tests.serve.live_router import GENERATE, cluster, until

NOBODY = "http://127.0.0.1:9"  # an address at which no server listens
PEERS = {"peers": (NOBODY,), "peer_key": "among routers"}
SHOWN = {"Authorization": "Bearer among routers"}
GATED = {**PEERS, "gateway": "vtc", "router": "least-loaded"}
FAST = {"concurrency.requests": 1, "routers.every_s": 0.02, "routers.ahead_tok_s": 0.0}


def told(fleet, version=1, *, charged=None, waiting=(), parts=("gateway",)):
    charges = {client: {0: tokens} for client, tokens in (charged or {}).items()}
    totals = Totals(version, charges, {}, dict.fromkeys(waiting, (0,)))
    return msgspec.json.encode(PeerMessage("another", fleet, dict.fromkeys(parts, totals)))


async def send(under_test, body, shown=SHOWN):
    data = io.BytesIO(body)  # of any length
    async with under_test.session.post(under_test.url + PATH, data=data, headers=shown) as answer:
        return answer.status


def fleet_of(under_test):
    """Return the fleet of this router as its own messages state it."""
    return msgspec.json.decode(under_test.peering.message(), type=PeerMessage).fleet


def run(test):
    asyncio.run(test())


def test_only_peers_with_the_key_and_the_same_workers_are_accepted():
    async def test():
        async with cluster(1, router=GATED) as (under_test, _):
            fleet = fleet_of(under_test)
            good = told(fleet, charged={"ann": 100.0})
            assert await send(under_test, good, {}) == 401
            assert await send(under_test, good, {"Authorization": "Bearer amongst"}) == 401
            assert await send(under_test, b"{") == 400
            assert await send(under_test, good.replace(b"100", b'"x"')) == 400
            assert await send(under_test, told("elsewhere")) == 409
            assert await send(under_test, told(fleet, parts=("router",))) == 409
            policy = under_test.peering.parts["gateway"]._band(0).scheduler
            assert policy.counters == {}
            assert [await send(under_test, good) for _ in range(2)] == [200, 200]
            assert policy.counters == {"ann": 100}

    run(test)


FORGED = [
    {"charged": {"ann": 1e300}},
    {"charged": {"ann": -1e300}},
    {"charged": {"a" * 200: 1.0}},
    {"charged": {"line\nbreak": 1.0}},
    {"waiting": ["\x1b[2J"]},
    {"version": 2**60},
    {"version": -1},
]


@pytest.mark.parametrize("forged", FORGED)
def test_impossible_totals_are_ignored(forged):
    """Two values of 1e308 add up to infinity, and their difference is not a number."""

    async def test():
        async with cluster(1, router=GATED) as (under_test, _):
            version = forged.get("version", 1)
            rest = {name: value for name, value in forged.items() if name != "version"}
            assert await send(under_test, told(fleet_of(under_test), version, **rest)) == 400
            assert under_test.peering.parts["gateway"].heard_totals() == {}
            async with under_test.post(GENERATE) as answer:
                assert answer.status == 200

    run(test)


def test_totals_of_too_many_routers_or_clients_are_refused():
    async def test():
        async with cluster(1, router=GATED) as (under_test, _):
            body = msgspec.json.decode(told(fleet_of(under_test)))
            body["gone"] = {str(number): body["parts"] for number in range(1_001)}
            assert await send(under_test, msgspec.json.encode(body)) == 400
            many = {f"c{number}": 1.0 for number in range(200_001)}
            assert await send(under_test, told(fleet_of(under_test), charged=many)) == 400

    run(test)


def test_silent_routers_are_forgotten_when_there_are_too_many():
    async def test():
        async with cluster(1, router={**GATED, "router": "d2lpm"}) as (under_test, _):
            peering = under_test.peering
            for part in range(3):
                body = msgspec.json.decode(peering.message())
                body |= {"origin": f"peer-{part}", "gone": {}}
                gone = {f"{part}-{number}": body["parts"] for number in range(900)}
                for parts in (body["parts"], *gone.values()):
                    for totals in parts.values():
                        totals[0] = 9  # the version
                body["gone"] = gone
                assert await send(under_test, msgspec.json.encode(body)) == 200
                if part == 0:  # nobody is forgotten as long as there are not too many
                    heard = [len(one.heard_totals()) for one in peering.parts.values()]
                    assert heard == [901, 901]
                body["gone"] = gone
                assert await send(under_test, msgspec.json.encode(body)) == 200
            heard = [set(one.heard_totals()) for one in peering.parts.values()]
            assert len(heard) == 2
            assert [len(one) for one in heard] == [1_000, 1_000]
            assert all({"peer-0", "peer-1", "peer-2"} <= one for one in heard)

    run(test)


@pytest.mark.parametrize(
    ("part", "place", "status"),
    [
        *(("gateway", 0, 200), ("gateway", 7, 200), ("gateway", 1, 409), ("gateway", 10**9, 409)),
        *(("router", 0, 200), ("router", 1, 409), ("router", -1, 409), ("router", 2**70, 409)),
    ],
)
def test_totals_of_missing_workers_or_bands_are_ignored(part, place, status):
    """Otherwise, an unknown band would be created with an additional queue."""

    async def test():
        settings = {"gateway.priority": {"vip": 7}}
        router = {**GATED, "router": "d2lpm", "settings": settings}
        async with cluster(1, router=router) as (under_test, _):
            body = msgspec.json.decode(under_test.peering.message())
            body["origin"] = "another"
            body["parts"][part] = [1, {"ann": {str(place): 5.0}}, {}, {}, 0]
            assert await send(under_test, msgspec.json.encode(body)) == status

    run(test)


@pytest.mark.slow
def test_messages_of_a_hostile_peer_are_answered_and_counters_stay_finite():
    """A peer that has the key mutates and replays messages, in any order."""

    async def test():
        rng = random.Random(32)
        router = {**GATED, "router": "d2lpm"}
        async with cluster(1, router=router) as (under_test, _):
            fleet = fleet_of(under_test)
            ends = Counter()
            for number in range(300):
                charged = {"ann": rng.choice((5.0, -5.0, 1e15, 1e300)), f"c{number}": 1.0}
                body = told(fleet, number + 1, charged=charged, parts=("gateway", "router"))
                body = body if rng.random() < 0.3 else mutated(body, rng)
                ends[await send(under_test, body)] += 1
                if rng.random() < 0.2:
                    ends[await send(under_test, body)] += 1  # a replayed message
            assert ends.keys() <= {200, 400, 409}
            assert min(ends[200], ends[400]) > 20
            policy = under_test.peering.parts["gateway"]._band(0).scheduler
            assert all(isfinite(one) for one in policy.counters.values())
            async with under_test.post(GENERATE) as answer:
                assert answer.status == 200

    run(test)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"settings": {"routers.every_s": 0.2, "concurrency.requests": 3}}, True),
        ({"settings": {"vtc.output_weight": 3}}, False),
        ({"settings": {"d2lpm.worker_quantum": 7}}, False),
        ({"gateway": None}, False),
        ({"workers": [WorkerAddress(NOBODY), WorkerAddress(NOBODY + "9")]}, False),
    ],
)
def test_peers_have_the_same_workers_and_count_in_the_same_way(changes, same):
    config = RouterConfig("d2lpm", [WorkerAddress(NOBODY)], gateway="vtc", **PEERS)
    assert (settings_hash(replace(config, **changes)) == settings_hash(config)) is same


def test_without_peers_the_path_does_not_exist():
    async def test():
        async with cluster(1) as (under_test, _):
            assert await send(under_test, told("any")) == 404

    run(test)


def test_a_client_waits_for_a_client_of_a_peer_and_a_dead_peer_costs_nothing():
    async def test():
        router = {**GATED, "settings": {**FAST, "routers.forget_s": 1e6}}
        async with cluster(1, router=router) as (under_test, _):
            fleet = fleet_of(under_test)
            ingress = under_test.proxy.dispatcher.ingress
            await send(under_test, told(fleet, 1, charged={"ann": 5000.0, "bob": 1.0}))
            # no client waits, and the peer NOBODY never answers
            assert await ask(under_test, "ann") == 200
            await send(under_test, told(fleet, 2, charged={"bob": 1.0}, waiting=["bob"]))
            asked = asyncio.ensure_future(ask(under_test, "ann"))
            await until(lambda: ingress.held_by_client() == {"ann": 1})
            await send(under_test, told(fleet, 3, charged={"bob": 9000.0}, waiting=["bob"]))
            assert await asked == 200

    run(test)


def test_the_clients_of_a_router_without_workers_delay_nobody():
    def waiting(under_test):
        message = msgspec.json.decode(under_test.peering.message(), type=PeerMessage)
        return set(message.parts["gateway"].waiting)

    async def test():
        router = {**GATED, "settings": {**FAST, "routers.forget_s": 1e6}}
        async with cluster(1, router=router) as (under_test, _):
            fleet, dispatcher = fleet_of(under_test), under_test.proxy.dispatcher
            charged = {"ann": 5000.0, "bob": 1.0}
            await send(under_test, told(fleet, 1, charged=charged, waiting=["bob"]))
            asked = asyncio.ensure_future(ask(under_test, "ann"))
            await until(lambda: dispatcher.ingress.held_by_client() == {"ann": 1})
            assert waiting(under_test) == {"ann"}
            dispatcher.eject(0)
            assert waiting(under_test) == set()
            dispatcher.join(0)
            await send(under_test, told(fleet, 2, charged={"bob": 9000.0}, waiting=["bob"]))
            assert await asked == 200

    run(test)


def test_clients_of_a_silent_peer_delay_others_only_briefly():
    async def test():
        router = {**GATED, "settings": {**FAST, "routers.forget_s": 0.3}}
        async with cluster(1, router=router) as (under_test, _):
            fleet = fleet_of(under_test)
            charged = {"ann": 5000.0, "bob": 1.0}
            await send(under_test, told(fleet, 1, charged=charged, waiting=["bob"]))
            assert await ask(under_test, "ann") == 200

    run(test)


@asynccontextmanager
async def peer_that_answers(answer):
    """Run a stand-in for a peer. Yield its URL and what it received."""
    told = []

    async def hear(request):
        told.append(msgspec.json.decode(await request.read(), type=PeerMessage))
        return web.Response(body=answer(told[-1]))

    app = web.Application()
    app.router.add_post(PATH, hear)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", told
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("answers", [True, False])
def test_a_peer_gets_only_changes_since_its_last_confirmation(answers):
    def answer(message):
        known = {message.origin: {"gateway": message.parts["gateway"].version}}
        return msgspec.json.encode(PeerState("peer", known)) if answers else b"{}"

    async def test():
        async with peer_that_answers(answer) as (url, told):
            router = {**GATED, "peers": (url,), "settings": FAST}
            async with cluster(1, router=router) as (under_test, _):
                assert await ask(under_test, "ann") == 200
                await until(lambda: told and "ann" in told[-1].parts["gateway"].charged)
                await until(lambda: len(told) > 9)
                await until(lambda: ("ann" in told[-1].parts["gateway"].charged) is not answers)
                assert await ask(under_test, "bob") == 200
                await until(lambda: "bob" in told[-1].parts["gateway"].charged)
                now = told[-1].parts["gateway"]
                assert ("ann" in now.charged, now.since > 0) == (not answers, answers)

    run(test)


async def ask(under_test, client):
    async with under_test.post(GENERATE, **{headers.CLIENT: client}) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--peer", NOBODY], "needs --peer-key-file"),
        (["--peer-key-file", "KEY"], "--peer-key-file needs --peer"),
        (["--peer", "nonsense", "--peer-key-file", "KEY"], "--peer nonsense"),
        (
            ["--peer", NOBODY, "--peer-key-file", "KEY", "--router", "round-robin"],
            "has no counters that peers can share; choose the",
        ),
        (["--peer", NOBODY, "--peer-key-file", "KEY", "--admin-port", "0"], "--admin-port"),
        (
            ["--peer", NOBODY, "--peer-key-file", "KEY", "--set", "routers.skew=2.0"],
            "routers.skew: only simulated routers support this",
        ),
    ],
)
def test_conflicting_flags_are_refused_in_one_line(flags, words, tmp_path):
    (tmp_path / "key").write_text("k\n")
    flags = [str(tmp_path / "key") if flag == "KEY" else flag for flag in flags]
    done = CliRunner().invoke(app, ["serve", "--port", "0", "--worker-url", NOBODY, *flags])
    assert done.exit_code == 2
    assert words in done.stderr


def test_the_key_is_shown_nowhere():
    config = RouterConfig("d2lpm", [WorkerAddress(NOBODY)], **PEERS)
    assert "among" not in repr(config)


# two processes

NUMBERS = count()


@asynccontextmanager
async def process(*arguments):
    """Start a command of fairbench. Return once it has printed its address."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fairbench", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        url = (await started.stdout.readline()).decode().strip().split()[-1]
        yield url, started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def premium_to_regular(key_file, *, peers):
    """Run two routers with one client each before an emulated worker, until 250 answers in all."""
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved("127.0.0.1", 0, "a port")) for _ in range(2)]
        return await served_by_two(ports, key_file, peers=peers)


async def served_by_two(ports, key_file, *, peers):
    async with process("emulate", "--port", 0, "--set", "engine.max_running_requests=4") as (
        worker,
        _,
    ):
        common = ["serve", "--worker-url", worker, "--router", "least-loaded", "--gateway", "vtc"]
        common += ["--saturation", "utilization", "--set", "utilization.credit=true"]
        common += ["--set", "utilization.waiting=2", "--weights", "premium=4"]
        flags = [[], []]
        if peers:
            sharing = ["--peer-key-file", key_file, "--set", "routers.ahead_tok_s=500"]
            sharing += ["--set", "routers.every_s=0.05"]
            flags = [["--peer", f"http://127.0.0.1:{port}", *sharing] for port in reversed(ports)]
        async with (
            process(*common, "--port", ports[0], *flags[0]) as (one, _),
            process(*common, "--port", ports[1], *flags[1]) as (other, second),
            ClientSession() as session,
        ):
            answered = await flooded(session, {"premium": one, "regular": other})
            if peers:  # the second router dies, and premium continues
                second.kill()
                await second.wait()
                assert await answer_of(session, one, "premium") == 200
            return answered["premium"] / answered["regular"]


async def flooded(session, urls):
    """Return answers by client, each with 12 requests in flight at a separate router."""
    answered = Counter()

    async def again(client):
        while answered.total() < 500:
            assert await answer_of(session, urls[client], client) == 200
            answered[client] += 1

    async with asyncio.TaskGroup() as group:
        for client in urls:
            for _ in range(12):
                group.create_task(again(client))
    return answered


async def answer_of(session, url, client):
    # Prompts with a prime period would be cached after 150 requests, and then charged a tenth.
    ids = [next(NUMBERS) % 29_989 for _ in range(200)]
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 8, "ignore_eos": True}}
    named = {headers.CLIENT: client}
    async with session.post(url + GENERATE, json=body, headers=named) as answer:
        await answer.read()
        return answer.status


@pytest.mark.slow
@pytest.mark.alone
def test_two_routers_serve_four_to_one_by_weight_only_as_peers(tmp_path):
    key_file = tmp_path / "key"
    key_file.write_text("among routers\n")
    assert asyncio.run(premium_to_regular(key_file, peers=False)) < 1.5
    # 4, except that regular continues with a dozen requests after premium ends
    assert 3.2 < asyncio.run(premium_to_regular(key_file, peers=True)) < 4.5
