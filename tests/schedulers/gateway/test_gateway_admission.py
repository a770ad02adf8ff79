"""Test admission control: its estimate by hand, and its properties."""

from collections import Counter
from inspect import isfunction
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.build import build_gateway, with_admission
from fairbench.schedulers.gateway.registry import AdmissionParams
from fairbench.schedulers.gateway.rerouting import Rerouting, rerouting
from fairbench.schedulers.routing.d2lpm import D2LPM
from fairbench.schedulers.routing.fair_finish import FairFinish
from fairbench.schedulers.routing.least_loaded import LeastLoaded
from fairbench.schedulers.routing.round_robin import RoundRobin
from fairbench.schedulers.views import WorkerLoad
from tests.schedulers.gateway.gateway_helpers import Emptiest
from tests.strategies import examples

SLOTS = 2  # slots of a worker


class Costs:
    """Costs: a prefill takes 10 ms per token, and a decode step of any batch 0.1 s."""

    def prefill_s(self, cached_tokens, new_tokens):
        return new_tokens / 100

    def decode_step_s(self, requests, context_tokens):
        return 0.1


class Cluster:
    """Workers that run ``SLOTS`` requests each, first come, first served. A test ends requests."""

    def __init__(self, workers=1, *, gateway=None, router=None, matched=None, **params):
        self.now_s = 0.0
        self.at = [[] for _ in range(workers)]
        self.sent, self.refused, self.shed = [], [], []
        self.router = rerouting(router or Emptiest())
        setup = Setup(pool_tokens=1000, fleet=self, costs=Costs())
        self.router.prepare(setup)
        queue = gateway and build_gateway(
            gateway, "concurrency", {"concurrency.requests": SLOTS}, router=self.router, setup=setup
        )
        known = {} if matched is None else {"matched": matched}
        params = {"policy": "refuse", "ahead": "all"} | params
        self.control = with_admission(
            queue, AdmissionParams(**params), router=self.router, setup=setup, **known
        )

    def workers(self):
        return range(len(self.at))

    def load(self, worker):
        mine = len(self.at[worker])
        queued = max(0, mine - SLOTS)
        return WorkerLoad(mine, 0, queued, mine - queued, queued > 0)

    def arrive(self, client="a", tokens=100, *, first=None, end=None, most=1000):
        number = len(self.sent) + len(self.refused) + len(self.control)
        due = [None if one is None else self.now_s + one for one in (first, end)]
        request = Request(number, client, number, 0, (Segment(f"p{number}", tokens),), tokens,
                          most, self.now_s, due[1], first_token_by_s=due[0])  # fmt: skip
        if not self.control.enter(request, self.now_s):
            self.refused.append(request)
        self.go()
        return request

    def go(self):
        self.shed += self.control.shed(self.now_s)
        self.control.release(self.now_s, self._send)

    def _send(self, request, worker):
        self.at[worker].append(request)
        self.sent.append(request)

    def answer(self, worker=0, output_tokens=11):
        request = self.at[worker].pop(0)
        self.control.finish(request, output_tokens, self.now_s)
        self.router.on_finish(request, worker, Segment("o", output_tokens), self.now_s)
        self.go()


def test_an_idle_worker_takes_as_long_as_the_prefill():
    cluster = Cluster()
    cluster.arrive(first=1.0)  # 100 tokens take 1 s
    cluster.arrive(first=0.99)
    assert (len(cluster.sent), len(cluster.refused)) == (1, 1)
    assert cluster.control.retry_after_s() == pytest.approx(0.01)


def test_cached_tokens_cost_no_time():
    cluster = Cluster(matched=lambda request: 60)
    cluster.arrive(first=0.4)
    cluster.arrive(first=0.39)
    assert (len(cluster.sent), len(cluster.refused)) == (1, 1)


@pytest.mark.parametrize(
    ("first", "end", "taken"),
    [
        # Three requests of 1 s each wait. Two run with 11 tokens each, so one ends every 11 x 0.1 /
        # 2 s. Four requests have to end.
        (1 + 3 * 1 + 4 * 0.55, None, True),
        (1 + 3 * 1 + 4 * 0.55 - 0.01, None, False),
        (None, 1 + 3 + 2.2 + 10 * 0.1, True),  # and ten steps
        (None, 1 + 3 + 2.2 + 10 * 0.1 - 0.01, False),
    ],
)
def test_the_estimate_at_a_saturated_worker_equals_a_hand_computation(first, end, taken):
    cluster = Cluster()
    for _ in range(6):
        cluster.arrive()
    cluster.answer(output_tokens=11)
    assert cluster.load(0) == WorkerLoad(5, 0, 3, 2, True)
    cluster.arrive(first=first and first + 1e-9, end=end and end + 1e-9)
    assert bool(cluster.refused) is not taken


def test_expected_outputs_are_those_of_the_client_within_its_limit():
    cluster = Cluster()
    for client, tokens in (("long", 41), ("short", 3), ("short", 5)):
        cluster.arrive(client)
        cluster.answer(output_tokens=tokens)
    for client, most, steps in (("long", 1000, 40), ("long", 11, 10), ("short", 1000, 3)):
        for margin, taken in ((1e-9, True), (-0.01, False)):
            before = len(cluster.refused)
            cluster.arrive(client, end=1 + 0.1 * steps + margin, most=most)
            assert (len(cluster.refused) == before) is taken
            if taken:
                cluster.answer(output_tokens=0)  # it was not served, so it has no output


@pytest.mark.parametrize(
    ("ahead", "slack", "taken"),
    [
        ("all", 1 + 8 * 1 + 9 * 0.55, True),
        ("all", 1 + 8 * 1 + 9 * 0.55 - 0.01, False),
        ("fair", 1 + 1 * 0.55, True),  # the flood's queue is not ahead, except for one slot
        ("fair", 1 + 1 * 0.55 - 0.01, False),
        ("edf", 1 + 1 * 0.55, True),  # no other client is due
    ],
)
def test_requests_ahead_follow_the_local_scheduler(ahead, slack, taken):
    cluster = Cluster(ahead=ahead)
    for _ in range(11):
        cluster.arrive("flood")
    cluster.answer(output_tokens=11)
    cluster.arrive("light", first=slack + 1e-9)
    assert bool(cluster.refused) is not taken


def test_the_earlier_deadlines_of_a_flood_delay_the_flood_itself():
    cluster = Cluster(ahead="fair")
    for _ in range(12):
        cluster.arrive("flood", first=20.0)
    assert len(cluster.sent) == 12
    cluster.answer(output_tokens=101)
    # Two of eleven run, so nine go first: 9 s of prefill, and ten slots at 101 x 0.1 / 2 s.
    cluster.arrive("flood", first=10 + 10 * 5.05 - 0.01)
    assert len(cluster.refused) == 1


def test_requests_without_a_deadline_are_not_estimated():
    cluster = Cluster()
    for _ in range(50):
        cluster.arrive(tokens=10_000)
    assert len(cluster.sent) == 50


def test_a_demoted_request_goes_when_no_request_waits_or_it_is_old():
    cluster = Cluster(policy="demote", aging_s=5.0)
    late = cluster.arrive(first=0.5)
    assert late.demoted
    assert cluster.sent == [late]  # no other request waits, so it is sent although it will be late
    others = [cluster.arrive() for _ in range(3)]
    late = [cluster.arrive(first=0.5) for _ in range(3)]
    assert cluster.sent[1:] == others
    assert not any(one.demoted for one in others)
    cluster.answer()
    cluster.answer()  # one of two slots is in use, so one more request fits
    assert cluster.sent[4:] == late[:1]
    cluster.now_s = 4.9
    cluster.go()
    assert cluster.control.wake_s(4.9) == 5.0
    assert cluster.sent[5:] == []
    cluster.now_s = 5.0
    cluster.go()
    assert cluster.sent[5:] == late[1:]


def test_no_request_is_demoted_past_the_queue_of_a_gateway():
    cluster = Cluster(gateway="fcfs", policy="demote")
    held = [cluster.arrive() for _ in range(4)]  # two requests are sent
    late = cluster.arrive(first=0.5)
    cluster.answer()
    cluster.answer()
    assert cluster.sent == held
    cluster.answer()
    assert cluster.sent == [*held, late]


class Stubborn(RoundRobin):
    """A router that always chooses worker 0."""

    name = "stubborn"

    def route(self, request, now_s):
        return 0


def test_a_request_that_would_be_late_is_rerouted():
    cluster = Cluster(2, router=Stubborn(RoundRobin.Params(), 2))
    for _ in range(4):
        cluster.arrive()
    assert [len(one) for one in cluster.at] == [4, 0]
    cluster.arrive(first=1.0)  # in time only at worker 1
    cluster.arrive(first=60.0)  # in time at both workers
    assert [len(one) for one in cluster.at] == [5, 1]
    assert not cluster.refused


def test_the_inner_router_gets_every_event():
    hooks = {name for name, one in vars(Router).items() if isfunction(one)}
    assert "on_gpu_time" in hooks
    assert hooks <= set(vars(Rerouting))


def test_gpu_time_is_charged_when_the_router_has_decided():
    inner = D2LPM(D2LPM.Params(charge="gpu-time"), 2)
    router = rerouting(inner)
    router.prepare(Setup(costs=Costs()))
    request = Request(0, "a", 0, 0, (Segment("p", 101),), 101, 9, 0.0)
    router.choose = lambda request, worker, now_s: 1 - worker
    assert router.route(request, 0.0) == 1
    before = inner.credit["a"][0]
    router.on_gpu_time(request, 1, 3.0)
    router.on_finish(request, 1, Segment("o", 9), 1.0)
    # 1 s of work was ahead
    assert before - inner.credit["a"][0] == pytest.approx((3 - 1) * PS_PER_S)


def test_the_router_learns_of_a_first_token_at_the_worker_of_its_own_choice():
    inner = Stubborn(RoundRobin.Params(), 2)
    heard = []
    inner.on_first_token = lambda request, worker, at_s: heard.append((request, worker, at_s))
    router = rerouting(inner)
    request = Request(0, "a", 0, 0, (Segment("p", 9),), 9, 9, 0.0)
    router.choose = lambda request, worker, now_s: 1
    assert router.route(request, 0.0) == 1
    router.on_first_token(request, 1, 0.5)
    assert heard == [(request, 0, 0.5)]


def test_a_choice_without_effect_is_withdrawn():
    inner = FairFinish(FairFinish.Params(), 3)
    router = rerouting(inner)
    router.prepare(Setup())
    request = Request(0, "a", 0, 0, (Segment("p", 100),), 100, 9, 0.0)
    router.choose = lambda request, worker, now_s: 1
    assert router.route(request, 0.0) == 1  # the router chooses 0
    router.on_worker_leave(1, 0.0)
    router.choose = lambda request, worker, now_s: worker
    again = router.route(request, 0.0)
    router.on_finish(request, again, Segment("o", 9), 0.0)
    for worker in (0, 2):
        assert inner._fleet.unfinished_at(worker) == 0
        assert inner._backlogs[worker].work("a") == 0


def test_the_router_learns_of_its_own_choice():
    cluster = Cluster(2, router=LeastLoaded(LeastLoaded.Params(), 2))
    counted = cluster.router.router
    cluster.at[0] += [object()] * 6  # for the request of another client
    cluster.arrive(first=1.2)
    assert [len(one) for one in cluster.at] == [6, 1]
    assert [counted._fleet.unfinished_at(one) for one in (0, 1)] == [1, 0]
    cluster.answer(1)
    assert [counted._fleet.unfinished_at(one) for one in (0, 1)] == [0, 0]


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("arrive"),
            st.sampled_from("ab"),
            st.sampled_from([10, 100, 300]),
            st.sampled_from([None, 0.2, 1.0, 3.0, 10.0]),
            st.sampled_from([None, 2.0, 8.0]),
        ),
        st.tuples(st.just("answer"), st.integers(0, 1), st.sampled_from([0, 1, 20])),
        st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0])),
    ),
    max_size=40,
)
WAYS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["refuse", "demote"]),
        "ahead": st.sampled_from(["all", "fair", "edf"]),
        "gateway": st.sampled_from([None, "fcfs", "drr"]),
        "aging_s": st.just(4.0),
    }
)


def late_by_all(cluster, request):
    """Recompute the estimate of ``ahead=all`` from the workers' and the ended requests."""

    def mean(outputs):
        return sum(outputs) / len(outputs) if outputs else 1.0

    own = [tokens for client, tokens in cluster.over if client == request.client]
    every = [tokens for _, tokens in cluster.over]
    held = len(cluster.control._held) / len(cluster.at)
    found = []
    for worker, mine in enumerate(cluster.at):
        load = cluster.load(worker)
        ahead = load.queued + held
        prefills = [one.input_tokens / 100 for one in mine]
        first = request.input_tokens / 100 + ahead * mean(prefills if prefills else [0])
        if load.saturated or held:
            first += (ahead + 1) * mean(every) * 0.1 / max(1, load.running)
        end = first + 0.1 * max(0, min(request.max_new_tokens, mean(own or every)) - 1)
        found.append(max(first - (request.first_token_by_s or inf) + cluster.now_s,
                         end - (request.deadline_s or inf) + cluster.now_s))  # fmt: skip
    return min(found)


@examples(150)
@given(EVENTS, WAYS)
def test_no_request_is_lost_and_only_late_ones_are_refused(events, way):
    cluster = Cluster(2, **way)
    cluster.over, made = [], []
    for kind, *what in events:
        if kind == "arrive":
            client, tokens, first, end = what
            before = len(cluster.refused)
            probe = Request(-1, client, 0, 0, (Segment("x", tokens),), tokens, 1000, cluster.now_s,
                            end and cluster.now_s + end,
                            first_token_by_s=first and cluster.now_s + first)  # fmt: skip
            late_s = late_by_all(cluster, probe)
            made.append(request := cluster.arrive(client, tokens, first=first, end=end))
            judged_late = request.demoted or len(cluster.refused) > before
            if first is None and end is None:
                assert not judged_late
            elif way["ahead"] == "all" and abs(late_s) > 1e-6:
                assert judged_late is (late_s > 0)
        elif kind == "answer" and cluster.at[what[0]]:
            request = cluster.at[what[0]][0]
            if what[1]:
                cluster.over.append((request.client, what[1]))
            cluster.answer(what[0], what[1])
        elif kind == "wait":
            cluster.now_s += what[0]
            cluster.go()
    if way["policy"] == "demote":
        assert not cluster.refused
    # Each request is in exactly one place, and none is left once all are answered.
    counts = Counter(map(id, [*cluster.sent, *cluster.refused]))
    assert max(counts.values(), default=1) == 1
    assert len(counts) + len(cluster.control) == len(made)
    for _ in range(len(made)):
        for worker in cluster.workers():
            if cluster.at[worker]:
                cluster.answer(worker)
    assert len(cluster.control) == 0
    assert {*cluster.sent, *cluster.refused} == {*made}
    assert not cluster.shed
