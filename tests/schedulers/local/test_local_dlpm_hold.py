"""Test DLPM with active hold: by hand, against a recomputation from the log, and by properties."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, ServiceBound
from fairbench.errors import UsageError
from fairbench.schedulers.base import Setup
from fairbench.schedulers.drive import Tried
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.dlpm_hold import QUANTUM, HoldingDLPM
from fairbench.schedulers.output_lengths import OutputLengths
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.views import NothingRunning
from tests.schedulers.local.local_server import Server, call
from tests.strategies import examples

REQUEST_TOKENS = 100  # the cost of a request beyond its context, with these costs
UNIT_TOKENS = 10_000


class Linear:
    def __init__(self, fixed_s=0.010):
        self.fixed_s = fixed_s

    def prefill_s(self, cached_tokens, new_tokens):
        return 0.0

    def decode_step_s(self, requests, context_tokens):
        return self.fixed_s + 1e-4 * requests + 1e-6 * context_tokens


def make(costs=True, **params) -> HoldingDLPM:
    scheduler = HoldingDLPM(HoldingDLPM.Params(**params))
    scheduler.prepare(Setup(costs=Linear() if costs else None))
    return scheduler


def held_server(**params) -> Server:
    """Return a server: b runs with 10 of 20 credits, and three requests of a wait in debt."""
    server = Server(make(**({"quantum": 20, "floor": 1} | params)), slots=9)
    server.arrive(call(0, "b", 10, new=6))
    server.run_pass()
    server.arrive(*(call(number, "a", 10, new=1) for number in (1, 2, 3)))
    server.run_pass()
    return server


def ids(server: Server) -> list[int]:
    return [request.request_id for request in server.admitted]


class TestByHand:
    def test_no_request_is_admitted_while_a_running_client_has_credit(self):
        server = held_server()
        for credit in (8, 6, 4, 2):
            server.step()
            server.run_pass()
            assert server.scheduler.credit == {"b": credit, "a": 0}
            assert ids(server) == [0]

    def test_when_its_credit_is_spent_both_get_a_quantum_and_requests_are_held_again(self):
        server = held_server()
        server.run(5)
        assert ids(server) == [0, 1, 2]
        assert server.scheduler.credit == {"b": 20, "a": 0}
        server.run(1)  # b has finished in credit, which it may not keep
        assert ids(server) == [0, 1, 2, 3]
        assert "b" not in server.scheduler.credit

    def test_a_waiting_client_in_credit_is_never_held(self):
        server = held_server()
        server.arrive(call(4, "b", 5))
        server.run_pass()
        assert ids(server) == [0, 4]

    def test_a_light_batch_is_filled_as_by_dlpm(self):
        """b's request costs 10 + 128 / 2 + 100 tokens. Two requests of a use up a quantum."""
        assert ids(held_server(floor=174)) == [0, 1, 2]
        assert ids(held_server(floor=173)) == [0]

    def test_admissions_of_this_pass_count_even_if_the_batch_is_the_earlier_one(self):
        server = Server(make(quantum=20, floor=1), slots=9)
        server.view.running = NothingRunning()  # as in SGLang's first pass, to its end
        server.arrive(call(0, "b", 10, new=6), *(call(number, "a", 10) for number in (1, 2, 3)))
        server.run_pass()
        assert ids(server) == [0, 1, 2]

    def test_holding_can_be_turned_off(self):
        assert ids(held_server(hold=False)) == [0, 1, 2, 3]

    def test_a_running_client_in_debt_holds_no_other_client(self):
        server = Server(make(quantum=5, floor=1), slots=9)
        server.arrive(call(0, "b", 10, new=6))
        server.run_pass()
        server.arrive(call(1, "a", 10))
        server.run_pass()
        assert ids(server) == [0, 1]


class TestUnits:
    def test_the_quantum_is_part_of_the_bound(self):
        bound = make().service_bound()
        assert isinstance(bound, ServiceBound)
        assert (bound.quantum_tokens, bound.source) == (QUANTUM, "DLPM Theorem 4.1")
        assert make(quantum=7).credits.quantum == 7

    def test_requests_are_held_at_four_units(self):
        tokens = 4 * UNIT_TOKENS - REQUEST_TOKENS - 64
        for more, held in ((0, False), (1, True)):
            server = Server(make(quantum=10**6), slots=9)
            server.arrive(call(0, "b", tokens + more, new=6))
            server.run_pass()
            server.arrive(call(1, "a", 10))
            server.run_pass()
            assert (ids(server) == [0]) == held

    def test_without_step_costs_nothing_is_held(self):
        scheduler = make(costs=False)
        server = Server(scheduler, slots=9)
        server.arrive(call(0, "b", 10, new=6), call(1, "a", 10))
        server.run_pass()
        assert ids(server) == [0, 1]


class Watched(Server):
    """A scheduler that recomputes at every pass, from its own log, whether to hold requests."""

    def __init__(self, scheduler: HoldingDLPM, **options) -> None:
        super().__init__(scheduler, **options)
        self.lengths = OutputLengths()
        self.cost: dict[Request, int] = {}  # cost of each request that was ever admitted
        self.outstanding: dict[Request, None] = {}
        self.holds = 0
        self.served: dict[str, int] = dict.fromkeys("abc", 0)
        # waiting requests, service by client
        self.states: list[tuple[frozenset[str], dict[str, int]]] = []

    def arrive(self, *requests: Request) -> None:
        super().arrive(*requests)
        self.outstanding |= dict.fromkeys(requests)

    def _try_admit(self, request: Request) -> Tried:
        assert not self.must_hold()
        verdict = super()._try_admit(request)
        if verdict is Tried.ADMITTED:
            self.cost[request] = round(
                request.input_tokens + self.lengths.expected(request.client) / 2
            )
            self.served[request.client] += request.input_tokens
        return verdict

    def must_hold(self) -> bool:
        waiting = {request.client for request in self.queue}
        credit = self.scheduler.credit
        batch = sum(self.cost[request] + REQUEST_TOKENS for request in self.produced)
        in_credit = [client for client in "abc" if credit.get(client, 0) > 0]
        only_run = {request.client for request in self.outstanding} - waiting
        return (
            batch > self.scheduler.params.floor
            and not waiting & set(in_credit)
            and bool(only_run & set(in_credit))
        )

    def step(self) -> None:
        for request in self.produced:
            self.served[request.client] += 2
        running = list(self.produced)
        super().step()
        for request in running:
            if request not in self.produced:
                self.lengths.learn(request.client, request.max_new_tokens)
                del self.outstanding[request]

    def run_pass(self) -> None:
        before = len(self.admitted)
        held = bool(self.queue) and self.must_hold()
        super().run_pass()
        assert not held or len(self.admitted) == before
        assert self.produced or not self.queue, "an idle engine was left idle"
        self.holds += held
        waiting = frozenset(request.client for request in self.queue)
        self.states.append((waiting, dict(self.served)))


arrivals = st.lists(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.integers(1, 9)), max_size=4),
    max_size=20,
)


def play(arrivals, quantum: int, floor: int, slots: int = 4) -> Watched:
    server = Watched(make(quantum=quantum, floor=floor), slots=slots)
    sent = 0
    for batch in arrivals:
        server.step()
        for client, tokens, new in batch:
            server.arrive(call(sent, client, tokens, new=new))
            sent += 1
        server.run_pass()
    while server.queue or server.produced:
        assert server.now_s < 10 * sent + len(arrivals)
        server.run(1)
    assert sorted(request.request_id for request in server.finished) == list(range(sent))
    assert server.scheduler._batch.cost_tokens(1) == 0
    return server


@given(arrivals, st.integers(1, 60), st.integers(1, 900))
@examples(40)
def test_requests_are_held_exactly_by_the_log_and_all_are_served(arrivals, quantum, floor):
    server = play(arrivals, quantum, floor)
    check_theorem(server, quantum)


def check_theorem(server: Watched, quantum: int) -> None:
    """Check [DLPM] Theorem 4.1 with and without holding. U is 40 of input and twice 9 of output."""
    for f, g in combinations("abc", 2):
        least = most = None
        for waiting, served in server.states:
            gap = served[f] - served[g]
            if not {f, g} <= waiting:
                least = most = None
                continue
            least, most = (gap, gap) if least is None else (min(least, gap), max(most, gap))
            assert most - least <= 2 * (40 + 2 * 9 + quantum)


def test_holding_occurs_in_these_streams():
    rng, holds = random.Random(0), 0
    for _ in range(20):
        sent = [
            [(rng.choice("abc"), rng.randint(1, 40), rng.randint(1, 9)) for _ in range(3)]
            for _ in range(10)
        ]
        holds += play(sent, quantum=30, floor=200).holds
    assert holds > 40


@given(arrivals, st.integers(1, 60))
@examples(15)
def test_with_an_unreachable_floor_the_scheduler_equals_dlpm(arrivals, quantum):
    plain = Server(DLPM(DLPM.Params(quantum=quantum)), slots=4)
    light = Server(make(quantum=quantum, floor=10**9), slots=4)
    off = Server(make(quantum=quantum, floor=1, hold=False), slots=4)
    servers, sent = (plain, light, off), 0
    for batch in arrivals:
        requests = [call(sent + n, c, tokens, new=new) for n, (c, tokens, new) in enumerate(batch)]
        sent += len(batch)
        for server in servers:
            server.step()
            server.arrive(*requests)
            server.run_pass()
    assert ids(plain) == ids(light) == ids(off)


def test_weights_scale_the_quantum():
    """A client of weight 3 gets three quanta, so its requests are held three times as long."""
    held = []
    for weight in (1, 3):
        scheduler = HoldingDLPM(HoldingDLPM.Params(quantum=20, floor=1))
        scheduler.prepare(Setup(weights={"b": weight}, costs=Linear()))
        server = Server(scheduler, slots=9)
        server.arrive(call(0, "b", 10, new=99))
        server.run_pass()
        server.arrive(call(1, "a", 10))
        while len(server.admitted) < 2:
            server.run(1)
        held.append(server.now_s)
    assert held == [5, 25]


@pytest.mark.parametrize("name", ["quantum", "floor"])
def test_neither_setting_may_be_below_0(name):
    with pytest.raises(UsageError, match=f"dlpm-hold.{name}"):
        build_local("dlpm-hold", {f"dlpm-hold.{name}": -1})
