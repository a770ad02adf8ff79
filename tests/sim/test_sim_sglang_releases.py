"""Test by hand rules that differ between SGLang's releases. release_check.py runs their classes."""

import pytest

from fairbench.core import Request, Segment
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sequence import Sequence
from fairbench.engine.sglang import SGLangReplica, store_outputs, store_prompt
from fairbench.engine.sglang_variants import MixedSGLangReplica, OlderSGLangReplica, replica_class
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import NEWEST, RULES, EngineParams, engine_limits
from fairbench.schedulers.params import make_params
from fairbench_engines.sglang.release import SUPPORTED
from tests.sim.sim_helpers import US, Home, Spy, prompt


def limits_of(settings):
    profile = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")
    return engine_limits(make_params("engine", EngineParams, settings), profile)


def test_every_supported_release_has_rules():
    assert tuple(RULES) == SUPPORTED
    assert RULES[SUPPORTED[-1]] == NEWEST == limits_of({}).rules


def test_the_release_chooses_rules_and_worker():
    assert replica_class(limits_of({})) is SGLangReplica
    older = limits_of({"engine.release": "0.5.17"})
    assert older.rules == RULES["0.5.17"]
    assert replica_class(older) is OlderSGLangReplica
    with pytest.raises(UsageError, match=r"engine.release = '0.5.1'"):
        limits_of({"engine.release": "0.5.1"})


def test_mixed_chunks_have_the_rules_of_the_newest_release():
    mixed = {"engine.enable_mixed_chunk": True}
    for release in ({}, {"engine.release": "0.5.23"}):
        assert replica_class(limits_of(mixed | release)) is MixedSGLangReplica
    with pytest.raises(
        UsageError, match=r"^engine.enable_mixed_chunk = True: .* SGLang 0.5.23; leave out"
    ):
        limits_of(mixed | {"engine.release": "0.5.22"})


def admitted_us(home):
    """Return the admission time of each request, in order of sending."""
    home.run()
    return [sent.admitted_ps // US for sent in home.sent]


def decode_ends_us(home):
    """Return the end of each stretch of decode steps, with its batch."""
    return [(row["end_ps"] // US, row["batch_size"]) for row in home.rows() if row["steps"]]


@pytest.mark.parametrize("at_us", [0, 3000])  # with a batch already marked full, or not
@pytest.mark.parametrize(("release", "late"), [("0.5.23", False), ("0.5.22", True)])
def test_a_finished_request_holds_its_slot_until_the_next_decode_step(release, late, at_us):
    home = Home(max_running_requests=2, rules=RULES[release])
    home.send(10, 3)
    home.send(10, 9)
    home.send(10, 1, at_ps=at_us * US)
    third = admitted_us(home)[2]
    first_done = home.sent[0].finish_ps // US
    after = [end for end, _ in decode_ends_us(home) if end > first_done]
    assert third == (after[0] if late else first_done)


@pytest.mark.parametrize(("release", "late"), [("0.5.23", False), ("0.5.22", True)])
def test_a_finished_request_still_reserves_its_unused_part(release, late):
    """The third request needs 126 tokens. 182 are left, but 125 without the 57 of the first."""
    home = Home(pool=200, rules=RULES[release], full_reservation=True)
    home.send(10, 3, max_new=60)
    home.send(10, 9)
    home.send(10, 115, at_ps=3000 * US)  # in the last step of the first request
    third = admitted_us(home)[2]
    assert home.sent[0].finish_ps // US == 3240
    assert third == 3240 + (1010 if late else 0)


@pytest.mark.parametrize(("release", "together"), [("0.5.23", True), ("0.5.22", False)])
def test_a_prompt_in_chunks_takes_two_slots(release, together):
    home = Home(chunked_prefill_size=20, max_running_requests=2, rules=RULES[release])
    home.send(25, 5)
    home.send(10, 5)
    first, second = home.run().prefills()[:2]
    assert (first[1], first[2]) == (1, 20)
    assert (second[1], second[2]) == ((2, 15) if together else (1, 5))


@pytest.mark.parametrize(("release", "together"), [("0.5.23", False), ("0.5.22", True)])
def test_one_more_request_is_tried_after_a_chunk_used_up_the_input_budget(release, together):
    limits = {"chunked_prefill_size": 40, "max_prefill_tokens": 20}
    home = Home(**limits, rules=RULES[release])
    home.send(60, 5)
    home.send(10, 5)
    home.send(5, 5)
    _, second = home.run().prefills()[:2]
    assert (second[1], second[2]) == ((2, 30) if together else (1, 20))


@pytest.mark.parametrize("release", ["0.5.23", "0.5.22"])
def test_no_request_is_admitted_after_a_chunk_used_up_the_chunk_budget(release):
    home = Home(chunked_prefill_size=20, rules=RULES[release])
    home.send(50, 5)
    home.send(10, 5)
    assert [row[1:] for row in home.run().prefills()[:3]] == [(1, 20), (1, 20), (2, 20)]


@pytest.mark.parametrize(("release", "kept"), [("0.5.22", True), ("0.5.21", False)])
def test_prefixes_of_waiting_requests_are_refreshed_from_0_5_22_on(release, kept):
    """Behind a request that does not fit waits another, whose prefix is the oldest in the tree."""
    home = Home(Spy(), pool=100, rules=RULES[release], full_reservation=True)
    home.worker.waiting._unmatched_passes = 30  # every 32nd pass refreshes
    home.send(prompt("shared", 20), 2)
    home.send(prompt("other", 20), 2, at_ps=10**12)
    for parts, output in ((50, 20), (40, 30), (prompt("shared", 20, "own", 20), 2)):
        home.send(parts, output, at_ps=2 * 10**12)
    home.run()
    first = next(prefix[0].key for prefix, tokens in home.evicted if tokens == 20)
    assert first == ("other" if kept else "shared")


@pytest.mark.parametrize(
    ("splits", "prefilled", "finished"),
    [("prefilled", [10, 5], [10, 5, 2]), ("finished", [15], [10, 5, 2]), ("never", [15], [15, 2])],
)
def test_outputs_computed_again_get_a_separate_node(splits, prefilled, finished):
    """The prompt has 10 tokens, is retracted after 5 outputs, and finishes after 8."""
    cache = KVCache(100)
    request = Request(0, "x", 0, 0, prompt("own", 10), 10, 8)
    sequence = Sequence(request, Segment("out", 8), 0, lambda _: None)
    sequence.produced = 5
    sequence.retract(0)
    sequence.node = cache.root
    cache.allocate(15)
    store_prompt(cache, sequence, 15, splits)
    assert sorted(node.length for node in cache.nodes()) == sorted(prefilled)
    sequence.produced = 8
    cache.allocate(2)
    store_outputs(cache, sequence, splits)
    assert sorted(node.length for node in cache.nodes()) == sorted(finished)
