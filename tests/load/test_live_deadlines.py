"""Test deadlines of live requests: headers, transport, and the schedulers that support them."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.targets import NOT_DUE, Due
from fairbench_engines.scheduler_host import request_of
from fairbench_load import headers
from fairbench_load.headers import tagged, untagged
from fairbench_load.http_server import Problem
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.config import promises
from tests.emulator.live_emulator import running
from tests.serve.live_router import CHAT, GENERATE, PATHS, cluster, router_before, until

OBJECTIVE, OLD_OBJECTIVE = headers.OBJECTIVE_ALIASES
FLAGS = {"gold.ttft": "500ms", "batch.e2el": "60s", "e2el": "20s"}

names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1)
times = st.none() | st.integers(-(10**9), 10**9)


@given(names, times, times, st.none() | st.integers(0, 10**6), st.integers(0, 10**6))
def test_deadlines_are_sent_under_any_header_name(client, first, end, pace, later_s):
    ends = [None if ms is None else 5.0 + ms / 1000 for ms in (first, end)]
    due = Due(*ends, None if pace is None else pace / 1000)
    told, there = untagged(tagged(client, due, 5.0), float(later_s))
    assert told == client
    assert there.token_every_s == due.token_every_s
    for sent_s, got_s in zip(due[:2], there[:2], strict=True):
        left = None if sent_s is None else later_s + sent_s - 5.0
        assert got_s == (None if left is None else pytest.approx(left, abs=0.002))


def test_without_deadlines_a_name_is_unchanged():
    assert tagged("ann", NOT_DUE, 5.0) == "ann"
    assert untagged("ann;due=1", 5.0) == ("ann;due=1", NOT_DUE)
    assert untagged("ann;due=500,,25", 5.0, scale=2.0) == ("ann", Due(6.0, None, 0.05))


def test_deadlines_within_a_lifetime_have_readable_names():
    name, due = untagged(tagged("ann", Due(1e300, -1e300, 1e300), 5.0), 5.0)
    assert name == "ann"
    assert None not in due


@pytest.mark.parametrize(
    ("sent", "due"),
    [
        ({}, Due(None, 120.0)),
        ({headers.DEADLINE: "1500"}, Due(None, 101.5)),
        ({OBJECTIVE: "gold"}, Due(100.5, 120.0)),
        ({OLD_OBJECTIVE: "batch"}, Due(None, 160.0)),
        ({OBJECTIVE: "batch", OLD_OBJECTIVE: "gold"}, Due(None, 160.0)),
        ({OBJECTIVE: "gold", headers.DEADLINE: "9000"}, Due(100.5, 109.0)),
    ],
)
def test_the_due_time_of_a_request(sent, due):
    assert promises(FLAGS).promise_for(sent).due(100.0, 8) == due


def test_objectives_are_ignored_if_none_is_configured():
    assert promises(None).promise_for({OBJECTIVE: "premium"}).due(1.0, 8) == NOT_DUE
    assert promises({"ttft": "1s"}).promise_for({OBJECTIVE: "premium"}).due(1.0, 8) == Due(
        2.0, None
    )


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "1e3", "soon", "86400001", "9" * 99, "٣"])
def test_an_invalid_deadline_is_a_bad_request(text):
    with pytest.raises(
        Problem, match=r"x-request-deadline-ms: .* must be a number of milli"
    ) as bad:
        promises(None).promise_for({headers.DEADLINE: text})
    assert bad.value.status == 400


def test_an_unknown_objective_is_a_bad_request():
    with pytest.raises(Problem, match=r"unknown objective 'glod'.*Did you mean 'gold'"):
        promises(FLAGS).promise_for({OBJECTIVE: "glod"})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gold.ttft": "5x"}, "--goodput ttft:5x: multiples of the latency on an idle"),
        ({"gold.ttff": "5s"}, "latency in --goodput gold 'ttff'"),
        ({"ttft": "soon"}, "--goodput.ttft = 'soon'"),
    ],
)
def test_flags_that_promise_nothing_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        promises(flags)


def test_flags_are_shown_as_given():
    assert promises(FLAGS).table() == {
        "e2el": "20000ms",
        "gold.ttft": "500ms",
        "gold.e2el": "20000ms",
        "batch.e2el": "60000ms",
    }


async def answered(under_test, path, **sent):
    async with under_test.post(path, **sent) as answer:
        return answer.status, await answer.json()


def test_a_router_refuses_wrong_deadlines_without_asking_a_worker():
    async def run():
        async with cluster(1) as (under_test, (worker,)):
            return await answered(under_test, CHAT, **{headers.DEADLINE: "soon"}), worker.seen

    (status, body), seen = asyncio.run(run())
    assert (status, seen) == (400, [])
    assert "'soon' must be a number of milliseconds from 1 to" in body["error"]["message"]


@pytest.mark.parametrize("path", [GENERATE, CHAT])
def test_a_gateway_orders_by_deadline_and_forwards_the_remaining_time(path):
    """Three requests wait for the running one. The one with the earliest deadline arrived last."""
    held = {"gateway": "fcfs", "settings": {"concurrency.requests": 1, "gateway.order": "edf"}}

    async def run():
        async with cluster(1, held_at=0, router=held) as (under_test, (worker,)):
            asked = [asyncio.create_task(answered(under_test, path))]
            await until(lambda: worker.seen)
            for count, ms in enumerate(("90000", "60000", "30000"), 2):
                asked.append(
                    asyncio.create_task(answered(under_test, path, **{headers.DEADLINE: ms}))
                )
                await until(lambda count=count: under_test.proxy.dispatcher.under_way == count)
            worker.released.set()
            await asyncio.gather(*asked)
            return worker.seen

    seen = asyncio.run(run())
    told = [sent[headers.ROUTING_KEY] for _, sent, _ in seen]
    if path == GENERATE:
        assert told == [body["routing_key"] for _, _, body in seen]
    assert told[0] == "default"
    left = []
    for name in told[1:]:
        client, due = untagged(name, 0.0)
        assert (client, due.first_token_s) == ("default", None)
        left.append(due.end_s)
    assert left == sorted(left)
    assert all(most - 30 < one <= most for one, most in zip(left, (30, 60, 90), strict=True))


@pytest.mark.parametrize(
    ("local", "order"), [("edf", ["soon", "mid", "late"]), ("fcfs", ["late", "soon", "mid"])]
)
def test_emulated_workers_order_by_the_routers_deadlines(local, order):
    """A request runs until three others wait, whose deadlines are not in order of arrival."""
    due_ms = {"late": "500000", "soon": "400000", "mid": "450000"}

    async def run():
        loop, over = asyncio.get_running_loop(), []
        limit = {"engine.max_running_requests": 1}
        async with running(loop, settings=limit, local=local, time_scale=1.0) as (
            emulator,
            session,
        ):
            worker = WorkerAddress(str(session._base_url).rstrip("/"))
            async with router_before([worker]) as under_test:

                async def ask(name, tokens):
                    body = {**PATHS[GENERATE], "sampling_params": {"max_new_tokens": tokens}}
                    sent = {headers.DEADLINE: due_ms[name]} if name in due_ms else {}
                    async with under_test.post(GENERATE, body, **sent) as answer:
                        assert answer.status == 200
                        await answer.read()
                    over.append(name)

                long = asyncio.create_task(ask("now", 100_000))
                engine, tasks = emulator.engine.worker, []
                await until(lambda: engine.batch.sequences)
                for count, name in enumerate(due_ms, 1):
                    tasks.append(asyncio.create_task(ask(name, 2)))
                    await until(lambda count=count: len(engine.waiting) == count)
                long.cancel()
                await asyncio.gather(*tasks)
        return over

    assert asyncio.run(run()) == order


def test_in_an_engine_the_scheduler_knows_client_and_deadlines():
    request = request_of(tagged("ann", Due(None, 9.0), 7.0), [1], 1, 0, 100.0)
    assert (request.client, request.first_token_by_s, request.deadline_s) == ("ann", None, 102.0)
