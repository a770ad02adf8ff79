"""Test a client's queue: its older programs go first, and clients keep their turns."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request
from fairbench.schedulers.gateway.client_limits import ClientLine
from tests.schedulers.gateway.gateway_helpers import Desk

WEIGHS_100 = 36  # 36 prompt tokens and half of the 128 output tokens expected of an unknown client

CLIENTS = ("a", "b")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(CLIENTS), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("go")),
        st.tuples(st.just("leave"), st.integers(0, 9)),
    ),
    max_size=40,
)


def request(client, number, priority=0):
    return Request(number, client, 0, 0, (), 0, 0, priority=priority)


def home(**settings):
    """Return a gateway that sends one request of a client at a time."""
    return Desk("fcfs", "none", gateway__client_limit=100, **settings)


def went(desk):
    """Answer all requests in turn. Return the numbers of those that were dispatched."""
    while desk.at:
        desk.answer(output_tokens=128)
    return [one.request_id for one in desk.sent]


def test_a_later_call_goes_before_the_first_call_of_a_later_program():
    desk = home()
    for program in (1, 2, 3, 1, 2):
        desk.arrive("a", WEIGHS_100, program=program)
    assert went(desk) == [0, 3, 1, 4, 2]


def test_the_age_of_a_program_is_that_of_its_first_call_even_if_that_never_waited():
    desk = home()
    first = desk.arrive("a", WEIGHS_100, program=9)
    desk.arrive("a", WEIGHS_100, program=2)
    desk.answer(first, 128)  # so that request 2 runs
    desk.arrive("a", WEIGHS_100, program=2)
    desk.arrive("a", WEIGHS_100, program=9)
    assert went(desk) == [0, 1, 3, 2]


def test_requests_without_a_program_go_by_arrival():
    desk = home()
    for program in (-1, 5, -1, 0, 5, 0):
        desk.arrive("a", WEIGHS_100, program=program)
    assert went(desk) == [0, 1, 4, 2, 3, 5]


def test_priority_comes_before_the_age_of_a_program():
    desk = home()
    for program, priority in ((1, 0), (1, 0), (2, 1), (1, 1), (3, 2)):
        desk.arrive("a", WEIGHS_100, program=program, priority=priority)
    assert went(desk) == [0, 4, 3, 2, 1]


def test_clients_of_a_tenant_take_turns_by_arrival_under_any_programs():
    desk = home(gateway__tenants="tree")
    for client, program in (("x", 1), ("b", 1), ("a", 7), ("b", 1), ("a", 3), ("a", 7)):
        desk.arrive(f"org/{client}", WEIGHS_100, program=program)
    went(desk)
    assert [one.client[-1] for one in desk.sent] == list("xbabaa")
    assert [one.request_id for one in desk.sent] == [0, 1, 2, 3, 5, 4]


def test_a_request_that_leaves_gives_its_turn_to_the_first_of_its_client_or_drops_it():
    line = ClientLine()
    asked = {name: request(name[0], number) for number, name in enumerate(("a1", "b1", "a2", "b2"))}
    for name, program in (("a1", 2), ("b1", 3), ("a2", 1), ("b2", 4)):
        line.add_request(asked[name], 0, program)
    assert line.take_first() is asked["a2"]  # in the turn of a1
    assert line.drop_request(asked["a1"])  # with the turn of a2
    assert [line.take_first(), line.take_first()] == [asked["b1"], asked["b2"]]
    assert not line.drop_request(asked["b2"])
    assert not len(line)


class Plain:
    """An oracle that scans all requests. A turn is (priority, number, client)."""

    def __init__(self):
        self.turns, self.waiting = [], {}

    def add(self, request, priority, program):
        self.turns.append((-priority, request.request_id, request.client))
        self.waiting[request] = (-priority, request.client, program, request.request_id)

    def go(self):
        turn = min(self.turns)
        mine = [one for one, at in self.waiting.items() if at[:2] == (turn[0], turn[2])]
        self.turns.remove(turn)
        found = min(mine, key=self.waiting.get)
        del self.waiting[found]
        return found

    def leave(self, request):
        priority, client, _, number = self.waiting.pop(request)
        mine = [turn for turn in self.turns if (turn[0], turn[2]) == (priority, client)]
        own = [turn for turn in mine if turn[1] == number]
        self.turns.remove(own[0] if own else min(mine))


@given(STEPS)
def test_the_queue_equals_a_scan_of_all_requests(steps):
    line, plain = ClientLine(), Plain()
    for number, (what, *how) in enumerate(steps):
        if what == "add":
            client, priority, program = how
            one = request(client, number)
            line.add_request(one, priority, program)
            plain.add(one, priority, program)
        elif what == "go" and plain.waiting:
            expected = plain.go()
            assert line.first_request() is expected
            assert line.take_first() is expected
        elif what == "leave" and plain.waiting:
            one = list(plain.waiting)[how[0] % len(plain.waiting)]
            plain.leave(one)
            assert line.drop_request(one)
        assert len(line) == len(plain.waiting)


@given(STEPS)
def test_programs_change_which_request_is_chosen_and_never_the_client(steps):
    line, by_arrival, went = ClientLine(), ClientLine(), []
    for number, (what, *how) in enumerate(steps):
        if what == "add":
            client, priority, program = how
            line.add_request(request(client, number, priority), priority, program)
            by_arrival.add_request(request(client, number, priority), priority, number)
        elif what == "go" and len(line):
            one, other = line.take_first(), by_arrival.take_first()
            assert (one.client, one.priority) == (other.client, other.priority)
            went.append(one)
    assert len(set(went)) == len(went)
