"""A gateway with lists of clients and workers. Time passes only when a test says so."""

from itertools import count

from fairbench.core import Request, Segment
from fairbench.schedulers.base import Router, Setup
from fairbench.schedulers.gateway.build import build_gateway
from fairbench.schedulers.gateway.rerouting import is_overruled, rerouting
from fairbench.schedulers.views import WorkerLoad


class Emptiest(Router):
    """A router to the worker with the fewest requests in flight. The first of equals wins."""

    name = "emptiest"

    def route(self, request, now_s):
        return min(self.setup.fleet.workers(), key=lambda w: self.setup.fleet.load(w).in_flight)


class Desk:
    """A gateway whose arrivals and answers the test controls. ``sent`` has all dispatches."""

    def __init__(
        self, policy, saturation="concurrency", *, workers=1, weights=(), matched=None, terms=None,
        pool_tokens=1000, **settings,
    ):  # fmt: skip
        self.now_s = 0.0
        self.at = {}  # request in flight -> worker
        self.sent, self.refused, self.shed = [], [], []
        self.queued = {}  # worker -> number of waiting requests that it reports
        self.streamed = {}  # request in flight -> output tokens so far
        self._workers = workers
        self._numbers = count()
        setup = Setup(
            weights=dict(weights), pool_tokens=pool_tokens, fleet=self,
            streamed=lambda: self.streamed,
        )  # fmt: skip
        router = rerouting(Emptiest()) if is_overruled(policy, None) else Emptiest()
        router.prepare(setup)
        given = dict(_setting(key, value) for key, value in settings.items())
        known = {} if matched is None else {"matched": matched}
        self.gateway = build_gateway(
            policy, saturation, given, router=router, setup=setup, terms=terms, **known
        )

    # the fleet

    def workers(self):
        return range(self._workers)

    def load(self, worker):
        mine = [request for request, at in self.at.items() if at == worker]
        tokens = sum(request.input_tokens for request in mine)
        queued = self.queued.get(worker, 0)
        return WorkerLoad(len(mine), tokens, queued, max(0, len(mine) - queued))

    # events

    def request(self, client, tokens=10, *, priority=0, deadline_s=None, key=None, program=None):
        number = next(self._numbers)
        prompt = (Segment(key or f"p{number}", tokens),)
        return Request(
            *(number, client, number if program is None else program),
            *(0, prompt, tokens, 100, self.now_s, deadline_s, priority),
        )

    def arrive(self, client, tokens=10, *, go=True, **kwargs):
        request = self.request(client, tokens, **kwargs)
        if not self.gateway.enter(request, self.now_s):
            self.refused.append(request)
        if go:
            self.go()
        return request

    def go(self):
        self.shed += self.gateway.shed(self.now_s)
        self.gateway.release(self.now_s, self._send)

    def _send(self, request, worker):
        self.at[request] = worker
        self.sent.append(request)

    def answer(self, request=None, output_tokens=1, *, go=True):
        """Answer the given request, or the one that has been in flight for longest."""
        request = request or next(iter(self.at))
        del self.at[request]
        self.streamed.pop(request, None)
        self.gateway.finish(request, output_tokens, self.now_s)
        if go:
            self.go()

    def serve(self, times, output_tokens=1):
        """Answer requests one after the other. Return the clients of requests sent meanwhile."""
        before = len(self.sent)
        for _ in range(times):
            self.answer(output_tokens=output_tokens)
        return [request.client for request in self.sent[before:]]


def _setting(key, value):
    """Translate ``llm_d_vtc__forget_s`` to ``llm-d-vtc.forget_s``."""
    owner, _, param = key.partition("__")
    return f"{owner.replace('_', '-')}.{param}", value


def one_at_a_time(policy, **settings):
    """Return a desk that has just sent a request of ``warm``, so that later ones are queued."""
    desk = Desk(policy, concurrency__requests=1, **settings)
    desk.arrive("warm", 1)
    return desk
