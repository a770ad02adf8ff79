"""Test SGLang 0.5.23's rules on caching, eviction and touching by hand.

An iteration takes 1,000 us and 10 us per token (a decode step: per sequence), see sim_helpers.
"""

import pytest

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.batch import RunningBatch
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sequence import Sequence
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.schedulers.local.lpm import LPM
from fairbench.schedulers.prefix_tree import path
from tests.sim.sim_helpers import US, Home, prompt


def until_a_retraction(home):
    while not home.scheduler.retracted:
        home.clock.step()


def test_a_retraction_makes_room_for_20_steps_of_the_others():
    home = Home(pool=103, schedule_conservativeness=0.01)
    home.send(40, 20)
    home.send(40, 20)
    until_a_retraction(home)
    # 23 free tokens last for 11 steps, and one remains. The retraction returns 11 decoded tokens,
    # and the prompt is evicted to cover 20 steps. The next step needs one token.
    assert home.scheduler.retracted == [1]
    assert home.evicted == [(prompt("own-1", 40), 40)]


def test_before_a_retraction_all_evictable_tokens_go():
    home = Home(pool=212, schedule_conservativeness=0.01)
    home.send(2, 1)
    for _ in range(3):
        home.send(30, 60, at_ps=5000 * US)
    until_a_retraction(home)
    # 120 free tokens last for 40 steps. Then 3 are needed, and 2 are evictable. The 40 that are
    # returned are enough for 20 steps of the other two, so the evictable tokens could have stayed.
    assert home.evicted == [(prompt("own-0", 2), 2)]


def test_a_retraction_leaves_the_batch_in_the_order_of_the_search_for_a_victim():
    home = Home(pool=180, schedule_conservativeness=0.01)
    ends = {}

    def look(_):
        ends.update({node.edge[-1][0]: node.last_access for node in home.worker.cache.nodes()})

    longer, shorter = home.send(41, 20, on_done=look), home.send(40, 20)
    home.send(50, 20)
    home.run()
    assert home.scheduler.retracted == [2]
    assert longer.finish_ps == shorter.finish_ps
    assert ends["out-1"] < ends["out-0"]  # the shorter request was ahead, and is stored first


def test_a_request_that_ends_with_its_prefill_is_stored_in_its_turn():
    home = Home()
    back, other = home.send(20, 51, max_new=60), home.send(10, 2)
    back.produced = 50
    back.retract(0)
    home.run(until_ps=2000 * US)
    assert back.finish_ps == (1000 + 10 * 80) * US == other.first_token_ps
    ends = {node.edge[-1][0]: node.last_access for node in home.worker.cache.nodes()}
    assert ends["out-0"] < ends["own-1"]


def test_after_a_retraction_the_outputs_are_a_separate_node():
    home = Home(pool=103, schedule_conservativeness=0.01)
    home.send(40, 20)
    back = home.send(40, 20)
    home.run()
    assert back.retractions == 1
    ends = {path(node) for node in home.worker.cache.nodes()}
    assert prompt("own-1", 40) in ends


def test_among_simultaneous_ends_the_earlier_in_the_batch_is_stored_first():
    batch = RunningBatch()
    sequences = [_sequence(number) for number in range(3)]
    for sequence in sequences:
        sequence.produced = 1
        batch.join(sequence)
    batch.remove_sequence(sequences[1])
    batch.rearrange([sequences[2], sequences[0]])
    batch.join(sequences[1])
    batch.steps += 4
    assert batch.finished() == [sequences[2], sequences[0], sequences[1]]


def _sequence(number):
    request = Request(number, "x", 0, 0, prompt("in", 3), 3, 5)
    return Sequence(request, Segment(f"out-{number}", 5), 0, lambda _: None)


class Queue:
    """A cache-aware waiting queue on a cache of 100 tokens that holds some prompts."""

    def __init__(self, *stored):
        self.gone = []
        self.cache = KVCache(100, lambda prefix, tokens: self.gone.append((prefix, tokens)))
        self.waiting = WaitingQueue(self.cache, cache_aware=True)
        self.sent = 0
        for text in stored:
            node, place = self.cache.match(text, prompt_tokens(text))
            self.cache.allocate(prompt_tokens(text) - node.depth)
            self.cache.insert(node, text, place, prompt_tokens(text))

    def arrive(self, text):
        self.sent += 1
        request = Request(self.sent, "x", 0, 0, text, prompt_tokens(text), 9)
        output = Segment(f"out-{self.sent}", 9)
        self.waiting.enter(Sequence(request, output, 0, lambda _: None))

    def sort(self):
        self.waiting.match_order()
        self.waiting.end_pass()

    def keys_by_eviction(self):
        self.cache.evict(100)
        return [prefix[0].key for prefix, _ in self.gone]


def test_waiting_prefixes_are_touched_in_the_order_of_the_list_before_the_sort():
    queue = Queue(prompt("b", 5), prompt("c", 9), prompt("a", 1))
    for key, length in (("b", 5), ("a", 1), ("c", 9)):
        queue.arrive(prompt(key, length, "more", 5))
    queue.sort()  # sorted to c, b, a, but the list was b, a, c
    assert queue.keys_by_eviction() == ["b", "a", "c"]


def test_the_next_sort_touches_prefixes_in_the_order_of_the_last_one():
    queue = Queue(prompt("b", 5), prompt("c", 9), prompt("a", 1))
    for key, length in (("b", 5), ("a", 1), ("c", 9)):
        queue.arrive(prompt(key, length, "more", 5))
    queue.sort()
    queue.sort()
    assert queue.keys_by_eviction() == ["c", "b", "a"]


def test_requests_that_cut_one_node_touch_the_rest_in_list_order():
    queue = Queue(prompt("a", 40), prompt("b", 4))
    queue.arrive(prompt("a", 30, "x", 9))
    queue.arrive(prompt("b", 4, "x", 9))
    queue.arrive(prompt("a", 20, "x", 9))
    queue.sort()
    # The first request cuts at 30 and touches all of a. Then comes b. Then the last cuts at 20 and
    # touches what it cut, up to 30. Thus 30-40 is older than b, and 20-30 is younger.
    queue.cache.evict(100)
    assert queue.gone == [
        (prompt("a", 40), 10),
        (prompt("b", 4), 4),
        (prompt("a", 30), 10),
        (prompt("a", 20), 20),
    ]


def test_a_stored_prompt_is_not_cut_before_the_next_match():
    queue = Queue()
    queue.arrive(prompt("a", 20, "x", 9))
    queue.sort()
    node, place = queue.cache.match(prompt("a", 40), 40)
    queue.cache.allocate(40)
    queue.cache.insert(node, prompt("a", 40), place, 40)
    queue.cache.evict(1)
    assert queue.gone == [(prompt("a", 40), 40)]


@pytest.mark.parametrize(("limit", "touched"), [(1, True), (0, False), (2, False)])
def test_above_its_limit_lpm_touches_the_head_of_the_list_as_other_policies_do(limit, touched):
    scheduler = LPM(LPM.Params(queue_limit=limit))
    queue = Queue(prompt("a", 5), prompt("b", 5))
    for _ in range(2):
        queue.arrive(prompt("a", 5, "more", 5))
    before = queue.cache.refresh_stamp
    next(scheduler.select(queue.waiting, 0.0))
    queue.waiting.end_pass()
    assert (queue.cache.refresh_stamp == before) == touched
    assert queue.keys_by_eviction() == ["b", "a"]  # a is protected in both cases


def test_a_policy_that_searches_twice_makes_one_pass():
    queue = Queue()
    queue.arrive(prompt("a", 5))
    touches = []
    queue.waiting.touch_head = touches.append
    for _ in range(33):
        queue.waiting.match_order(refresh=False)
        queue.waiting.match_order(refresh=False)
        queue.waiting.end_pass()
    assert touches == [128, 128]


def test_a_lone_chunk_does_not_count_as_a_pass_without_matches():
    home = Home(pool=200, chunked_prefill_size=5)
    touches = []
    home.worker.waiting.touch_head = lambda count: touches.append(home.clock.now_ps // US)
    home.send(50, 1)  # 10 passes of 1,050 us, 9 of them without waiting requests
    for number in range(40):
        home.send(1, 1, at_ps=(20_000 + 2000 * number) * US)
    home.run()
    assert touches == [0, 20_000 + 31 * 2000]
