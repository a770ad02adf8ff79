"""Test a gateway in the router's process: queueing, dispatch, charges and refunds."""

import asyncio
from array import array
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.build import build_gateway
from fairbench.schedulers.registry import build_router
from fairbench.schedulers.views import WorkerLoad
from fairbench_load.http_server import Problem
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.answers import Charge
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.ingress import RequestInFlight
from fairbench_serve.worker_info import PolledLoads, Told, told_by
from tests.emulator.live_emulator import running
from tests.serve.live_router import CHAT, GENERATE, Flood, cluster, router_before, streamed, until

CLIENT = "x-fairbench-client"
ONE = {"gateway": "vtc", "settings": {"concurrency.requests": 1}}


class Clock:
    """A clock that the test sets, with one alarm."""

    def __init__(self):
        self.now = 0.0
        self.ring = None

    def __call__(self):
        return self.now

    def alarm(self, delay_s, ring):
        self.ring = (self.now + delay_s, ring)
        return self

    def cancel(self):
        self.ring = None

    def wait(self, until_s):
        """Advance the clock, and ring the alarms that are due by then."""
        while self.ring and self.ring[0] <= until_s:
            self.now, ring = self.ring
            self.ring = None
            ring()
        self.now = until_s


def desk(policy="vtc", workers=1, **settings):
    """Return a dispatcher behind a gateway that sends each worker one request at a time."""
    clock = Clock()
    at = Dispatcher(build_router("least-loaded", {}, workers), workers, 1_000, clock)
    at.router.prepare(Setup(fleet=at))
    given = {"concurrency.requests": 1} | {key.replace("__", "."): v for key, v in settings.items()}
    setup = Setup(pool_tokens=1_000, fleet=at)
    gateway = build_gateway(policy, "concurrency", given, router=at.router, setup=setup)
    at.hold(gateway, clock.alarm)
    return at, clock


def asked(at, client="ann", tokens=100):
    return at.make_request(client, array("I", range(tokens)), 8, -1, 0)


def counters(at):
    return at.ingress.queue.balances[0]


def served(at, flight, charge):
    at.finish(flight, charge.output_tokens)
    at.close_request(flight.request, charge)


def test_the_next_request_goes_when_one_ends_and_the_client_with_least_service_first():
    at, _ = desk()
    first = at.dispatch(asked(at, "flood"))
    told = []
    for client in ("flood", "flood", "ann"):
        assert at.dispatch(asked(at, client), told.append) is None
    assert at.ingress.held_by_client() == {"flood": 2, "ann": 1}
    served(at, first, Charge(100, 8, 0))
    assert [flight.request.client for flight in told] == ["ann"]
    served(at, told[0], Charge(100, 8, 0))
    served(at, told[1], Charge(100, 8, 0))
    served(at, told[2], Charge(100, 8, 0))
    assert counters(at) == {"flood": 3 * 116, "ann": 100 + 116}  # lifted to 100 on arrival
    assert at.under_way == 0


@pytest.mark.parametrize(("policy", "sign"), [("vtc", 1), ("dlpm", -1), ("drr", -1), ("wfq", 1)])
@pytest.mark.parametrize(
    "charge", [Charge(), Charge(100, 8, 0), Charge(400, 8, 0), Charge(90, 0, 64)]
)
def test_the_dispatch_charge_is_corrected_by_the_true_cost(policy, sign, charge):
    """The estimate was 100 tokens. Gateway policies count cached tokens, schedulers do not."""
    at, _ = desk(policy, concurrency__requests=9)
    # one request stays, and so does its client
    flight, _ = at.dispatch(asked(at)), at.dispatch(asked(at))
    before = counters(at)["ann"]
    served(at, flight, charge)
    guessed = 100 + 2 * 128 if policy in ("drr", "wfq") else 100
    cached = 0 if policy in ("drr", "wfq") else charge.cached_tokens
    cost = charge.input_tokens - cached + 2 * charge.output_tokens
    assert sign * (counters(at)["ann"] - before) == cost - guessed


def test_an_owner_has_one_share_under_any_names():
    limits = {"gateway__client_requests": 4, "gateway__tenants": "tree"}
    at, _ = desk("fcfs", concurrency__requests=99, **limits)
    told = []
    assert at.dispatch(asked(at, "ann")) is not None
    sent = [at.dispatch(asked(at, f"mal/{number}"), told.append) for number in range(6)]
    assert [flight is not None for flight in sent] == [True] * 2 + [False] * 4
    assert at.dispatch(asked(at, "ann"), told.append) is not None
    served(at, sent[0], Charge(100, 8, 0))
    assert [flight.request.client for flight in told] == ["mal/2"]
    assert at.ingress.held_by_client() == {"mal/3": 1, "mal/4": 1, "mal/5": 1}
    alone, _ = desk("fcfs", concurrency__requests=99, **limits)
    sent = [alone.dispatch(asked(alone, f"mal/{number}"), told.append) for number in range(6)]
    assert sum(flight is not None for flight in sent) == 4


def test_an_abandoned_request_leaves_no_trace():
    at, _ = desk()
    first, told = at.dispatch(asked(at, "flood")), []
    gone = asked(at, "ann")
    assert at.dispatch(gone, told.append) is None
    at.close_request(gone)
    at.close_request(gone)
    assert (at.under_way, told) == (1, [])
    served(at, first, Charge(100, 8, 0))
    assert told == []
    assert at.dispatch(asked(at, "bob")) is not None


def test_a_retried_request_neither_waits_nor_pays_again():
    at, _ = desk("token-bucket", workers=2, **{"token-bucket__burst": 1.0})
    flight = at.dispatch(asked(at))
    at.finish(flight, 0, failed=True)
    again = at.dispatch(flight.request)
    assert again is not None
    served(at, again, Charge(100, 8, 0))
    with pytest.raises(
        Problem, match="the queue is full for this client; try again later"
    ) as raised:
        at.dispatch(asked(at))
    assert (raised.value.status, raised.value.retry_after_s) == (429, 5)


def test_an_expired_request_is_refused_exactly_on_time():
    at, clock = desk(gateway__ttl_s=30.0)
    flight, told = at.dispatch(asked(at)), []
    clock.wait(10.0)
    at.dispatch(asked(at), told.append)
    clock.wait(39.9)
    assert told == []
    clock.wait(40.1)
    assert [(one.status, one.retry_after_s) for one in told] == [(429, 5)]
    assert at.under_way == 1
    served(at, flight, Charge(100, 8, 0))
    assert len(told) == 1


def test_a_request_that_expires_without_any_worker_is_a_server_error():
    at, clock = desk(gateway__ttl_s=30.0)
    flight, told = at.dispatch(asked(at)), []
    at.dispatch(asked(at), told.append)
    at.leave(0)
    at.finish(flight, 0, failed=True)
    at.close_request(flight.request)
    clock.wait(31.0)
    assert [one.status for one in told] == [503]


def test_a_full_gateway_refuses_and_a_higher_band_displaces():
    settings = {"gateway__max_requests": 1, "gateway__priority": {"gold": 1}}
    at, _ = desk(**settings)
    at.dispatch(asked(at))
    told = []
    at.dispatch(asked(at), told.append)
    with pytest.raises(Problem):
        at.dispatch(asked(at, "bob"))
    assert at.dispatch(asked(at, "gold"), told.append) is None
    assert [one.status for one in told] == [429]
    assert at.ingress.held_by_client() == {"gold": 1}


PAGES = [
    (
        b'{"loads": [{"num_waiting_reqs": 2, "num_running_reqs": 5, "token_usage": 0.25},'
        b' {"num_waiting_reqs": 1, "num_running_reqs": 4, "token_usage": 0.75}]}',
        Told(3, 9, 0.5),
    ),
    (
        b'sglang:num_queue_reqs{model_name="m"} 3.0\nsglang:num_running_reqs{model_name="m"} 8.0\n'
        b'sglang:token_usage{model_name="m"} 0.5\n',
        Told(3, 8, 0.5),
    ),
    (
        b"# HELP vllm:num_requests_waiting x\nvllm:num_requests_running 8.0\n"
        b"vllm:num_requests_waiting 1.0\nvllm:kv_cache_usage_perc 1e-1\n",
        Told(1, 8, 0.1),
    ),
    *((page, None) for page in (b"", b"[]", b'{"loads": [1]}', b'{"detail": "Not Found"}')),
    (b"sglang:num_queue_reqs nan\nsglang:num_running_reqs 1\nsglang:token_usage 0.5\n", None),
]


@pytest.mark.parametrize(("page", "told"), PAGES)
def test_a_worker_reports_its_load(page, told):
    assert told_by(page) == told


def test_an_old_load_report_is_ignored():
    clock = Clock()
    at = Dispatcher(build_router("round-robin", {}, 2), 2, 1_000, clock)
    loads = PolledLoads(at, 1_000, 0.2, clock)
    assert loads.load(0).queued is None
    loads.record_report(0, Told(3, 9, 0.5))
    assert loads.load(0) == WorkerLoad(0, 500, 3, 9, True)
    clock.now = 0.3
    assert loads.load(0).queued is None


def run(test):
    asyncio.run(test())


def ask(under_test, client, body=None):
    async def answered():
        async with under_test.post(GENERATE, body, **{CLIENT: client}) as answer:
            await answer.read()
            return answer.status

    return asyncio.create_task(answered())


def test_requests_queue_here_and_a_leaving_client_frees_its_slot():
    async def test():
        async with cluster(1, router=ONE, held_at=0) as (under_test, [worker]):
            first = ask(under_test, "flood")
            await until(lambda: len(worker.seen) == 1)
            gone, last = ask(under_test, "flood"), ask(under_test, "ann")
            await until(lambda: under_test.proxy.dispatcher.under_way == 3)
            assert await under_test.metric('fairbench_held_requests{client="ann"}') == 1
            gone.cancel()
            await until(lambda: under_test.proxy.dispatcher.under_way == 2)
            worker.released.set()
            assert await asyncio.gather(first, last) == [200, 200]
            assert [seen[1]["x-smg-routing-key"] for seen in worker.seen] == ["flood", "ann"]
            assert under_test.proxy.dispatcher.under_way == 0
            assert await under_test.metric('fairbench_held_seconds_total{client="ann"}') > 0
            # 100 tokens, 32 of them cached, and 3 output tokens; ann was lifted to the service of
            # flood
            assert counters(under_test.proxy.dispatcher) == {"flood": 74, "ann": 174}

    run(test)


def test_a_stream_counts_until_its_end():
    async def test():
        async with cluster(1, router=ONE, held_at=1) as (under_test, [worker]):
            async with under_test.post(CHAT, streamed(CHAT), **{CLIENT: "a"}) as answer:
                await answer.content.readany()
                second = ask(under_test, "b")
                await until(lambda: under_test.proxy.dispatcher.under_way == 2)
                assert len(worker.seen) == 1
                worker.released.set()
                await answer.read()
            assert await second == 200

    run(test)


def test_a_failing_workers_charge_is_refunded():
    async def test():
        async with cluster(1, router=ONE, status=500) as (under_test, _):
            assert await ask(under_test, "ann") == 500
            assert counters(under_test.proxy.dispatcher) == {"ann": 0}
            assert under_test.proxy.dispatcher.under_way == 0

    run(test)


def test_an_evicted_request_leaves_the_gateway_too():
    async def test():
        router = {**ONE, "max_queue": 3}
        async with cluster(1, router=router, held_at=0) as (under_test, [worker]):
            first = ask(under_test, "flood")
            await until(lambda: len(worker.seen) == 1)
            second = ask(under_test, "flood")
            await until(lambda: under_test.proxy.dispatcher.under_way == 2)
            third = ask(under_test, "flood")
            await until(lambda: under_test.proxy.dispatcher.under_way == 3)
            modest = ask(under_test, "ann")
            assert await third == 429
            assert under_test.proxy.dispatcher.ingress.held_by_client() == {"flood": 1, "ann": 1}
            worker.released.set()
            assert await asyncio.gather(first, second, modest) == [200, 200, 200]

    run(test)


RUNS_2 = {"max_running_requests": 2, "max_total_num_tokens": 10_000}
SAID = [
    ("auto", RUNS_2, {}, 3),
    ("auto of vLLM", {"vllm_config": {"scheduler_config": {"max_num_seqs": 2}}}, {}, 3),
    ("auto of many", {"max_running_requests": 41, "max_total_num_tokens": 10_000}, {}, 44),
    ("the prompts of two", {"max_running_requests": 9, "max_total_num_tokens": 150}, {}, 2),
    ("nothing beyond it", RUNS_2, {"concurrency.headroom": 0}, 2),
    ("so many beyond it", RUNS_2, {"concurrency.headroom": 3}, 5),
    ("exactly", RUNS_2, {"concurrency.requests": 4}, 4),
]


@pytest.mark.parametrize(("info", "settings", "most"), [one[1:] for one in SAID])
def test_as_many_requests_go_as_workers_report_that_they_can_run(info, settings, most):
    """A few more wait at the workers, unless the operator has set their number."""

    async def test():
        router = {"gateway": "fcfs", "settings": settings}
        async with cluster(1, router=router, info=info, held_at=0) as (under_test, [worker]):
            asked = [ask(under_test, "ann") for _ in range(most + 2)]
            await until(lambda: under_test.proxy.dispatcher.under_way == most + 2)
            assert under_test.proxy.dispatcher.ingress.held_by_client() == {"ann": 2}
            worker.released.set()
            assert await asyncio.gather(*asked) == [200] * (most + 2)

    run(test)


def test_a_full_worker_gets_no_requests():
    async def test():
        router = {"gateway": "vtc", "saturation": "utilization"}
        async with cluster(1, router=router, load=[9, 1, 0.1]) as (under_test, [worker]):
            asked = ask(under_test, "ann")
            await until(lambda: under_test.proxy.dispatcher.under_way == 1)
            before = worker.polls
            await until(lambda: worker.polls >= before + 3)
            assert worker.seen == []
            worker.load = [0, 1, 0.1]
            assert await asked == 200

    run(test)


@pytest.mark.parametrize("policy", ["fcfs", "vtc", "dlpm"])
def test_requests_to_workers_that_report_no_load_are_refused_at_once(policy):
    """Queued requests are refused, too. A worker that reports later is used, and one is enough."""

    async def test():
        router = {"gateway": policy, "saturation": "utilization"}
        async with cluster(2, router=router) as (under_test, workers):
            dispatcher = under_test.proxy.dispatcher
            async with under_test.post(GENERATE) as answer:
                told = answer.status, (await answer.json())["error"]["message"]
            assert told[0] == 503
            assert "no worker reports at /v1/loads or /metrics" in told[1]
            assert dispatcher.under_way == 0
            workers[0].load = [0, 0, 0.0]
            await until(lambda: dispatcher.ingress.blocked() is None)
            assert await ask(under_test, "ann") == 200
            workers[0].load = [9, 1, 0.1]
            before = workers[0].polls
            await until(lambda: workers[0].polls >= before + 2)
            asked = ask(under_test, "ann")
            await until(lambda: dispatcher.under_way == 1)
            workers[0].healthy = False  # the other worker never reports
            assert await asked == 503
            workers[0].healthy = True
            workers[0].load = [0, 0, 0.0]
            await until(lambda: 0 in under_test.up and dispatcher.ingress.blocked() is None)
            assert await ask(under_test, "ann") == 200

    run(test)


def test_a_worker_that_no_longer_reports_is_blind_only_after_a_while():
    now_s, up = [0.0], [0]
    fleet = SimpleNamespace(workers=lambda: up, release=lambda: None)
    loads = PolledLoads(fleet, 1000, 0.2, lambda: now_s[0])
    assert loads.blocked() is None, "it was not asked yet"
    loads.record_report(0, Told(0, 0, 0.0))
    loads.record_report(0, None)
    assert loads.blocked() is None
    now_s[0] = 5.1
    assert "no worker reports" in loads.blocked()
    up.append(1)  # a new one
    assert loads.blocked() is None
    loads.record_report(1, None)
    assert loads.blocked() is not None
    up.clear()
    assert loads.blocked() is None


FLOOD, MODEST, AT_ONCE = 30, 6, 4
# A quantum is worth one request, because a well-behaved client has only a few waiting.
SMALL = {"dlpm": {"dlpm.quantum": 96}}


@asynccontextmanager
async def stock_worker():
    """Run a first-come, first-served emulated worker. Yield its address."""
    settings = {"engine.max_running_requests": AT_ONCE}
    async with running(asyncio.get_running_loop(), settings=settings) as (_, session):
        yield WorkerAddress(str(session._base_url).rstrip("/"))


async def shares(requests, **router):
    """Return a heavy and a well-behaved client's service, and how often a slot was empty."""
    async with stock_worker() as address, router_before([address], **router) as under_test:
        flood = Flood({"flood": FLOOD, "ann": MODEST}, requests, AT_ONCE, prompt=64, vocab=30_000)
        return await flood.against(under_test, {"max_new_tokens": 16})


@pytest.mark.parametrize("policy", [None, "vtc", "dlpm"])
def test_a_modest_client_gets_its_share_over_a_stock_worker(policy):
    """All requests are equally long. Half of them are the well-behaved client's fair share."""
    router = {} if policy is None else {"gateway": policy, "settings": SMALL.get(policy, {})}
    had, idle = asyncio.run(shares(120, **router))
    share = had["ann"] / had.total()
    assert share >= 0.9 / 2 if policy else share < 0.5 / 2
    assert idle == 0  # fairness costs no throughput


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "serve", "fail", "retry", "go away", "leave", "join", "wait"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@pytest.mark.parametrize("policy", ["dlpm", "token-bucket"])
@given(steps=STEPS)
# a lost request is no longer counted
@example(steps=[*[("ask", 0)] * 3, ("leave", 0), ("join", 0)])
# a retried request is no longer counted at its first worker
@example(steps=[("ask", 0), ("retry", 0), ("leave", 1), ("ask", 0)])
@example(steps=[*[("ask", 0)] * 3, ("leave", 0), ("retry", 0), ("join", 0)])
def test_each_request_ends_once_and_none_queues_needlessly(policy, steps):
    at, clock = desk(policy, workers=2, gateway__ttl_s=30.0)
    told, waiting, away = {}, {}, []

    def ended(made, end):
        assert made not in told
        waiting.pop(made, None)
        told[made] = end

    for step, number in steps:
        flying = [end for end in told.values() if isinstance(end, RequestInFlight)]
        one = flying[number % len(flying)] if flying else None
        if step == "ask" and at.up:
            made = asked(at, f"client-{number % 3}", 10 * number)
            waiting[made] = None
            with suppress(Problem):
                flight = at.dispatch(made, partial(ended, made))
                if flight is not None:
                    ended(made, flight)
            if made in waiting and made not in at.ingress:
                ended(made, None)
        elif step == "serve" and one:
            told[one.request] = None
            served(at, one, Charge(number, number, 0))
        elif step in ("fail", "retry") and one:
            at.finish(one, 0, failed=True)
            told[one.request] = None
            if step == "retry" and at.up:
                told[one.request] = at.dispatch(one.request)
            else:
                at.close_request(one.request)
        elif step == "go away" and waiting:
            made = next(iter(waiting))
            at.close_request(made)
            del waiting[made]
            away.append(made)
        elif step == "leave":
            at.leave(number % 2)
        elif step == "join":
            at.join(number % 2)
        elif step == "wait":
            clock.wait(clock.now + 4 * number)
        assert set(waiting) == {made for made in waiting if made in at.ingress}
        assert len(at.ingress) == len(waiting)
        # The total is limited, because a retried request may be the second at its worker.
        under_way = sum(at.load(worker).in_flight for worker in at.up)
        assert not waiting or under_way >= len(at.up)
        assert not any(made in told for made in away)
    clock.wait(clock.now + 60.0)
    while flying := [end for end in told.values() if isinstance(end, RequestInFlight)]:
        told[flying[0].request] = None
        served(at, flying[0], Charge(1, 1, 0))
    assert (len(at.ingress), waiting, at.under_way) == (0, {}, 0)
