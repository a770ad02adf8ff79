"""Test DLPM with upstream calls first: the order by hand, and DLPM's own rules otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.local.dlpm import DLPM
from fairbench_studies.dlpm.upstream import UpstreamDLPM
from tests.schedulers.local.local_server import Server, call


def admitted(scheduler, calls, matched=(), slots=99):
    home = Server(scheduler, slots=slots)
    home.arrive(*calls)
    home.matched.update({calls[number]: tokens for number, tokens in matched})
    home.run_pass()
    return [request.request_id for request in home.admitted]


def upstream(**params):
    return UpstreamDLPM(UpstreamDLPM.Params(**params))


CALLS = [
    call(0, "a", 50, program=1, left=0, depth=3),
    call(1, "a", 50, program=2, left=9, depth=2),
    call(2, "a", 50, program=3, left=4, depth=0),
    call(3, "a", 50, program=4, left=0, depth=1),
]


def test_the_call_on_which_most_others_wait_goes_first():
    assert admitted(upstream(), CALLS) == [1, 2, 3, 0]
    assert admitted(upstream(upstream="depth"), CALLS) == [2, 3, 1, 0]


def test_the_program_with_the_fewest_calls_left_goes_first_if_asked():
    assert admitted(upstream(upstream="few_left"), CALLS) == [3, 0, 2, 1]


def test_equal_calls_go_by_longest_cached_prefix():
    calls = [call(n, "a", 50, left=0) for n in range(3)]
    assert admitted(upstream(), calls, matched=[(1, 40), (2, 35)]) == [1, 2, 0]


def test_a_client_without_credit_waits_at_any_depth():
    scheduler = upstream(quantum=100)
    home = Server(scheduler, slots=2)
    home.arrive(call(0, "a", 150), call(1, "b", 10))
    home.run_pass()
    assert scheduler.credit["a"] < 0 < scheduler.credit["b"]
    home.slots = 4
    home.arrive(call(2, "a", 10, left=50), call(3, "b", 10, left=0))
    home.run_pass()
    assert [request.request_id for request in home.admitted] == [0, 1, 3, 2]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 5)), max_size=25),
    st.integers(1, 3),
)
def test_without_programs_the_order_is_that_of_dlpm(sent, slots):
    runs = []
    for made in (upstream(quantum=80), DLPM(DLPM.Params(quantum=80))):
        home = Server(made, slots=slots)
        for number, (client, tokens, new) in enumerate(sent):
            home.arrive(call(number, client, tokens, new=new, left=None))
            home.run(1)
        home.run(200)
        runs.append(([r.request_id for r in home.admitted], made.credit))
    assert runs[0] == runs[1]


def test_the_bound_is_that_of_dlpm():
    assert upstream(quantum=7).service_bound() == DLPM(DLPM.Params(quantum=7)).service_bound()


@pytest.mark.parametrize("name", ["calls_left", "depth"])
def test_a_retracted_call_is_offered_again(name):
    scheduler = upstream(upstream=name)
    home = Server(scheduler, slots=1)
    first = call(0, "a", left=0)
    home.arrive(first)
    home.run_pass()
    home.produced.clear()
    scheduler.on_retract(first, home.view, 0.0)
    home.view.enter(first)
    home.run_pass()
    assert home.admitted == [first, first]
