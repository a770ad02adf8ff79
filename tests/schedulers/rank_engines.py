"""Several ranks of a server in one process, with exact steps and a delayed exchange."""

from collections import Counter, deque
from itertools import count

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Setup
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.views import QueueView
from fairbench_engines.rank_accounts import ranks_of
from fairbench_load.plugin_config import plugin_config


class Rank:
    """A rank with ``slots``. Every running request produces a token in each step."""

    def __init__(self, local, settings, weights, slots, *, linked=True):
        self.scheduler = plugin_config(local, settings).build()
        self.scheduler.prepare(Setup(weights=weights))
        self.link = ranks_of(self.scheduler) if linked else None
        self.view = QueueView()
        self.slots = slots
        self.running = {}  # request -> tokens left
        self.charged = Counter()  # input + 2 x output by client

    def arrive(self, request, now_s):
        if self.link is None:
            self.scheduler.on_arrival(request, self.view, now_s)
        else:
            with self.link.arriving(request.client):
                self.scheduler.on_arrival(request, self.view, now_s)
        self.view.enter(request)

    def waiting(self, client):
        return sum(request.client == client for request in self.view.by_arrival())

    def admit(self, now_s):
        def tried(request):
            if len(self.running) == self.slots:
                return Tried.NO_ROOM
            self.view.leave(request)
            self.running[request] = request.max_new_tokens
            self.charged[request.client] += request.input_tokens
            self.scheduler.on_admitted(request, request.input_tokens, False)
            return Tried.ADMITTED

        if len(self.view):
            drive(self.scheduler.select(self.view, now_s), tried)

    def decode(self):
        for request in list(self.running):
            self.scheduler.on_tokens(request.client, 1)
            self.charged[request.client] += 2
            self.running[request] -= 1
            if not self.running[request]:
                del self.running[request]
                self.scheduler.on_output(request, request.max_new_tokens)
                self.scheduler.on_finish(request)

    def states(self):
        states = dict.fromkeys((request.client for request in self.running), False)
        return states | dict.fromkeys(self.view.clients(), True)


class Server:
    """Ranks that tell each other their totals every ``every`` steps, ``delay`` steps late."""

    def __init__(self, ranks, *, every=1, delay=0):
        self.ranks = ranks
        self.every, self.delay = every, delay
        self.now = 0
        self.unheard = 0.0  # the most that was charged to a client and not heard yet
        self._numbers = count()
        self._versions = [0] * len(ranks)
        self._sent = deque()  # (due, origin, totals, states, charged)
        self._heard = [Counter() for _ in ranks]  # the charges that were heard from each rank
        self._states = [{} for _ in ranks]

    def send(self, rank, client, prompt, output):
        number = next(self._numbers)
        own = (Segment(f"p{number}", prompt),)
        request = Request(number, client, 0, 0, own, prompt, output, arrival_s=float(self.now))
        self.ranks[rank].arrive(request, float(self.now))

    def step(self):
        """Make one step at every rank, then exchange."""
        for rank in self.ranks:
            rank.admit(float(self.now))
            rank.decode()
        self.now += 1
        self._note_unheard()
        if self.now % self.every == 0:
            for origin, rank in enumerate(self.ranks):
                if rank.link is not None:
                    totals = rank.link.export_totals(self._versions[origin])
                    self._versions[origin] = totals.version
                    known = rank.states(), Counter(rank.charged)
                    self._sent.append((self.now + self.delay, origin, totals, *known))
        while self._sent and self._sent[0][0] <= self.now:
            _, origin, totals, self._states[origin], self._heard[origin] = self._sent.popleft()
            for number, rank in enumerate(self.ranks):
                if number != origin:
                    elsewhere = self._elsewhere(number)
                    rank.link.merge_ranks({str(origin): totals}, elsewhere, float(self.now))

    def _elsewhere(self, number):
        found = {}
        for origin, states in enumerate(self._states):
            if origin != number:
                for client, waits in states.items():
                    found[client] = found.get(client, False) or waits
        return found

    def _note_unheard(self):
        late = [rank.charged - heard for rank, heard in zip(self.ranks, self._heard, strict=True)]
        for number in range(len(late)):
            others = sum((one for n, one in enumerate(late) if n != number), Counter())
            self.unheard = max(self.unheard, *others.values(), 0)

    def charged(self, client):
        return sum(rank.charged[client] for rank in self.ranks)


def server_of(local, settings=None, *, ranks=2, slots=4, weights=None, linked=True, **exchange):
    made = [Rank(local, settings or {}, weights or {}, slots, linked=linked) for _ in range(ranks)]
    return Server(made, **exchange)
