"""Test admission control in the router's process: 429 with Retry-After, demotion, rerouting."""

import asyncio
from array import array
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.schedulers.base import Setup
from fairbench.schedulers.gateway.build import with_admission
from fairbench.schedulers.gateway.registry import AdmissionParams
from fairbench.schedulers.gateway.rerouting import rerouting
from fairbench.schedulers.registry import build_router
from fairbench_load.http_server import Problem
from fairbench_serve.dispatcher import Dispatcher
from tests.serve.live_router import GENERATE, cluster, until

DEADLINE, DEMOTED = "x-request-deadline-ms", "x-fairbench-demoted"
# a worker with minutes of work, and a worker without work
BUSY, FREE = [100_000, 2, 0.5], [0, 1, 0.1]
SOON_MS = 30_000  # long enough for a slow machine
CONTROL = {"admission.profile": "a100", "admission.ahead": "all"}


class Costs:
    """Costs: 1 s per 100 tokens of prompt, and 0.1 s per step."""

    def prefill_s(self, cached_tokens, new_tokens):
        return new_tokens / 100

    def decode_step_s(self, requests, context_tokens):
        return 0.1


def desk(workers=1, router="round-robin", **params):
    at = Dispatcher(rerouting(build_router(router, {}, workers)), workers, 1_000, lambda: 0.0)
    setup = Setup(pool_tokens=1_000, fleet=at, costs=Costs())
    at.router.prepare(setup)
    given = AdmissionParams(**({"policy": "refuse", "ahead": "all"} | params))
    at.hold(with_admission(None, given, router=at.router, setup=setup))
    return at


def asked(at, due_s=None, tokens=100):
    request = at.make_request("ann", array("I", range(tokens)), 8, -1, 0)
    return replace(request, first_token_by_s=due_s)


def test_a_late_request_is_refused_with_the_delay():
    at = desk()
    assert at.dispatch(asked(at)) is not None
    assert at.dispatch(asked(at, 1.5)) is not None
    with pytest.raises(
        Problem, match=r"the request would miss its deadline by about 6\.0 s"
    ) as raised:
        at.dispatch(asked(at, 1.0, tokens=700))
    assert (raised.value.status, raised.value.retry_after_s) == (429, 6)
    assert at.under_way == 2


def test_a_retried_request_leaves_no_trace():
    at = desk(2)
    flight = at.dispatch(asked(at, 1.5))
    at.finish(flight, 0, failed=True)
    again = at.dispatch(flight.request)
    at.finish(again, 8)
    at.close_request(flight.request)
    assert at.under_way == 0
    estimator = at.ingress.queue._estimator
    assert not any(estimator._sent.values())
    assert estimator.expected_output(asked(at)) == 1  # the cost of the refused try was not reported


def test_the_router_learns_when_admission_control_overrules_its_choice():
    at = desk(2, "least-loaded", ahead="all")
    at.router.choose = lambda request, worker, now_s: 1 - worker
    flight = at.dispatch(asked(at))
    assert flight.worker == 1
    counted = at.router.router._fleet
    assert counted.unfinished_at(0) == 1
    at.finish(flight, 3)
    assert counted.unfinished_at(0) == 0


def run(test):
    asyncio.run(test())


def router(policy, **more):
    return {"settings": {"admission.policy": policy, **CONTROL, **more}}


async def answered(under_test, deadline_ms=None):
    headers = {} if deadline_ms is None else {DEADLINE: str(deadline_ms)}
    async with under_test.post(GENERATE, **headers) as answer:
        return answer.status, answer.headers, await answer.json()


def test_over_http_a_request_that_cannot_be_in_time_gets_429():
    async def test():
        async with cluster(1, router=router("refuse"), load=BUSY) as (under_test, [worker]):
            await until(lambda: worker.polls > 1)
            status, headers, body = await answered(under_test, SOON_MS)
            assert status == 429
            assert int(headers["Retry-After"]) > 60
            assert "the request would miss its deadline by about" in body["error"]["message"]
            assert worker.seen == []
            assert (await answered(under_test, 10 * 3_600_000))[0] == 200
            assert (await answered(under_test))[0] == 200  # the request has no deadline
            assert await under_test.metric('fairbench_refused_total{status="429"}') == 1
            worker.load, before = FREE, worker.polls
            await until(lambda: worker.polls > before + 1)
            # the worker no longer signals saturation
            assert (await answered(under_test, SOON_MS))[0] == 200
            assert len(worker.seen) == 3

    run(test)


def test_over_http_a_demoted_request_waits_and_is_marked():
    async def test():
        async with cluster(1, router=router("demote"), load=BUSY) as (under_test, [worker]):
            await until(lambda: worker.polls > 1)
            late = asyncio.create_task(answered(under_test, SOON_MS))
            await until(lambda: under_test.proxy.dispatcher.under_way == 1)
            status, headers, _ = await answered(under_test)
            assert status == 200
            assert DEMOTED not in headers
            assert not late.done()
            worker.load = FREE
            status, headers, _ = await late
            assert (status, headers[DEMOTED]) == (200, "1")

    run(test)


def test_over_http_a_request_goes_to_the_worker_that_is_not_saturated():
    async def test():
        async with cluster(2, router=router("refuse"), load=FREE) as (under_test, workers):
            workers[0].load = BUSY
            before = workers[0].polls
            await until(lambda: workers[0].polls > before + 1 and workers[1].polls > 1)
            for _ in range(4):
                assert (await answered(under_test, SOON_MS))[0] == 200
            assert [len(worker.seen) for worker in workers] == [0, 4]

    run(test)


def serve(*flags):
    named = ["--worker-url", "http://127.0.0.1:9", "--dry-run"]
    settings = [word for flag in flags for word in ("--set", flag)]
    return CliRunner().invoke(app, ["serve", *named, *settings])


def test_the_plan_lists_admission_control():
    said = serve("admission.policy=refuse", "admission.profile=a100")
    assert said.exit_code == 0, said.output
    assert '"admission.policy" = "refuse"' in said.stdout
    assert "admission" not in serve().stdout


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["admission.policy=refuse"], "set admission.profile, too"),
        (["admission.policy=refuse", "admission.profile=x9"], "x9"),
        (["admission.margin=0"], "admission.margin"),
    ],
)
def test_errors_are_one_line(flags, why):
    said = serve(*flags)
    assert said.exit_code == 2
    (line,) = said.stderr.strip().splitlines()
    assert why in line
