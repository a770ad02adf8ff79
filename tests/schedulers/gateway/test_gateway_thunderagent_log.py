"""Replay the decisions of a real ThunderAgent router, read from its logs.

The logs are those of SARPAT/thunderagent-churn-study. Each tick of a log shows the sessions that
were resumed or paused, and for pauses also all idle sessions. For waiting sessions that were not
chosen, the tokens are known only if another log of the same seed shows them.
"""

import json
from itertools import count

import pytest

from fairbench.core import Request
from fairbench.schedulers.base import Read, Setup
from fairbench.schedulers.views import QueueView, WorkerLoad
from fairbench_rivals.gateway.pausing_gate import BUFFER
from fairbench_rivals.gateway.thunderagent import ThunderAgent
from tests.shared_data import SHARED, needs

FILE = SHARED / "data/agent_gates/thunderagent_decisions.json"
NOTHING = {"runs": {}, "system": {"capacity_tokens": 0}}
LOG = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else NOTHING
CAPACITY = LOG["system"]["capacity_tokens"]
pytestmark = needs(FILE)


class OneWorker:
    def workers(self):
        return (0,)

    def load(self, worker):
        return WorkerLoad(0, 0)


class Recorded(ThunderAgent):
    """A gate with named sessions, which records the names that it resumes and pauses."""

    def __init__(self, admit="smallest"):
        super().__init__(self.Params(admit=admit))
        self.prepare(Setup(pool_tokens=CAPACITY, fleet=OneWorker()))
        self.names, self.resumed, self.paused = {}, [], []
        self._requests = count()

    def resume(self, session, worker):
        self.resumed.append(self.names[session])
        super().resume(session, worker)

    def enter_pool(self, session):
        self.paused.append(self.names.get(session))
        super().enter_pool(session)

    def turn(self, name, tokens):
        """Let the session's next turn arrive, and return its request."""
        program = 1 + list(self.names.values()).index(name) if name in self.names.values() else 0
        program = program or len(self.names) + 1
        request = Request(next(self._requests), "a", program, 0, (), tokens, 1)
        self.on_arrival(request, QueueView(), 0.0)
        self.names[self.sessions[request]] = name
        return request

    def fill(self, idle, busy=()):
        """Add active sessions, lists of (name, tokens), and let the turns of ``busy`` go on."""
        turns = [(self.turn(name, 0), tokens) for name, tokens in (*idle, *busy)]
        for request, tokens in turns:
            self.on_admitted(request, 0, False)
            self.on_answer(request, Read(tokens), 0, 0.0)
            self.on_finish(request)
        for name, tokens in busy:
            self.turn(name, tokens)

    def sessions_by_name(self):
        return {name: session for session, name in self.names.items()}


def ticks():
    """Yield (run, index, tick, window) of every tick. A window has no gap."""
    for run, found in LOG["runs"].items():
        window = []
        for tick in [*found["ticks"], "gap"]:
            if tick != "gap":
                window.append(tick)
                continue
            yield from ((run, index, one, window) for index, one in enumerate(window))
            window = []


PAUSES = [(run, tick["pauses"]) for run, _, tick, _ in ticks() if "pauses" in tick]
RESUMES = [one for one in ticks() if "resumed" in one[2]]


def paused_with(candidates, busy_tokens):
    """Return the sessions that the gate pauses beside a busy session of these tokens, or none."""
    gate = Recorded()
    busy = [] if busy_tokens is None else [("unknown", busy_tokens)]
    gate.fill(reversed(candidates), busy)  # the gate puts them in order, and not the test
    gate.pause()
    return gate.paused


def needed(sessions):
    return sum(tokens + BUFFER for _, tokens in sessions)


def test_every_pause_is_the_same():
    alone = 0
    for run, pauses in PAUSES:
        candidates, taken = pauses["candidates"], pauses["taken"]
        expected = [name for name, _ in candidates[:taken]]
        # The log bounds the rest of the load up to the tokens of the last paused session.
        most = CAPACITY + needed(candidates[:taken]) - needed(candidates)
        least = CAPACITY + needed(candidates[: taken - 1]) - needed(candidates) + 1
        assert most >= 0, run
        if least <= 0:
            assert paused_with(candidates, None) == expected, run
            alone += 1
        for busy in {max(0, least - BUFFER), most - BUFFER}:
            if busy >= 0:
                assert paused_with(candidates, busy) == expected, run
        assert paused_with(candidates, most - BUFFER + 1)[: taken + 1] != expected
    # In 4 of 10 ticks, the idle sessions alone exceed the pool, so nothing is unknown.
    assert (len(PAUSES), alone) == (10, 4)


def changes(tick):
    """Yield (name, had the replica before, has the replica after) of a tick, in order."""
    yield from ((name, True, False) for name in tick.get("released", ()))
    yield from ((name, False, True) for name, *_ in tick.get("resumed", ()))
    pauses = tick.get("pauses", {"candidates": (), "taken": 0})
    taken = pauses["taken"]
    for place, (name, _) in enumerate(pauses["candidates"]):
        yield name, True, place >= taken


def placed_before(window, index):
    """Return the sessions that had the replica when a tick resumed others.

    The next entry of a session in the log decides, or else its last entry.
    """
    had = {}
    for tick in window[:index]:
        had |= {name: after for name, _, after in changes(tick)}
    for tick in reversed(window[index:]):
        had |= {name: before for name, before, _ in reversed([*changes(tick)])}
    gone = window[index].get("released", ())
    return sorted(name for name, placed in had.items() if placed and name not in gone)


def first_turns():
    """Return the tokens of new sessions by seed and name, from all runs of the seed."""
    found = {}
    for run, ticks_of in LOG["runs"].items():
        seed, seen = run.split("/")[1], set()
        for tick in ticks_of["ticks"]:
            if tick == "gap":
                continue
            for name, tokens, _ in tick.get("resumed", ()):
                # With seed 100, the first two groups had begun before the parts that were read.
                if name not in seen and (seed != "100" or name >= "g02"):
                    found.setdefault(seed, {})[name] = tokens
            seen |= {name for name, *_ in changes(tick)}
    return found


def expected_pool(run, window, index):
    """Return the known paused sessions, {name: (tokens when paused, tokens)}, and the new ones."""
    new = dict(first_turns()[run.split("/")[1]])
    paused = {}
    for tick in window[:index]:
        pauses = tick.get("pauses", {"candidates": (), "taken": 0})
        paused |= dict(pauses["candidates"][: pauses["taken"]])
    for tick in LOG["runs"][run]["ticks"]:
        if tick == window[index]:
            break
        for name, *_ in changes(tick) if tick != "gap" else ():
            new.pop(name, None)
    old, placed = {}, placed_before(window, index)
    for tick in window[index:]:
        for name, tokens, _ in tick.get("resumed", ()):
            if name not in new and name not in placed and name not in old:
                old[name] = (paused.get(name, tokens), tokens)
    return old, new


def resumed_by_gate(run, window, index, admit=None):
    tick = window[index]
    names, active = placed_before(window, index), tick["resumed"][0][2] - tick["resumed"][0][1]
    old, new = expected_pool(run, window, index)
    gate = Recorded(admit or run.split("/")[0])
    # The log has only the total of the active sessions, so they may divide it in any way.
    gate.fill([(names[0], active), *((name, 0) for name in (*names[1:], *old))])
    for name, (then, _) in old.items():
        session = gate.sessions_by_name()[name]
        session.tokens = then
        gate.enter_pool(session)
    for name, (_, now) in old.items():
        gate.turn(name, now)
    if not old:
        gate.fill([("stone", 0)])
        gate.sessions_by_name()["stone"].tokens = 2 * CAPACITY
        gate.enter_pool(gate.sessions_by_name()["stone"])
    for name in sorted(new):  # programs arrive in the order of their names
        gate.turn(name, new[name])
    gate.tick(5.0)
    return gate.resumed


@pytest.mark.parametrize(
    ("run", "index", "tick", "window"),
    [pytest.param(*one, id=f"{one[0]}-{one[2]['t']:.0f}") for one in RESUMES],
)
def test_every_admission_that_the_log_decides_is_the_same(run, index, tick, window):
    assert resumed_by_gate(run, window, index) == [name for name, *_ in tick["resumed"]]
    active = tick["resumed"][0][2] - tick["resumed"][0][1]
    for _, tokens, total in tick["resumed"]:
        active += tokens
        assert active == total


def test_another_order_of_new_sessions_would_be_noticed():
    assert (len(RESUMES), sum(len(tick["resumed"]) for _, _, tick, _ in RESUMES)) == (15, 45)
    differ = dict.fromkeys(("fifo", "smallest", "largest"), 0)
    for run, index, tick, window in RESUMES:
        names = [name for name, *_ in tick["resumed"]]
        for order in differ.keys() - {run.split("/")[0]}:
            differ[order] += resumed_by_gate(run, window, index, order) != names
    assert differ == {"fifo": 5, "smallest": 5, "largest": 4}
