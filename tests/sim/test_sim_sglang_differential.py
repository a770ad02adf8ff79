"""Test the simulated engine against SGLang's own classes, by iteration and order."""

import random
from collections import Counter
from unittest import mock

import pytest

from fairbench.schedulers.registry import local_class
from tests.sim.sglang_seam import VERSION, match_limit, sglang, why_absent
from tests.sim.sglang_streams import (
    Arrival,
    Stream,
    ask_ours,
    ask_sglang,
    assert_alike,
    random_prompt,
    random_stream,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

ORDERS = [
    "fcfs", "lpm", "hrrn", "shortest-prefill-first", "dfs-weight", "lof", "random", "routing-key",
]  # fmt: skip
LIMITED = ("lpm", "hrrn")  # orders with a limit on the requests that are matched


def number(release):
    return tuple(map(int, release.split(".")))


def in_release(order):
    since = local_class(order).sglang_since
    return since is None or number(since) <= number(VERSION)


def compare(order, stream, *, mixed=False):
    """Assert that both engines do the same in every iteration. Return SGLang's actions.

    ``mixed`` turns mixed chunks on.
    """

    def prepare(scheduler):
        scheduler.is_mixed_chunk = mixed

    limit = {f"{order}.queue_limit": match_limit(stream.limit)} if order in LIMITED else {}
    policies = sglang().schedule_policy
    with mock.patch.object(policies, "random", random.Random("draws")):
        theirs = ask_sglang(order, stream, prepare=prepare)
    draws = random.Random("draws")
    ours = ask_ours(order, limit, stream, draws=draws, enable_mixed_chunk=mixed)
    assert_alike(theirs, ours, stream)
    return theirs


ALL = pytest.mark.parametrize("order", [name for name in ORDERS if in_release(name)])


@ALL
def test_random_streams_are_served_the_same(order):
    seen = Counter()
    for seed in range(40):
        stream = random_stream(seed)
        for done in compare(order, stream).values():
            seen["evicted"] += len(done.evicted)
            seen["retracted"] += len(done.retracted)
            seen["cached"] += sum(cached > 0 for _, cached, _ in done.prefills)
            seen["full chunks"] += any(tokens == stream.chunk for *_, tokens in done.prefills)
    assert seen["retracted"] > 5
    assert min(seen["evicted"], seen["cached"], seen["full chunks"]) > 100


@ALL
@pytest.mark.parametrize("limit", [128, 10_000])
def test_a_long_stream_is_served_the_same(order, limit):
    """The limits are the server's default of 128 and no limit. At times, more requests wait."""
    draw = random.Random(1)
    stream = Stream(2000, 256, 16_384, 100, 1.0, limit, full=False)
    for step in range(600):
        prompt = random_prompt(draw, stream.arrivals, step, 600)
        output = draw.randint(1, 60)
        client = draw.choice("xy")
        arrival = Arrival(step // 300 * 300, prompt, output, output + draw.randrange(20), client)
        stream.arrivals.append(arrival)
    done = compare(order, stream)
    assert sum(len(iteration.evicted) for iteration in done.values()) > 100


@pytest.mark.skipif(VERSION != "0.5.23", reason="mixed chunks have the rules of 0.5.23")
@ALL
def test_mixed_chunks_are_served_the_same(order):
    """No batch may take a whole chunk. SGLang would then compute a chunk of less than no tokens."""
    seen = Counter()
    for seed in range(15):
        stream = random_stream(seed)
        stream.slots = min(stream.slots, stream.chunk - 1)
        for done in compare(order, stream, mixed=True).values():
            seen["mixed"] += bool(done.prefills and done.decoding)
            seen["finished beside prompts"] += bool(done.prefills and done.finished)
            seen["retracted"] += len(done.retracted)
            beside = done.decoding + sum(tokens for *_, tokens in done.prefills)
            seen["full chunks"] += done.decoding > 0 and beside == stream.chunk
    assert min(seen.values()) > 5, seen


@pytest.mark.parametrize("order", [name for name in ORDERS if not in_release(name)])
def test_sglang_lacks_the_orders_of_later_releases(order):
    with pytest.raises(ValueError, match="Unknown schedule_policy"):
        sglang().schedule_policy.SchedulePolicy(order, None, False, False, False)
