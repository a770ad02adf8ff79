"""Test gates for sessions: pauses, resumes and placements by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.schedulers.gateway.registry import policies_by_name, policy_class
from tests.schedulers.gateway.gateway_helpers import Desk
from tests.strategies import examples

GATES = [
    name for name in policies_by_name() if getattr(policy_class(name), "needs_sessions", False)
]


class Gate(Desk):
    """A desk whose sessions are named by numbers from 1."""

    def __init__(self, policy, *, workers=1, pool_tokens=1000, **settings):
        super().__init__(policy, "none", workers=workers, pool_tokens=pool_tokens, **settings)

    def turn(self, session, tokens):
        return self.arrive("a", tokens, program=session)

    def idle(self, session, tokens):
        """Let the session's next turn be answered at once, with a context of ``tokens`` tokens."""
        request = self.turn(session, tokens - 1)
        assert request in self.at
        self.answer(request, 1)

    def at_s(self, now_s):
        self.now_s = now_s
        self.go()

    def waiting(self):
        return [request.program_id for request in self.gateway]

    def worker_of(self, request):
        return self.at.get(request)


def test_a_new_session_needs_its_tokens_and_100_more():
    gate = Gate("thunderagent")
    gate.turn(1, 500)
    gate.turn(2, 301)  # 1000 - 600 = 400 tokens are free
    assert gate.waiting() == [2]
    gate = Gate("thunderagent")
    gate.turn(1, 500)
    gate.turn(2, 300)
    gate.turn(2, 900)  # the turns of an active session always pass
    assert gate.waiting() == []


def test_a_new_session_waits_behind_any_paused_session():
    gate = Gate("thunderagent")
    gate.turn(1, 500)
    gate.turn(2, 600)
    gate.turn(3, 10)
    assert gate.waiting() == [2, 3]
    gate.at_s(4.9)
    assert gate.waiting() == [2, 3]
    gate.at_s(5.0)  # a session that does not fit is skipped
    assert gate.waiting() == [2]


def test_a_new_session_goes_to_the_replica_with_the_fewest_tokens():
    gate = Gate("thunderagent", workers=3)
    used = [gate.turn(1, 300), gate.turn(2, 200), gate.turn(3, 100)]
    assert [gate.worker_of(one) for one in used] == [0, 1, 2]
    # Buffers do not count, so worker 2 with 100 + 50 tokens still has the fewest, although of two
    # sessions.
    assert [gate.worker_of(gate.turn(n, 50)) for n in (4, 5, 6)] == [2, 2, 1]


def test_a_tick_pauses_the_smallest_idle_session_first():
    gate = Gate("thunderagent")
    for session, tokens in ((1, 200), (2, 100), (3, 300)):
        gate.idle(session, tokens)
    busy = gate.turn(3, 600)  # 200 + 100 + 600 and 300 of buffers
    gate.at_s(5.0)
    assert gate.turn(2, 100) not in gate.at  # paused: 200 + 600 + 200 fits exactly
    assert gate.turn(1, 200) in gate.at
    assert busy in gate.at


def test_busy_sessions_are_marked_and_paused_when_their_turn_ends():
    gate = Gate("thunderagent")
    first, second = gate.turn(1, 300), gate.turn(2, 400)
    for session in (1, 2):
        gate.turn(session, 600)
    gate.at_s(5.0)
    gate.answer(first, 1)
    assert gate.turn(1, 600) in gate.at  # another turn runs, so the session did not pause
    assert second in gate.at
    for request in list(gate.at):
        gate.answer(request, 1)
    gate.turn(1, 601)
    assert gate.waiting() == [1]


def test_a_resumed_session_is_not_paused_again_for_its_old_mark():
    gate = Gate("thunderagent")
    first, second = gate.turn(1, 300), gate.turn(2, 400)
    gate.turn(2, 650)
    gate.at_s(5.0)  # 300 + 650 + 200 do not fit, so both are marked
    for request in (first, second, gate.sent[-1]):
        gate.answer(request, 1)
    again = gate.turn(1, 301)
    assert gate.waiting() == [1]
    gate.at_s(10.0)
    gate.answer(again, 1)
    assert gate.turn(1, 302) in gate.at


def test_a_later_turn_goes_before_a_smaller_new_session():
    gate = Gate("thunderagent")
    gate.idle(1, 400)
    gate.turn(9, 100)
    gate.turn(9, 600)
    gate.at_s(5.0)  # pauses session 1
    gate.turn(3, 380)
    gate.turn(1, 400)
    for request in list(gate.at):
        gate.answer(request, 1)
    gate.turn(9, 390)
    gate.at_s(10.0)  # 1000 - 490 has room for one of them
    assert gate.waiting() == [3]


def test_a_resumed_session_goes_to_the_replica_with_most_room():
    gate = Gate("thunderagent", workers=2)
    first, second = gate.turn(8, 750), gate.turn(9, 700)
    gate.turn(1, 500)
    gate.turn(2, 400)
    gate.answer(first, 1)
    gate.turn(8, 300)
    gate.answer(second, 1)
    gate.turn(9, 100)
    gate.at_s(5.0)  # 600 and 800 are free; the larger session is placed first, at replica 1
    placed = {one.program_id: worker for one, worker in gate.at.items()}
    assert (placed[1], placed[2]) == (1, 0)


def test_a_waiting_turn_is_forced_to_its_old_replica_after_1800_s():
    gate = Gate("thunderagent", workers=2)
    gate.turn(9, 100)
    gate.idle(1, 300)  # on replica 1
    assert gate.worker_of(gate.turn(2, 250)) == 0
    gate.turn(1, 950)
    gate.turn(1, 950)
    gate.at_s(5.0)
    for request in [one for one in gate.at if one.program_id == 1]:
        gate.answer(request, 1)
    gate.turn(1, 2000)
    assert gate.waiting() == [1]
    gate.at_s(1804.9)
    assert gate.waiting() == [1]
    gate.at_s(1805.0)
    assert gate.waiting() == []
    assert next(gate.at[one] for one in gate.at if one.program_id == 1) == 1


def test_a_new_session_is_forced_to_the_replica_with_the_fewest_sessions():
    gate = Gate("thunderagent", workers=2)
    assert [gate.worker_of(gate.turn(n, size)) for n, size in ((7, 100), (8, 800))] == [0, 1]
    assert gate.worker_of(gate.turn(9, 100)) == 0  # two sessions with 200 tokens
    late = gate.turn(1, 950)
    gate.at_s(1799.9)
    assert gate.waiting() == [1]
    gate.at_s(1800.0)
    assert gate.worker_of(late) == 1


def test_decay_lets_idle_tokens_make_room_only_in_resumes():
    gate = Gate("thunderagent", thunderagent__half_life_s=1.0)
    gate.idle(1, 800)
    gate.turn(2, 500)
    assert gate.waiting() == [2]
    gate.at_s(5.0)  # 800 tokens, halved five times, are 25; then session 1 is paused
    assert gate.waiting() == []
    gate.turn(1, 800)
    assert gate.waiting() == [1]


@pytest.mark.parametrize(("admit", "first"), [("smallest", 3), ("largest", 2), ("fifo", 1)])
def test_new_sessions_are_admitted_in_the_chosen_order(admit, first):
    gate = Gate("thunderagent", thunderagent__admit=admit)
    blocker = gate.turn(9, 850)
    for session, tokens in ((1, 450), (2, 500), (3, 420)):
        gate.turn(session, tokens)
    gate.answer(blocker, 1)
    gate.turn(9, 300)
    gate.at_s(5.0)  # 1000 - 400 has room for one
    assert first not in gate.waiting()
    assert len(gate.waiting()) == 2


def test_dynamo_pauses_above_95_percent_to_80_and_resumes_to_85():
    gate = Gate("thunderagent-dynamo")
    gate.idle(1, 100)
    gate.idle(2, 200)
    turn = gate.turn(3, 350)
    gate.at_s(5.0)  # 650 + 300 = 950 is not above 95%
    gate.turn(3, 351)
    gate.at_s(10.0)  # 951: pauses session 1, which leaves 751
    gate.turn(2, 200)
    gate.turn(1, 100)
    assert gate.waiting() == [1]
    gate.at_s(15.0)  # 850 - 751 has no room for 200
    assert gate.waiting() == [1]
    gate.answer(turn, 1)
    gate.turn(3, 250)
    gate.at_s(20.0)  # 200 + 250 + 200 = 650 leaves exactly 200
    assert gate.waiting() == []


def test_dynamo_forgets_a_session_after_600_idle_seconds():
    gate = Gate("thunderagent-dynamo")
    gate.idle(1, 700)
    gate.turn(2, 300)
    assert gate.waiting() == [2]
    gate.at_s(599.0)
    assert gate.waiting() == [2]
    gate.at_s(600.0)
    assert gate.waiting() == []


def test_dynamo_delays_turns_of_nearly_full_replicas_behind_the_detector():
    gate = Desk(
        "thunderagent-dynamo", "concurrency", pool_tokens=1000, workers=2, concurrency__requests=1
    )
    kept = [gate.arrive("a", 750, program=1), gate.arrive("a", 100, program=2)]
    gate.now_s = 5.0
    gate.go()  # session 1 uses 850 of replica 0, between 80% and 95%
    gate.arrive("a", 750, program=1)
    gate.now_s = 6.0
    gate.arrive("a", 100, program=2)
    gate.answer(kept[0])
    gate.answer(kept[1])
    assert [one.program_id for one in gate.sent[2:]] == [2, 1]


def test_llmd_resumes_at_once_and_not_at_the_tick():
    gate = Gate("thunderagent-llmd")
    blocker = gate.turn(1, 500)
    gate.turn(2, 500)
    assert gate.waiting() == [2]
    gate.now_s = 0.5
    gate.answer(blocker, 1)  # the tokens of an idle session decay within seconds
    assert gate.waiting() == [2]
    gate.at_s(2.5)
    assert gate.waiting() == []


def paused_with_full_origin(resume, **settings):
    """Return a gate in which session 1 waits, its replica 0 is full, and replica 1 has room."""
    settings = {f"thunderagent_llmd__{key}": value for key, value in settings.items()}
    gate = Gate("thunderagent-llmd", workers=2, thunderagent_llmd__resume=resume, **settings)
    gate.turn(9, 100)  # replica 0
    gate.turn(8, 850)  # replica 1
    gate.idle(1, 300)  # replica 0
    assert gate.sent[-1].program_id == 1
    gate.turn(9, 650)
    gate.turn(9, 750)
    gate.at_s(5.0)  # replica 0 has 750 + 300 + 200, and pauses session 1
    for request in [one for one in gate.at if one.program_id == 8]:
        gate.answer(request, 1)
    gate.at_s(14.0)  # replica 1 has room, because session 8 has been idle for long
    gate.turn(1, 300)
    return gate


@pytest.mark.parametrize(
    ("resume", "waits_s"),
    [("most-room", 0), ("origin", None), ("wait-cap", 8), ("urgent", 15), ("age", None)],
)
def test_llmd_moves_a_session_as_its_rule_says(resume, waits_s):
    gate = paused_with_full_origin(resume)
    if waits_s == 0:
        assert gate.waiting() == []
        return
    for after_s in (7.9, 8.0, 14.9, 15.0, 100.0):
        gate.at_s(14.0 + after_s)
        moved = waits_s is not None and after_s >= waits_s
        assert (gate.waiting() == []) == moved, after_s


@pytest.mark.parametrize("resume", ["origin", "age"])
def test_llmd_forces_a_session_to_its_full_replica(resume):
    gate = paused_with_full_origin(resume, forced_s=25.0)
    gate.at_s(38.9)
    assert gate.waiting() == [1]
    gate.at_s(39.0)
    assert gate.waiting() == []
    assert gate.worker_of(gate.sent[-1]) == 0  # although replica 1 has room


@pytest.mark.parametrize(
    ("policy", "step", "settings"),
    [
        ("thunderagent", 20, {}),
        ("thunderagent-llmd", 20, {}),
        ("thunderagent-dynamo", 1, {}),
        ("thunderagent-llmd", None, {"thunderagent_llmd__resume": "lease"}),
    ],
)
def test_the_tokens_of_an_answer_count_while_it_streams(policy, step, settings):
    for streamed in (0, 1, 19, 20, 39):
        gate = Gate(policy, **settings)
        gate.streamed[gate.turn(1, 500)] = streamed
        counted = 0 if step is None else streamed - streamed % step
        gate.turn(2, 300 - counted + 1)
        assert gate.waiting() == [2]
        gate = Gate(policy, **settings)
        gate.streamed[gate.turn(1, 500)] = streamed
        gate.turn(2, 300 - counted)
        assert gate.waiting() == []


def test_streamed_tokens_do_not_count_twice_when_the_answer_ends():
    gate = Gate("thunderagent")
    first = gate.turn(1, 500)
    gate.streamed[first] = 40
    gate.turn(2, 800)  # reads the stream
    gate.answer(first, 50)
    gate.turn(1, 550)
    assert {one.tokens for _, one in gate_policy(gate).active()} == {550}


def test_llmd_counts_the_unfinished_turns_of_a_session_together():
    gate = Gate("thunderagent-llmd")
    both = gate.turn(1, 300), gate.turn(1, 250)
    gate.turn(2, 251)  # 300 + 250 and two buffers
    assert gate.waiting() == [2]
    gate.turn(3, 250)
    assert gate.waiting() == [2]
    gate.answer(both[0], 1)  # the last turn that ended has more tokens than the running one
    assert gate_tokens(gate) == [301, 250]
    gate.answer(both[1], 1)
    assert gate_tokens(gate) == [251, 250]


def test_llmd_counts_the_last_context_while_a_shorter_turn_runs():
    gate = Gate("thunderagent-llmd")
    gate.idle(1, 600)
    short = gate.turn(1, 50)
    gate.turn(2, 250)
    assert gate.waiting() == [2]
    assert gate_tokens(gate) == [600]
    gate.answer(short, 1)
    assert gate_tokens(gate) == [51, 250]


def gate_policy(gate):
    return next(iter(gate.gateway._bands.values())).scheduler


def gate_tokens(gate):
    """Return the tokens of the active sessions."""
    return [session.tokens for _, session in gate_policy(gate).active()]


def test_a_lease_is_taken_from_the_longest_idle_session_after_its_time():
    gate = Gate("thunderagent-llmd", thunderagent_llmd__resume="lease")
    gate.idle(1, 300)
    gate.now_s = 1.0
    gate.idle(2, 300)
    gate.turn(3, 300)
    gate.at_s(29.9)  # idle tokens do not decay, and 1000 - 800 is too little
    assert gate.waiting() == [3]
    gate.at_s(30.0)
    assert gate.waiting() == []
    gate.turn(1, 300)
    assert gate.waiting() == [1]
    assert gate.turn(2, 300) in gate.at


def test_a_turn_of_an_active_session_takes_room_from_idle_sessions_at_once():
    gate = Gate("thunderagent-llmd", thunderagent_llmd__resume="lease")
    gate.idle(1, 300)
    gate.idle(2, 300)
    gate.turn(2, 700)  # 300 + 700 + 200
    gate.turn(1, 300)
    assert gate.waiting() == [1]


def test_a_session_whose_replica_has_left_gets_another():
    gate = Gate("thunderagent", workers=2)
    gate.turn(8, 10)
    assert gate.worker_of(gate.turn(1, 5)) == 1
    gate._workers = 1
    assert gate.worker_of(gate.turn(1, 5)) == 0


def test_a_session_cap_opens_in_order_of_arrival_and_closes_after_idle_time():
    gate = Gate("session-cap", session_cap__most=2, session_cap__idle_s=10.0)
    turns = [gate.turn(session, 100) for session in (1, 2, 3, 4)]
    assert gate.waiting() == [3, 4]
    assert gate.turn(1, 100) in gate.at
    gate.now_s = 5.0
    gate.answer(turns[1])
    gate.at_s(14.9)
    assert gate.waiting() == [3, 4]
    gate.at_s(15.0)
    assert gate.waiting() == [4]
    gate.turn(2, 100)  # closed, so it waits like a new session
    assert gate.waiting() == [4, 2]


def test_unknown_rules_and_idle_parameters_are_one_line():
    for policy, settings, said in (
        ("thunderagent-llmd", {"resume": "orign"}, "thunderagent-llmd.resume = 'orign'"),
        ("thunderagent-llmd", {"admit": "lifo"}, "thunderagent-llmd.admit = 'lifo'"),
        ("thunderagent-llmd", {"after_s": 3.0}, "after_s = 3: has no effect"),
        ("thunderagent", {"forced_s": 0}, "thunderagent.forced_s = 0"),
        ("session-cap", {"most": 0}, "session-cap.most = 0"),
    ):
        owner = policy.replace("-", "_")
        gate = Gate(policy, **{f"{owner}__{key}": value for key, value in settings.items()})
        with pytest.raises(UsageError) as caught:
            gate.turn(1, 1)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


EVENTS = st.lists(
    st.tuples(st.sampled_from(("turn", "answer", "wait")), st.integers(1, 5), st.integers(1, 400)),
    max_size=60,
)


@pytest.mark.parametrize("policy", GATES)
@examples(25)
@given(events=EVENTS, workers=st.integers(1, 3))
def test_a_gate_sends_every_turn_once_and_to_the_replica_of_its_session(policy, events, workers):
    gate = Gate(policy, workers=workers)
    arrived = []
    for what, number, amount in events:
        if what == "turn":
            arrived.append(gate.turn(number, amount))
        elif what == "answer" and gate.at:
            gate.answer(list(gate.at)[number % len(gate.at)], amount)
        else:
            gate.at_s(gate.now_s + amount / 40)
    for _ in range(500):
        if not gate.at and not len(gate.gateway):
            break
        for request in list(gate.at):
            gate.answer(request, 1)
        gate.at_s(gate.gateway.wake_s(gate.now_s) or gate.now_s + 5)
    assert sorted(one.request_id for one in gate.sent) == [one.request_id for one in arrived]
