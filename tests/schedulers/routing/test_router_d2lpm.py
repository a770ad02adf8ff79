"""Test D2LPM against a literal Algorithm 2, its invariants, and hand-computed decisions."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairbench
from fairbench.core import PS_PER_S, Request, Segment, prompt_tokens
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts.fleet import as_bits
from fairbench.schedulers.parts.worker_credits import WorkerCredit
from fairbench.schedulers.routing.d2lpm import D2LPM
from tests.schedulers.routing.router_helpers import NaiveLocations, answer, prompt, prompts, request


def make(workers=2, **params):
    return D2LPM(D2LPM.Params(**params), workers)


def refilled(balances, quantum):
    workers = as_bits(balances)
    credit = WorkerCredit(workers)
    credit.update(balances)
    credit.refill(quantum, workers)
    return credit


@given(st.dictionaries(st.integers(0, 7), st.integers(-5_000, 0), min_size=1), st.integers(1, 700))
def test_one_refill_equals_repeated_refills(credit, quantum):
    literal = dict(credit)
    while all(left <= 0 for left in literal.values()):
        literal = {worker: left + quantum for worker, left in literal.items()}
    assert refilled(credit, quantum) == literal


def shares_of_a_stuck_worker(**params):
    """Return the share of 400 requests of one client that go to worker 0, which finishes none."""
    router, stuck = make(worker_quantum=4_000, **params), 0
    for number in range(400):
        one = request(number, "f", (f"p{number}", 10))
        worker = router.route(one, 0.0)
        stuck += worker == 0
        if worker:
            router.on_finish(one, worker, answer(500), 0.0)
    return stuck / 400


def test_charging_outputs_at_the_end_favours_a_stuck_worker():
    assert shares_of_a_stuck_worker() > 0.8  # 10 per request there, 1,010 elsewhere
    assert shares_of_a_stuck_worker(outputs="ahead") <= 0.5


def test_outputs_charged_ahead_are_corrected_to_their_length():
    router = make(1, outputs="ahead", worker_quantum=10_000)
    first, second = (request(number, "f", (f"p{number}", 100)) for number in range(2))
    router.route(first, 0.0)
    router.on_finish(first, 0, answer(300), 0.0)  # unknown length: 100 + 2 * 300
    assert dict(router.credit["f"]) == {0: 10_000 - 700}
    router.route(second, 0.0)
    assert dict(router.credit["f"]) == {0: 10_000 - 700 - 100 - 600}
    router.on_finish(second, 0, answer(50), 0.0)
    assert dict(router.credit["f"]) == {0: 10_000 - 700 - 100 - 100}
    router.route(request(2, "g", ("q", 10)), 0.0)  # unknown client: the mean of all clients, 175
    assert dict(router.credit["g"]) == {0: 10_000 - 10 - 350}
    router.on_failure(request(2, "g", ("q", 10)), 0, 0.0)
    assert dict(router.credit["g"]) == {0: 10_000}


def test_refunds_of_charges_ahead_give_no_credit():
    """After an answer of 2,000 tokens, twenty requests get quanta and then turn out to have 1 token
    each.
    """
    router = make(1, outputs="ahead", worker_quantum=1_000)
    sent = [request(number, "f", (f"p{number}", 10)) for number in range(21)]
    router.route(sent[0], 0.0)
    router.on_finish(sent[0], 0, answer(2_000), 0.0)
    for one in sent[1:]:
        router.route(one, 0.0)
    for one in sent[1:]:
        router.on_finish(one, 0, answer(1), 0.0)
    assert dict(router.credit["f"]) == {0: 1_000}


def test_outputs_are_not_charged_ahead_in_gpu_time():
    with pytest.raises(UsageError, match=r"d2lpm\.outputs = 'ahead': cannot be combined with"):
        make(outputs="ahead", charge="gpu-time").prepare(Setup(costs=FixedCosts()))


class FixedCosts:
    """Costs: an iteration takes 50 ms, and a token of a prompt 10 us more."""

    def prefill_s(self, cached_tokens, new_tokens):
        return 0.05 + new_tokens * 1e-5

    def decode_step_s(self, requests, context_tokens):
        return 0.05


def test_gpu_time_is_charged_ahead_without_the_shared_part_of_a_batch():
    """Otherwise 30 requests at once would be refunded 30 iterations, which is many quanta."""
    router = make(1, charge="gpu-time", worker_quantum=1000)
    router.prepare(Setup(costs=FixedCosts()))
    sent = [request(number, "f", (f"p{number}", 101)) for number in range(30)]
    for one in sent:
        router.route(one, 0.0)
    quantum = router.credits.quantum_of("f")
    assert router.credit["f"][0] == pytest.approx(quantum - 30 * 100 * 1e-5 * PS_PER_S)
    for one in sent:
        router.on_gpu_time(one, 0, 0.003)
        router.on_finish(one, 0, answer(1), 0.0)
        assert router.credit["f"][0] <= quantum
    assert router.credit["f"][0] == pytest.approx(quantum - 30 * 0.003 * PS_PER_S)


def test_a_quantum_far_below_the_debt_still_terminates():
    credit = {0: -(10**15), 1: -(10**15) + 1}
    assert refilled(credit, 1) == {0: 0, 1: 1}


class Literal:
    """Algorithm 2 line by line, with the recomputation that its loop lacks."""

    def __init__(self, workers, params):
        self.params, self.workers = params, workers
        self.q, self.s, self.tree = {}, [0] * workers, NaiveLocations()

    def candidates(self, sent):
        q = self.q.setdefault(sent.client, [0] * self.workers)
        while not any(left > 0 for left in q):
            for worker in range(self.workers):
                q[worker] += self.params.worker_quantum
        available = {w for w in range(self.workers) if q[w] > 0}
        tokens, holding = self.tree.holders(sent.prompt, self.workers)
        if tokens < self.params.min_match_tokens:
            holding = set()
        pool = holding & available or available
        return {w for w in pool if self.s[w] == min(self.s[v] for v in pool)}

    def dispatch(self, sent, worker):
        cached = self.tree.cached_tokens(sent.prompt, self.workers).get(worker, 0)
        tokens = sent.input_tokens
        charged = tokens if self.params.charge == "input" else max(1, tokens - cached)
        self.q[sent.client][worker] -= charged
        self.s[worker] += 1
        self.tree.insert(sent.prompt, worker)

    def finish(self, sent, worker, output_tokens):
        self.q[sent.client][worker] -= 2 * output_tokens
        self.s[worker] -= 1


steps = st.lists(
    st.one_of(
        st.tuples(st.just("route"), st.sampled_from("xyz"), prompts()),
        st.tuples(st.just("finish"), st.integers(0, 99), st.integers(0, 30)),
        st.tuples(st.just("evict"), st.integers(0, 99), st.integers(1, 5)),
    ),
    max_size=40,
)


@given(
    steps,
    st.integers(1, 4),
    st.builds(
        D2LPM.Params,
        worker_quantum=st.integers(1, 60),
        charge=st.sampled_from(["input", "uncached"]),
        min_match_tokens=st.integers(0, 6),
    ),
)
def test_decisions_equal_the_literal_algorithm(steps, workers, params):
    router, literal = D2LPM(params, workers), Literal(workers, params)
    sent, running = [], []
    outputs = dict.fromkeys(range(workers), 0)
    for number, (name, what, detail) in enumerate(steps):
        if name == "route":
            new = Request(number, what, 0, 0, detail, prompt_tokens(detail), 30)
            allowed = literal.candidates(new)
            worker = router.route(new, 0.0)
            assert worker in allowed
            literal.dispatch(new, worker)
            sent.append((new, worker))
            running.append((new, worker))
        elif name == "finish" and running:
            done, worker = running.pop(what % len(running))
            router.on_finish(done, worker, answer(detail), 0.0)
            literal.finish(done, worker, detail)
            outputs[worker] += detail
        elif name == "evict" and sent:
            old, worker = sent[what % len(sent)]
            tokens = min(detail, old.input_tokens)
            router.on_evict(old.prompt, tokens, worker, 0.0)
            literal.tree.evict(old.prompt, tokens, worker)
        credits = {client: dict(enumerate(q)) for client, q in literal.q.items()}
        assert router.credit == credits
        for credit in credits.values():
            # Credit is above 0 at dispatch, so at most one prompt (16 tokens) and outputs lead into
            # debt.
            assert all(-16 - 2 * outputs[w] < q <= params.worker_quantum for w, q in credit.items())


def test_locality_lasts_as_long_as_the_credit():
    router = make(2, worker_quantum=250)
    document = [request(n, "a", ("doc", 100), (f"q{n}", 1)) for n in range(5)]
    # 101 tokens each: worker 0 stays in credit (149, 48) until the third request (-53).
    assert [router.route(r, 0.0) for r in document[:3]] == [0, 0, 0]
    assert router.credit["a"] == {0: 250 - 303, 1: 250}
    assert router.route(document[3], 0.0) == 1
    # Both hold the document, and only worker 1 is in credit.
    assert router.route(document[4], 0.0) == 1


def test_a_refill_goes_to_every_worker_of_this_client_only():
    router = make(2, worker_quantum=10)
    first, second, third = (request(n, c, ("p", 25)) for n, c in enumerate("aab"))
    assert router.route(first, 0.0) == 0
    router.on_finish(first, 0, answer(3), 0.0)
    assert router.credit == {"a": {0: 10 - 25 - 6, 1: 10}}
    assert router.route(second, 0.0) == 1
    # -21 and -15: two quanta bring worker 1 to 5, while worker 0 stays in debt.
    assert router.route(request(9, "a", ("p", 25)), 0.0) == 1
    assert router.credit["a"] == {0: -1, 1: 5 - 25}
    router.route(third, 0.0)
    assert router.credit["a"] == {0: -1, 1: -20}


def test_the_shorter_queue_among_the_holders_is_chosen():
    router = make(3)
    shared = [request(n, "a", ("sys", 10), (f"q{n}", 1)) for n in range(2)]
    assert router.route(shared[0], 0.0) == 0
    router._tree.insert(shared[0].prompt, 2)
    # Worker 1 is as idle as worker 2, but only 0 and 2 hold the prefix.
    assert router.route(shared[1], 0.0) == 2


def test_ties_rotate_over_idle_workers():
    router = make(3)
    chosen = []
    for number in range(6):
        sent = request(number, f"client{number}", (f"prompt{number}", 5))
        chosen.append(router.route(sent, 0.0))
        router.on_finish(sent, chosen[-1], answer(0), 0.0)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_short_common_prefix_can_be_ignored():
    for minimum, expected in ((0, [0, 0]), (11, [0, 1])):
        router = make(2, min_match_tokens=minimum)
        sent = [request(n, "a", ("system", 10), (f"q{n}", 90)) for n in range(2)]
        assert [router.route(r, 0.0) for r in sent] == expected


def test_the_uncached_charge_is_at_least_one_token():
    router = make(1, charge="uncached", worker_quantum=1000)
    sent = [request(n, "a", ("p", 40)) for n in range(2)]
    router.route(sent[0], 0.0)
    assert router.credit["a"][0] == 1000 - 40
    router.route(sent[1], 0.0)
    assert router.credit["a"][0] == 1000 - 41


@pytest.mark.parametrize(("insert_on_finish", "worker"), [(False, 1), (True, 0)])
def test_an_inserted_output_can_outweigh_late_eviction_reports(insert_on_finish, worker):
    router = make(2, insert_on_finish=insert_on_finish)
    first = request(0, "a", ("p", 40))
    assert router.route(first, 0.0) == 0
    router.on_evict(first.prompt, 40, 0, 0.1)
    router.on_finish(first, 0, answer(5), 0.2)
    assert router.route(request(1, "a", ("p", 40), ("q", 1)), 0.3) == worker


def test_an_output_inserted_on_finish_attracts_the_next_turn():
    router = make(2, insert_on_finish=True)
    turn = request(0, "a", ("p", 40))
    worker = router.route(turn, 0.0)
    router.on_finish(turn, worker, Segment("reply", 5), 0.1)
    holders = router._tree.holders(router._tree.find(prompt(("p", 40), ("reply", 5)))[0])
    assert (holders.tokens, holders.workers) == (45, 1 << worker)


def test_leaving_removes_credit_prefixes_and_queue():
    router = make(2, worker_quantum=1000)
    sent = [request(n, "a", ("p", 40)) for n in range(4)]
    assert [router.route(r, 0.0) for r in sent[:2]] == [0, 0]
    router.on_worker_leave(0, 0.0)
    router.on_finish(sent[0], 0, answer(5), 0.0)
    router.on_evict(sent[0].prompt, 40, 0, 0.0)
    assert router.credit == {"a": {1: 1000}}
    assert [router.route(r, 0.0) for r in sent[:2]] == [1, 1]
    router.on_worker_join(0, 0.0)
    router.on_finish(sent[1], 0, answer(5), 0.0)  # output of a request in the worker's first life
    assert router.credit == {"a": {0: 0, 1: 1000 - 80}}
    # Worker 0 is idle, but has no credit before the next refill.
    assert router.route(sent[2], 0.0) == 1
    router.credit["a"][1] = -5
    # refilled to {0: 1000, 1: 995}: the prefix is at worker 1
    assert router.route(sent[3], 0.0) == 1
    assert router.credit["a"][0] == 1000


def test_a_new_worker_starts_without_credit():
    router = make(1, worker_quantum=100)
    router.route(request(0, "a", ("p", 40)), 0.0)
    router.on_worker_join(5, 0.0)
    assert router.credit == {"a": {0: 60, 5: 0}}


SCRIPT = """
from tests.schedulers.routing.router_helpers import answer, prompt, request
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.preble_e2 import PrebleE2
for router in (
    D2LPM(D2LPM.Params(worker_quantum=50), 3),
    PrebleE2(PrebleE2.Params(capacity_tokens=90), 3),
):
    for n in range(300):
        keys = (f"s{n % 5}", 20), (f"t{n * 7 % 11}", 9), (f"u{n * 5 % 23}", 3)
        print(router.route(request(n, f"c{n % 4}", *keys), n * 0.1), end="")
"""


def test_decisions_do_not_depend_on_the_hash_seed():
    paths = [str(Path(__file__).parents[3]), str(Path(fairbench.__file__).parents[1])]

    def run(seed):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(paths)}
        command = [sys.executable, "-c", SCRIPT]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert len(run("1")) == 600
    assert run("1") == run("2")


def test_a_decision_takes_few_calls_of_functions():
    router = make(8)
    sent, calls = [], 0

    def count(frame, event, _):
        nonlocal calls
        calls += event == "call"

    for n in range(1_000):
        turns = [
            (f"turn{n % 300}.{n % 7 if depth > 2 else depth}.{depth}", 256) for depth in range(7)
        ]
        sent.append(request(n, f"c{n % 6}", ("system", 56), *turns))
    sys.setprofile(count)
    try:
        for made in sent:
            router.on_finish(made, router.route(made, 0.0), answer(256), 0.0)
    finally:
        sys.setprofile(None)
    assert calls < 65 * len(sent)


def test_d2lpm_gives_quanta_by_weight():
    router = D2LPM(D2LPM.Params(worker_quantum=100), 2)
    router.prepare(Setup(("a", "b"), {"b": 3.0}))
    for number, client in enumerate("ab"):
        router.route(request(number, client, (f"p{client}", 10)), 0.0)
    assert sorted(router.credit["a"].values()) == [90, 100]
    assert sorted(router.credit["b"].values()) == [290, 300]
    router.on_finish(request(0, "a", ("pa", 10)), 0, answer(5), 0.0)
    assert sorted(router.credit["a"].values()) == [80, 100]
