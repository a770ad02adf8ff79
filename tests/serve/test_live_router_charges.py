"""Test the charges of a client, whatever the worker reports and however the request ends."""

import asyncio
import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.registry import build_router
from fairbench_load import headers
from fairbench_serve.answers import Charge, HighestCost, Pace, Usage, broken_off, reported
from fairbench_serve.dispatcher import Dispatcher
from tests.serve.live_router import COMPLETIONS, GENERATE, PATHS, cluster, streamed, until

ASKED = HighestCost(prompt_tokens=100, most_input_tokens=100, most_output_tokens=50)
COUNTS = st.none() | st.integers(-(2**70), 2**70)


@given(COUNTS, COUNTS, COUNTS, st.floats(0, 1e9), st.none() | st.floats(1e-6, 1e6))
def test_no_charge_is_negative_or_above_the_request(read, produced, cached, elapsed, pace):
    usage = Usage(read, produced, cached)
    left = broken_off(usage, ASKED, elapsed, pace, left=True)
    for charge in (reported(usage, ASKED), broken_off(usage, ASKED, elapsed, pace), left):
        assert 0 <= charge.cached_tokens <= charge.input_tokens <= 100
        assert 0 <= charge.output_tokens <= 50


def test_a_plausible_usage_report_counts():
    assert reported(Usage(100, 7, 32), ASKED) == Charge(100, 7, 32)


@pytest.mark.parametrize("absurd", [10**30, -1, -(10**9), None])
def test_an_absurd_usage_does_not_make_a_prompt_free(absurd):
    asked = HighestCost(prompt_tokens=80, most_input_tokens=100, most_output_tokens=50)
    charge = reported(Usage(absurd, absurd, absurd), asked)
    assert charge == Charge(80, 50 if absurd == 10**30 else 0, 0)
    assert reported(Usage(0, 7, 101), asked) == Charge(80, 7, 0)
    assert reported(Usage(60, 7, 61), asked) == Charge(60, 7, 0)


def test_the_charge_of_an_unread_answer_is_known_or_estimated():
    assert broken_off(Usage(None, 7), ASKED, 1.0, None) == Charge(100, 7, 0)  # a stream's events
    assert broken_off(Usage(), ASKED, 1.0, 0.1) == Charge(100, 10, 0)
    assert broken_off(Usage(), ASKED, 1e9, 0.1) == Charge(100, 50, 0)


def test_a_leaving_client_pays_for_its_reservation():
    """SGLang reserves 0.098 of at most 4,096 future tokens. A whole answer costs no more."""
    asked = HighestCost(100, 100, 6_000)
    assert broken_off(Usage(None, 200), asked, 1.0, None, left=True) == Charge(100, 601, 0)
    assert broken_off(Usage(None, 200), asked, 1.0, None) == Charge(100, 200, 0)
    assert broken_off(Usage(None, 5_000), asked, 1.0, None, left=True) == Charge(100, 5_098, 0)
    assert (
        broken_off(Usage(None, 5), HighestCost(100, 100, 5), 1.0, None, left=True).output_tokens
        == 5
    )
    assert reported(Usage(100, 200), asked) == Charge(100, 200, 0)


def test_the_pace_is_that_of_recent_whole_answers():
    pace = Pace()
    for _ in range(200):
        pace.observe(1, 10.0, 100)
    assert (pace.token_s(0), round(pace.token_s(1), 3)) == (0.02, 0.1)
    pace.observe(1, 10.0, 0)  # this says nothing
    assert round(pace.token_s(1), 3) == 0.1
    pace.observe(0, 10.0, 100)  # the latest answer counts a twentieth
    assert pace.token_s(0) == pytest.approx(0.02 + (0.1 - 0.02) / 20)


def usage(read, produced):
    return {"prompt_tokens": read, "completion_tokens": produced}


@pytest.mark.parametrize(
    ("said", "stream", "booked"),
    [(-(10**9), False, 3), (-(10**9), True, 3), (0, True, 3), (10**9, False, 3), (10**9, True, 3)],
)
def test_a_workers_usage_is_clamped_to_the_request(said, stream, booked):
    """A negative count once ended the stream with a traceback, and a large one corrupted credits.

    The stream has three events. A whole answer with an invalid count is charged by its text.
    """

    async def run():
        router = {"router": "d2lpm"}
        answers = {"says": {"text": "one", "meta_info": usage(said, said)}}
        answers["ending"] = answers["says"]
        async with cluster(1, router=router, **answers) as (under_test, _):
            body = {**PATHS[GENERATE], "stream": stream}
            async with under_test.post(GENERATE, body) as answer:
                assert answer.status == 200
                assert b"error" not in await answer.read()
            [credit] = under_test.proxy.dispatcher.router.credit["default"].values()
            output = 'fairbench_output_tokens_total{client="default"}'
            return credit, await under_test.metric(output)

    assert asyncio.run(run()) == (40_000 - 100 - 2 * booked, booked)


async def leave(under_test, worker, path, body, until_said=b""):
    """Send a request, and leave after a given part of the answer."""
    async with under_test.post(path, body) as answer:
        data = b""
        while until_said not in data:
            data += await answer.content.readany()


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
def test_a_client_that_leaves_a_stream_pays_for_its_prompt_and_output_so_far(path):
    async def run():
        async with cluster(1, held_at=2) as (under_test, (worker,)):
            await leave(under_test, worker, path, streamed(path), b"two")
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            read = await under_test.metric('fairbench_input_tokens_total{client="default"}')
            produced = await under_test.metric('fairbench_output_tokens_total{client="default"}')
            return read, produced

    prompt = 100 if path == GENERATE else len(PATHS[COMPLETIONS]["prompt"]) / 4
    assert asyncio.run(run()) == (prompt, 2)


def test_a_chunk_of_many_tokens_counts_by_its_text():
    async def run():
        text = {"choices": [{"text": "a" * 64}]}  # from an engine that streams every 16 tokens
        async with cluster(1, held_at=1) as (under_test, (worker,)):
            body = {**streamed(COMPLETIONS), "max_tokens": 100}
            worker.padding = [b"data: " + json.dumps(text).encode() + b"\n\n"]
            await leave(under_test, worker, COMPLETIONS, body, b"one")
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            return await under_test.metric('fairbench_output_tokens_total{client="default"}')

    assert asyncio.run(run()) == 17 + 8  # 67 bytes of text, and 0.098 of the 83 tokens to come


def test_a_client_that_leaves_a_non_streamed_answer_pays_by_its_duration():
    """No part of the answer arrived, so the charge is at most the requested length, as here."""

    async def run():
        async with cluster(1, held_at=0) as (under_test, (worker,)):
            asked = asyncio.create_task(leave(under_test, worker, GENERATE, PATHS[GENERATE]))
            await until(lambda: worker.seen)
            # five tokens at the assumed pace, but only three were requested
            await asyncio.sleep(0.1)
            asked.cancel()
            await until(lambda: not under_test.proxy.dispatcher.under_way)
            read = await under_test.metric('fairbench_input_tokens_total{client="default"}')
            produced = await under_test.metric('fairbench_output_tokens_total{client="default"}')
            return read, produced

    assert asyncio.run(run()) == (100, 3)


@pytest.mark.parametrize("said", [{"choices": [{"text": "a" * 8}]}, {"text": "no usage"}])
def test_a_silent_worker_does_not_make_a_prompt_free(said):
    async def run():
        async with cluster(1, says=said) as (under_test, _):
            async with under_test.post(GENERATE) as answer:
                assert answer.status == 200
            return await under_test.metric('fairbench_input_tokens_total{client="default"}')

    assert asyncio.run(run()) == 100


def test_a_dispatch_charge_is_given_back_if_the_worker_fails_before_it_answers():
    """Without this, 30,000 tokens were charged at every worker that was tried."""

    async def run():
        body = {"input_ids": [1] * 30_000, "sampling_params": {"max_new_tokens": 3}}
        router = {"router": "d2lpm", "health_interval_s": 1000.0}
        async with cluster(3, router=router, status=500) as (under_test, workers):
            for client, served in (("ann", 500), ("bob", 200)):
                for worker in workers[1:]:
                    worker.status = served
                async with under_test.post(GENERATE, body, **{headers.CLIENT: client}) as answer:
                    assert answer.status == served
            credit = under_test.proxy.dispatcher.router.credit
            return {client: sorted(credit[client].values()) for client in credit}

    credit = asyncio.run(run())
    assert credit["ann"] == [40_000] * 3
    assert credit["bob"] == [40_000 - 30_000 - 6, 40_000, 40_000]


def test_a_refund_does_not_lift_a_credit_above_the_quantum():
    router = build_router("d2lpm", {"d2lpm.worker_quantum": 1000}, 1)
    dispatcher = Dispatcher(router, 1, 10**6, lambda: 0.0)

    def send(tokens):
        ids = array("I", range(tokens))
        return dispatcher.dispatch(dispatcher.make_request("ann", ids, 8, -1, 0))

    failing = send(1500)  # into debt, so that the next request is granted a quantum
    send(100)
    assert router.credit["ann"][0] == 1000 - 1500 + 1000 - 100
    dispatcher.finish(failing, 0, failed=True)
    assert router.credit["ann"][0] == 1000
