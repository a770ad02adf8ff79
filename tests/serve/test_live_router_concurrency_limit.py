"""Test that a flood of one client takes no slot from the others."""

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench_load import headers
from fairbench_load.http_server import Problem
from fairbench_serve.client_limits import ConcurrencyLimit
from tests.serve.live_router import GENERATE, PATHS, cluster, streamed, until


class Taken:
    """The slots taken until ``stack`` closes, and the names of evicted requests, in order."""

    def __init__(self, stack, most, most_each=None, weights=None):
        self.limit = ConcurrencyLimit(most, most_each or most, weights or {})
        self.stack = stack
        self.evicted = []

    def take(self, client, begun=False):
        place = self.stack.enter_context(self.limit.take_slot(client))
        place.begun = begun
        number = sum(1 for _ in self.stack._exit_callbacks)
        place.on_evicted = lambda: self.evicted.append((client, number))
        return place


def test_the_youngest_waiting_request_of_the_heaviest_client_makes_room():
    with ExitStack() as stack:
        taken = Taken(stack, 4)
        for _ in range(4):
            taken.take("flood")
        taken.take("ann")
        assert taken.evicted == [("flood", 4)]
        taken.take("bob")  # the flood has three requests
        assert taken.evicted == [("flood", 4), ("flood", 3)]
        with pytest.raises(Problem, match="4 unfinished requests"):
            taken.take("flood")
        with pytest.raises(Problem, match="4 unfinished requests"):
            # an eviction would only reverse the roles, because both would have two
            taken.take("ann")


def test_an_answer_that_has_begun_is_never_cut_off():
    with ExitStack() as stack:
        taken = Taken(stack, 3)
        taken.take("flood")
        taken.take("flood", begun=True)
        taken.take("flood", begun=True)
        taken.take("ann")
        assert taken.evicted == [("flood", 1)]
        with pytest.raises(Problem):
            taken.take("bob")


def test_shares_are_in_proportion_to_weights():
    with ExitStack() as stack:
        taken = Taken(stack, 6, weights={"gold": 4})
        for client in ["gold"] * 4 + ["ann"] * 2:
            taken.take(client)
        taken.take("gold")  # 5 requests at weight 4 are less than 2 at weight 1
        assert taken.evicted == [("ann", 6)]


def test_a_single_client_can_have_a_limit():
    with ExitStack() as stack:
        taken = Taken(stack, 10, most_each=2)
        taken.take("ann")
        taken.take("ann")
        with pytest.raises(
            Problem, match="this client already has 2 unfinished requests, the"
        ) as raised:
            taken.take("ann")
        assert raised.value.status == 429
        taken.take("bob")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 8))
def test_slots_are_never_exceeded_and_all_become_free(asked, most):
    limit = ConcurrencyLimit(most, most, {})
    with ExitStack() as stack:
        held = []
        for client, begun in asked:
            try:
                place = stack.enter_context(limit.take_slot(client))
            except Problem:
                counts = [sum(p.client == c and not p.evicted for p in held) for c in "abc"]
                assert sum(counts) == most
                continue
            place.begun = begun
            held.append(place)
            assert sum(not one.evicted for one in held) <= most
        assert not any(one.evicted and one.begun for one in held)
    for _ in range(most):
        stack.enter_context(limit.take_slot("d"))


def ask(under_test, client, body=None):
    async def status():
        sent = {headers.CLIENT: client}
        async with under_test.post(GENERATE, body, **sent) as answer:
            await answer.read()
            return answer.status

    return asyncio.create_task(status())


@pytest.mark.parametrize("stream", [False, True])
def test_a_flood_does_not_cause_refusals_for_others(stream):
    """A flood leaves slots, so that other clients get no 429."""

    async def run():
        body = {**PATHS[GENERATE], "stream": stream}
        async with cluster(1, router={"max_queue": 4}, held_at=0) as (under_test, (worker,)):
            flood = [ask(under_test, "flood", body) for _ in range(4)]
            await until(lambda: len(worker.seen) == 4)
            modest = [ask(under_test, "ann", body) for _ in range(2)]
            await until(lambda: len(worker.seen) == 6)
            await until(lambda: worker.aborted == 2)  # the work done for them is not wasted
            more = await ask(under_test, "flood", body)
            worker.released.set()
            statuses = sorted(await asyncio.gather(*flood))
            evicted = 'fairbench_requests_total{client="flood",outcome="evicted"}'
            counted = await under_test.metric(evicted)
            return statuses, await asyncio.gather(*modest), more, counted

    assert asyncio.run(run()) == ([200, 200, 429, 429], [200, 200], 429, 2)


def test_a_stream_that_has_begun_stays():
    async def run():
        async with cluster(1, router={"max_queue": 1}, held_at=1) as (under_test, (worker,)):
            named = {headers.CLIENT: "flood"}
            async with under_test.post(GENERATE, streamed(GENERATE), **named) as flood:
                begun = await flood.content.readany()
                refused = await ask(under_test, "ann")
                worker.released.set()
                return flood.status, b"[DONE]" in begun + await flood.read(), refused

    assert asyncio.run(run()) == (200, True, 429)
