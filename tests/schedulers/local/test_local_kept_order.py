"""Test that an order kept from pass to pass equals sorting again."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench_rivals.local.kept_order import KeptOrder
from tests.schedulers.local.local_server import call

CALLS = [call(number, "a", 10) for number in range(6)]
STEPS = st.lists(
    st.tuples(st.sampled_from(CALLS), st.one_of(st.none(), st.integers(0, 3))), max_size=30
)


@given(STEPS)
def test_the_order_equals_sorting_by_key_and_entry(steps):
    kept, naive = KeptOrder(), {}
    for request, key in steps:
        naive.pop(request, None)
        if key is None:
            kept.drop_request(request)
        else:
            kept.put_request(request, key)
            naive[request] = key
        # the sort is stable
        assert list(kept.within(CALLS)) == sorted(naive, key=naive.__getitem__)


def test_entries_that_leave_are_skipped_and_newcomers_wait_for_the_next_pass():
    kept = KeptOrder()
    first, second, third, late, again = CALLS[:5]
    for key, request in enumerate([first, second, third]):
        kept.put_request(request, key)
    seen = []
    for request in kept.within(CALLS):
        seen.append(request)
        if request is first:
            kept.drop_request(first)
            kept.drop_request(second)
            kept.put_request(late, 1.5)
            kept.put_request(again, 9)
    assert seen == [first, third]
    assert list(kept.within(CALLS)) == [late, third, again]
    assert list(kept.within([third])) == [third]
