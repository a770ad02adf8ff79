"""Test that events run in order of (time, priority, key, insertion)."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine.clock import ARRIVE, DECIDE, END, Clock


def run(clock):
    while clock.next_ps() is not None:
        clock.step()


EVENT = st.tuples(st.integers(0, 3), st.sampled_from([ARRIVE, END, DECIDE]), st.integers(0, 2))


@given(st.lists(EVENT, max_size=12))
def test_events_run_in_order(events):
    clock, heard = Clock(), []
    for number, (time_ps, priority, key) in enumerate(events):
        clock.at(time_ps, priority, key, partial(heard.append, (time_ps, priority, key, number)))
    run(clock)
    assert heard == sorted(heard)
    assert len(heard) == len(events)


@given(st.lists(EVENT, max_size=12), st.data())
def test_soon_gives_the_same_order_as_waiting(events, data):
    """``soon`` runs immediately only what ``at`` would run next."""
    followers = [data.draw(st.integers(0, 2)) for _ in events]

    def heard_with(soon):
        clock, heard = Clock(), []

        def end(number):
            heard.append((clock.now_ps, number))
            decide = partial(heard.append, (clock.now_ps, number, "decides"))
            if soon:
                clock.soon(DECIDE, followers[number], decide)
            else:
                clock.at(clock.now_ps, DECIDE, followers[number], decide)

        for number, (time_ps, _, key) in enumerate(events):
            clock.at(time_ps, END, key, partial(end, number))
        run(clock)
        return heard

    assert heard_with(soon=True) == heard_with(soon=False)


def test_soon_lets_earlier_events_of_the_same_instant_go_first():
    clock, heard = Clock(), []

    def end():
        clock.soon(DECIDE, 0, partial(heard.append, "decide"))
        heard.append("end")

    clock.at(5, END, 0, end)
    clock.at(5, END, 1, partial(heard.append, "other end"))
    run(clock)
    assert heard == ["end", "other end", "decide"]
