"""Test that a queue of kept matches has the order that asking the cache in every pass gives."""

import random

import pytest

from fairbench.core import Request
from fairbench.schedulers.views import ListView, NothingRunning
from fairbench_engines.kept_matches import EngineQueue, KeptMatches, Match
from fairbench_load.token_pages import segments_of

HEADS = ([1] * 31, [1] * 33, [2] * 32, [3] * 5)  # around the 32 tokens of the in-batch check


class Cache(KeptMatches):
    """A cache that lists every prefix of every text that it holds."""

    def __init__(self):
        super().__init__()
        self.prefixes = {()}
        self.ids = {}  # the prompt of each request
        self.looked = []

    def look_up(self, request):
        self.looked.append(request)
        ids, depth = self.ids[request], self.depth(request)
        return Match(depth, ids[:depth], ids[: depth + 1] if depth < len(ids) else None)

    def depth(self, request):
        ids = self.ids[request]
        return max(end for end in range(len(ids) + 1) if ids[:end] in self.prefixes)

    def store(self, ids):
        for end in range(1, len(ids) + 1):
            if ids[:end] not in self.prefixes:
                self.prefixes.add(ids[:end])
                self.stored(ids[:end])

    def drop(self, ids):
        for gone in [prefix for prefix in self.prefixes if prefix[: len(ids)] == ids]:
            self.prefixes.discard(gone)
            self.lost(gone)


class Both:
    """A queue of kept matches, beside a list that asks the cache about all requests."""

    def __init__(self):
        self.cache = Cache()
        self.kept = EngineQueue(self.cache, NothingRunning(), self.matched)
        self.asked = ListView([], self.cache.depth, lambda one: segments_of(self.cache.ids[one]))

    def matched(self, request):
        return min(self.cache.depth(request), len(self.cache.ids[request]) - 1)

    def arrive(self, ids, *, first=False, client="x"):
        number = len(self.cache.ids)
        request = Request(number, client, 0, 0, segments_of(ids), len(ids), 9)
        self.cache.ids[request] = tuple(ids)
        self.kept.wait(request, ids, first=first)
        (self.asked.enter_first if first else self.asked.enter)(request)
        return request

    def leave(self, request):
        self.kept.admit(request)
        self.asked.leave(request)

    def order(self, *, refresh=True):
        """Return the order of both queues, after a check that they agree."""
        found = list(self.kept.match_order(refresh=refresh))
        assert found == list(self.asked.match_order(refresh=refresh))
        assert all(self.kept.matched_tokens(one) == self.matched(one) for one in found)
        return found


@pytest.mark.parametrize("seed", range(40))
def test_kept_matches_give_the_order_of_fresh_ones(seed):
    draw, both = random.Random(seed), Both()
    texts = []
    for _ in range(60):
        what = draw.choice(["arrive", "arrive", "store", "drop", "pass", "pass"])
        if what == "arrive":
            ids = draw.choice(HEADS) + draw.choices([4, 5], k=draw.choice([1, 2, 8]))
            texts.append(tuple(ids))
            both.arrive(ids, first=draw.random() < 0.1, client=draw.choice("xyz"))
        elif what == "store" and texts:
            text = draw.choice(texts)
            both.cache.store(text[: draw.randint(1, len(text))])
        elif what == "drop" and len(both.cache.prefixes) > 1:
            both.cache.drop(draw.choice(sorted(both.cache.prefixes - {()})))
        elif what == "pass":
            order = both.order(refresh=draw.random() < 0.8)
            for request in order[: draw.choice([0, 1, 3])]:
                both.leave(request)
            both.kept.end_pass()
    both.order()


def test_only_possibly_changed_matches_are_looked_up():
    both = Both()
    first, second, third = (both.arrive([head] * 40 + [9]) for head in (1, 1, 2))
    both.order()
    assert both.cache.looked == [first, second, third]
    both.cache.looked.clear()
    both.order()
    assert both.cache.looked == []  # nothing has changed
    both.cache.store((1,) * 40)
    assert both.order()[:2] == [first, second]
    assert both.cache.looked == [first, second]
    both.cache.looked.clear()
    fourth = both.arrive([1] * 40)
    both.cache.drop((1,) * 39)
    both.order()
    assert sorted(both.cache.looked, key=lambda one: one.request_id) == [first, second, fourth]
    both.cache.looked.clear()
    both.cache.drop((7,))
    both.cache.store((2,) * 3)
    both.order()
    assert both.cache.looked == [third]


def test_an_emptied_cache_makes_every_match_looked_up():
    both = Both()
    waiting = [both.arrive([head] * 40) for head in (1, 2)]
    both.cache.store((1,) * 40)
    both.order()
    both.cache.looked.clear()
    both.cache.prefixes = {()}
    both.cache.lost_all()
    both.order()
    assert both.cache.looked == waiting


def test_the_last_request_of_a_prefix_follows_the_order_of_the_queue():
    """SGLang touches a prefix in the order of the last request that matches it."""
    both = Both()
    both.cache.store((1,) * 40)
    waiting = [both.arrive([1] * 40 + [number, 9]) for number in range(4)]
    both.order()

    def last():
        spot = both.kept.entries[both.asked._requests[0]].node
        return spot.last(both.cache.refresh_stamp + 1).request

    assert last() is waiting[3]
    both.leave(waiting[3])
    both.kept.end_pass()
    assert last() is waiting[2]
    late = both.arrive([1] * 40 + [9])
    both.order()
    assert last() is late
    both.cache.store((1,) * 40 + (1,))  # its request moves to the front, with another prefix
    both.order()
    assert [one.request_id for one in both.order()] == [1, 0, 2, 4]
    assert both.kept.entries[waiting[0]].node is not both.kept.entries[waiting[1]].node
