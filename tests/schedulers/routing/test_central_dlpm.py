"""Test the central scheduler against a literal DLPM over sets of prefixes, and by hand."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, prompt_tokens
from fairbench.schedulers.local.dlpm import DLPM
from fairbench_studies.dlpm.central.central_dlpm import CentralDLPM, TreeDelta
from tests.schedulers.routing.router_helpers import NaiveLocations, prompt, prompts, request

WORKERS = 3
NOTHING = TreeDelta((), ())


def make(quantum=100, workers=WORKERS):
    return CentralDLPM(DLPM.Params(quantum=quantum), workers)


def turn(central, worker, free_tokens, delta=NOTHING):
    central.update(worker, delta)
    return central.dispatch(central.match(worker), free_tokens)


class Literal:
    """Section 5.1 with Algorithm 1, one quantum at a time, with every prefix compared."""

    def __init__(self, quantum):
        self.quantum, self.credit, self.outstanding = quantum, {}, []
        self.queue, self.cached = [], NaiveLocations()

    def arrive(self, new):
        self.credit.setdefault(new.client, 0)
        self.outstanding.append(new)
        self.queue.append(new)

    def finish(self, done):
        self.outstanding.remove(done)
        self.let_go()

    def let_go(self):
        busy = {r.client for r in self.outstanding}
        self.credit = {i: q for i, q in self.credit.items() if i in busy or q <= 0}

    def turn(self, worker, free_tokens):
        matched = {
            r: self.cached.cached_tokens(r.prompt, WORKERS).get(worker, 0) for r in self.queue
        }
        order = sorted(self.queue, key=lambda r: -min(matched[r], r.input_tokens - 1))
        dispatched, progressed = [], True
        while progressed and self.queue:
            progressed = False
            for r in [r for r in order if r in self.queue]:
                while self.queue and all(self.credit[w.client] <= 0 for w in self.queue):
                    for i, q in self.credit.items():
                        self.credit[i] = q + self.quantum if q <= 0 else q
                    self.let_go()
                    progressed = True
                if self.credit[r.client] <= 0:
                    continue
                extend = r.input_tokens - min(matched[r], r.input_tokens - 1)
                if extend + r.max_new_tokens > free_tokens:
                    return dispatched
                free_tokens -= extend + r.max_new_tokens
                self.credit[r.client] -= extend
                self.queue.remove(r)
                dispatched.append(r)
                progressed = True
        return dispatched


workers = st.integers(0, WORKERS - 1)
waiting = st.lists(
    st.tuples(st.sampled_from("AB"), prompts(), st.integers(1, 9)), min_size=1, max_size=8
)
caches = st.lists(st.tuples(workers, prompts(), st.integers(0, 9)), max_size=8)
turns = st.lists(st.tuples(workers, st.integers(5, 60), st.integers(0, 30)), max_size=6)


@given(st.lists(st.tuples(waiting, caches, turns), max_size=4), st.sampled_from([1, 7, 50]))
def test_dispatches_and_credits_equal_the_literal_reading(phases, quantum):
    central, literal = make(quantum), Literal(quantum)
    for waiting, caches, turns in phases:
        for client, text, max_new_tokens in waiting:
            size = prompt_tokens(text)
            new = Request(0, client, 0, 0, text, size, max_new_tokens)
            central.on_arrival(new)
            literal.arrive(new)
        for worker, text, evicted in caches:
            evicted = min(evicted, prompt_tokens(text))
            literal.cached.insert(text, worker)
            central.update(worker, TreeDelta((text,), ()))
            if evicted:
                literal.cached.evict(text, evicted, worker)
                central.update(worker, TreeDelta((), ((text, evicted),)))
        for worker, free_tokens, outputs in turns:
            dispatched = turn(central, worker, free_tokens)
            assert dispatched == literal.turn(worker, free_tokens)
            for one in dispatched:
                central.on_tokens(one.client, outputs)
                literal.credit[one.client] -= 2 * outputs
                central.on_finish(one)
                literal.finish(one)
            assert central.queue == literal.queue
            assert central.scheduler.credit == literal.credit


def test_each_worker_takes_requests_with_cached_prefixes():
    central = make(quantum=10_000)
    sent = [request(n, "a", (document, 500)) for n, document in enumerate("xyz")]
    for one in sent:
        central.on_arrival(one)
    cached = {0: prompt(("z", 500)), 1: prompt(("y", 400))}
    # There is room for a request with at least 400 cached tokens: 100 + 256.
    taken = {w: turn(central, w, 356, TreeDelta((p,), ())) for w, p in cached.items()}
    assert taken == {0: [sent[2]], 1: [sent[1]]}
    assert turn(central, 2, 755) == []
    assert turn(central, 2, 756) == [sent[0]]


def test_a_client_has_one_credit_for_all_workers():
    central = make(quantum=500)
    mine = [request(n, "a", (f"a{n}", 400)) for n in range(4)]
    yours = [request(n, "b", (f"b{n}", 400)) for n in range(4, 8)]
    for one in mine + yours:
        central.on_arrival(one)
    # At 500 each, two of a's go to worker 0 (500, 100, -300), so worker 1 continues with b's.
    assert turn(central, 0, 2 * 656) == mine[:2]
    assert turn(central, 1, 2 * 656) == yours[:2]
    # Both were in debt, and got a quantum before the next request turned out not to fit.
    assert central.scheduler.credit == {"a": 200, "b": 200}


def test_siblings_that_would_compute_the_same_prefix_come_last():
    central = make(quantum=10_000)
    first, sibling = (request(n, "a", ("x", 100), (f"q{n}", 5)) for n in range(2))
    other = request(2, "a", ("y", 100))
    for one in (first, sibling, other):
        central.on_arrival(one)
    assert turn(central, 0, 10_000) == [first, other, sibling]


def test_an_eviction_counts_before_an_insertion_of_the_same_turn():
    central = make()
    text = prompt(("x", 50))
    central.update(0, TreeDelta((text,), ((text, 20),)))
    one = request(0, "a", ("x", 50))
    central.on_arrival(one)
    assert central.match(0) == {one: 50}
    assert central.match(1) == {one: 0}


def test_a_prompt_that_is_fully_cached_takes_one_token_and_its_outputs():
    central = make(quantum=1000)
    central.update(0, TreeDelta((prompt(("x", 50)),), ()))
    sent = [request(n, "a", ("x", 50)) for n in range(2)]
    for one in sent:
        central.on_arrival(one)
    assert turn(central, 0, 257 + 256) == sent[:1]
    assert central.scheduler.credit == {"a": 999}
    assert turn(central, 0, 257) == sent[1:]


def test_evicted_tokens_are_recomputed():
    central = make()
    text = prompt(("x", 50))
    one = request(0, "a", ("x", 50))
    central.on_arrival(one)
    central.update(0, TreeDelta((text,), ()))
    central.update(0, TreeDelta((), ((text, 20),)))
    assert central.match(0) == {one: 30}
