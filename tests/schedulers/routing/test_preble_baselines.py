"""Test Preble's baselines: the longest match under any load, and the oracle partition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, prompt_tokens
from fairbench_studies.preble.memserve import MemServe
from fairbench_studies.preble.oracle import Oracle
from tests.schedulers.routing.router_helpers import NaiveLocations, answer, prompt, prompts, request


def memserve(workers=2):
    return MemServe(MemServe.Params(), workers)


def send(router, *segments, client="a", number=0):
    return router.route(request(number, client, *segments), 0.0)


def test_memserve_follows_the_longest_match_into_any_overload():
    router = memserve(3)
    assert send(router, ("doc", 100), number=0) == 0
    asked = [send(router, ("doc", 100), (f"q{n}", 500), number=n) for n in range(1, 9)]
    assert asked == [0] * 8


def test_memserve_without_a_match_takes_the_least_loaded():
    router = memserve(3)
    assert [send(router, (f"p{n}", 10), number=n) for n in range(3)] == [0, 1, 2]
    router.on_finish(request(1, "a", ("p1", 10)), 1, answer(5), 1.0)
    assert send(router, ("p9", 10), number=9) == 1


@pytest.mark.parametrize(
    ("least", "expected"), [(0, [0, 0, 0]), (2, [0, 1, 2]), (100, [0, 1, 2]), (1, [0, 0, 0])]
)
def test_one_shared_token_decides_only_without_a_least_match(least, expected):
    router = MemServe(MemServe.Params(min_match_tokens=least), 3)
    asked = [send(router, ("system", 1), (f"p{n}", 50), number=n) for n in range(3)]
    assert asked == expected


def test_a_match_of_the_least_length_counts():
    router = MemServe(MemServe.Params(min_match_tokens=100), 2)
    assert [send(router, ("doc", 100), (f"q{n}", 5), number=n) for n in range(2)] == [0, 0]


def test_memserve_forgets_evictions_and_departed_workers():
    router = memserve(2)
    assert send(router, ("doc", 100), number=0) == 0
    router.on_evict(prompt(("doc", 100)), 100, 0, 1.0)
    assert send(router, ("doc", 100), ("q", 5), number=1) == 1
    router.on_worker_leave(1, 2.0)
    assert send(router, ("doc", 100), ("q", 5), number=2) == 0
    router.on_worker_join(1, 3.0)
    assert send(router, ("new", 5), number=3) == 1


@given(st.lists(st.tuples(prompts(), st.booleans()), max_size=25), st.integers(1, 4))
def test_memserve_always_chooses_the_least_loaded_holder_of_the_longest_match(steps, workers):
    router, naive, in_flight, running = memserve(workers), NaiveLocations(), [0] * workers, []
    for number, (what, finishes) in enumerate(steps):
        new = Request(number, "a", 0, 0, what, prompt_tokens(what), 9)
        cached = naive.cached_tokens(what, workers)
        longest = max(cached.values(), default=0)
        allowed = [w for w in range(workers) if cached.get(w, 0) == longest]
        worker = router.route(new, 0.0)
        assert worker in allowed
        assert in_flight[worker] == min(in_flight[w] for w in allowed)
        naive.insert(what, worker)
        in_flight[worker] += 1
        running.append((new, worker))
        if finishes:
            done, at = running.pop(0)
            router.on_finish(done, at, answer(1), 0.0)
            in_flight[at] -= 1


def oracle(workers=2, **params):
    return Oracle(Oracle.Params(**params), workers)


def test_the_oracle_gives_each_client_a_gpu_in_turn():
    router = oracle(3, by="client")
    clients = "abcdabcd"
    assert [send(router, ("p", 5), client=c) for c in clients] == [0, 1, 2, 0, 0, 1, 2, 0]


def test_the_oracle_splits_the_tree_at_a_given_layer():
    router = oracle(2, layer_tokens=11)
    system = ("system", 10)
    documents = [("x", 50), ("y", 50), ("z", 50), ("x", 50), ("y", 50)]
    placed = [send(router, system, doc, (f"q{n}", 3)) for n, doc in enumerate(documents)]
    assert placed == [0, 1, 0, 0, 1]


def test_the_oracle_finds_the_layer_at_which_prompts_first_differ():
    router = oracle(3)
    system = ("system", 10)
    # Before a second document exists, questions look like the layer of documents. Afterwards, their
    # groups are merged.
    assert send(router, system, ("x", 50), ("q0", 3)) == 0
    assert send(router, system, ("x", 50), ("q1", 3)) == 1
    assert send(router, system, ("y", 50), ("q2", 3)) == 2
    assert [send(router, system, ("x", 50), (f"q{n}", 3)) for n in range(3, 6)] == [0, 0, 0]
    assert send(router, system, ("y", 50), ("q6", 3)) == 2
    assert send(router, system, ("z", 50), ("q7", 3)) == 0


def test_a_prompt_that_is_a_prefix_of_others_is_a_separate_group():
    router = oracle(2)
    assert send(router, ("system", 10), ("x", 5)) == 0
    assert send(router, ("system", 10)) == 1
    assert send(router, ("system", 10), ("y", 5)) == 0
    assert send(router, ("system", 10)) == 1
    assert send(router, ("system", 4)) == 1


def test_groups_of_a_departed_gpu_are_placed_again():
    router = oracle(2, by="client")
    assert [send(router, ("p", 5), client=c) for c in "ab"] == [0, 1]
    router.on_worker_leave(1, 0.0)
    assert [send(router, ("p", 5), client=c) for c in "ab"] == [0, 0]
    router.on_worker_join(1, 0.0)
    assert [send(router, ("p", 5), client=c) for c in "abc"] == [0, 0, 1]


@pytest.mark.parametrize("by", ["client", "prefix"])
def test_a_limited_number_of_groups_is_remembered(by):
    router = oracle(2, by=by, groups=3, layer_tokens=2)
    for number in range(50):
        send(router, (f"p{number}", 5), client=str(number))
    assert len(router._placed) == 3
    assert send(router, ("p49", 5), client="49") == 1
