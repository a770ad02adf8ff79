"""Test the plugin in prefill and decode servers, on stand-ins for SGLang's internal queues."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from fairbench.targets import Due
from fairbench_engines.sglang.hooks import Hooks
from fairbench_load.headers import tagged
from fairbench_load.plugin_config import plugin_config

PROMPT, OUTPUT = 100, 20


@dataclass(eq=False)
class Req:
    """A request of a decode server, whose prompt can be sent from step ``ready`` on."""

    rid: str
    routing_key: str
    ready: int = 0
    prompt: int = PROMPT
    finished_reason: object = None
    finished_len: int | None = None
    output_ids: list = field(default_factory=list)

    def __post_init__(self):
        self.origin_input_ids = [1] * self.prompt
        self.sampling_params = SimpleNamespace(max_new_tokens=OUTPUT)
        self.waiting_for_input, self.req, self.priority = False, self, None

    def finished(self):
        return self.finished_reason is not None


class Queue:
    """A queue that gives memory first come, first served, and stops at a request without room."""

    def __init__(self, free):
        self.free, self.now, self.queue, self.retracted_queue = free, 0, [], []
        self.polled, self.transfer_queue = 0, SimpleNamespace(queue=[])
        batch = SimpleNamespace(reqs=[])
        self.scheduler = SimpleNamespace(running_batch=batch, waiting_queue=[])
        self.scheduler.disagg_decode_prealloc_queue = self

    def _update_handshake_waiters(self):
        self.polled += 1
        for req in self.queue:
            req.waiting_for_input |= req.ready <= self.now

    def pop_preallocated(self, rids_to_check=None):
        asked = [r for r in self.queue if rids_to_check is None or r.rid in rids_to_check]
        failed = [r for r in asked if r.finished()]
        given = []
        for req in asked:
            if req in failed or not req.waiting_for_input:
                continue
            if req.prompt > self.free:
                break
            self.free -= req.prompt
            given.append(req)
        self.queue = [r for r in self.queue if r not in given and r not in failed]
        return given, failed

    def resume_retracted_reqs(self):
        resumed, self.retracted_queue = self.retracted_queue, []
        return resumed


class Server:
    """A decode server with the plugin. ``step`` gives memory and returns who got some."""

    def __init__(self, local, free, settings=None, **arguments):
        self.hooks = Hooks(plugin_config(local, settings or {}), "any")
        self.hooks.obey(SimpleNamespace(disaggregation_mode="decode", **arguments))
        self.queue = Queue(free)
        self.targets = {name.rpartition(".")[2]: h for name, h in self.hooks.by_target().items()}

    @property
    def home(self):
        return self.hooks.home

    def call(self, name, *arguments):
        return self.targets[name].method(getattr(Queue, name), self.queue, *arguments)

    def step(self):
        given, failed = self.call("pop_preallocated")
        self.queue.now += 1
        return [req.rid for req in given], [req.rid for req in failed]

    def end(self, req):
        """Let a request run to its end, and free its memory."""
        req.output_ids = [1] * OUTPUT
        req.finished_reason = "length"
        self.home.produced([req])
        self.queue.free += req.prompt


def flood(light_at=30):
    """Return 30 requests of a flood, followed by three of a light client."""
    heavy = [Req(f"heavy-{n}", "heavy") for n in range(light_at)]
    return [*heavy, *(Req(f"light-{n}", "light") for n in range(3))]


@pytest.mark.parametrize("local", ["vtc", "lcf", "fcfs"])
def test_a_decode_server_gives_memory_in_the_order_of_its_scheduler(local):
    server = Server(local, 5 * PROMPT)
    server.queue.queue = flood()
    given, _ = server.step()
    assert len(given) == 5
    light = [rid for rid in given if rid.startswith("light")]
    assert len(light) == (0 if local == "fcfs" else 2)
    assert len(server.queue.queue) == 28


def test_dlpm_gives_memory_to_a_client_in_credit():
    """A decode server computes no prompts, so only output tokens cost credit."""
    server = Server("dlpm", PROMPT, {"dlpm.quantum": OUTPUT})
    server.queue.queue = flood()
    first = server.queue.queue[0]
    assert server.step()[0] == ["heavy-0"]
    server.end(first)
    assert server.step()[0] == ["light-0"]


def test_fcfs_gives_memory_as_sglang_does():
    for seed in range(20):
        draw = random.Random(seed)
        reqs = [Req(str(n), draw.choice("xy"), 0, draw.choice([50, 100, 300])) for n in range(40)]
        ours, stock = Server("fcfs", 700), Queue(700)
        ours.queue.queue, stock.queue = list(reqs), list(reqs)
        for _ in range(6):
            given, _ = ours.step()
            stock._update_handshake_waiters()
            assert given == [req.rid for req in stock.pop_preallocated()[0]], seed
            more = draw.choice([0, 150, 400])
            ours.queue.free += more
            stock.free += more


def test_a_request_whose_prompt_server_is_not_ready_is_passed_over():
    server = Server("vtc", 2 * PROMPT)
    server.queue.queue = [Req("late", "x", ready=2), Req("a", "x"), Req("b", "y")]
    assert sorted(server.step()[0]) == ["a", "b"]
    assert server.step()[0] == []
    server.queue.free = PROMPT
    assert server.step()[0] == ["late"]
    assert server.home.ledger.total("arrivals") == 3


def test_each_output_token_but_the_first_is_charged_on_the_decode_server():
    server = Server("vtc", 3 * PROMPT)
    reqs = server.queue.queue = [Req("a", "x"), Req("b", "x"), Req("c", "y")]
    reqs = list(reqs)
    server.step()
    for req in reqs:
        server.end(req)
    clients = dict(server.home.ledger.items())
    assert clients["x"]["output_tokens"] == 2 * (OUTPUT - 1)
    assert clients["y"]["output_tokens"] == OUTPUT - 1
    assert server.home.ledger.total("extend_tokens") == 0
    assert server.home.idle


def test_a_failed_or_aborted_request_leaves_the_scheduler():
    server = Server("vtc", 0)
    broken, fine = Req("broken", "x"), Req("fine", "x")
    server.queue.queue = [broken, fine]
    server.step()
    broken.finished_reason = "abort"
    assert server.step() == ([], ["broken"])
    server.queue.free = PROMPT
    assert server.step() == (["fine"], [])
    assert server.home.ledger.total("finished") == 1


def test_a_retracted_request_returns_before_others_and_is_not_charged_twice():
    server = Server("vtc", PROMPT)
    req = Req("a", "x")
    server.queue.queue = [req]
    server.step()
    server.queue.retracted_queue.append(req)
    server.hooks.enqueue(lambda *_: None, server.queue.scheduler, req, True)
    assert server.home.ledger.total("retractions") == 1
    assert server.call("resume_retracted_reqs") == [req]
    server.end(req)
    assert server.home.ledger.total("recomputed_tokens") == 0
    assert server.home.ledger.total("output_tokens") == OUTPUT - 1
    assert server.home.idle


class Bootstrap:
    """The queue of a prefill server. Each request needs one of a fixed number of buffers."""

    def __init__(self, buffers):
        self.left, self.queue = buffers, []
        self.req_to_metadata_buffer_idx_allocator = SimpleNamespace(
            available_size=lambda: self.left
        )

    def pop_bootstrapped(self):
        found, self.queue = self.queue[: self.left], self.queue[self.left :]
        self.left -= len(found)
        return found


@pytest.mark.parametrize(
    ("buffers", "weights", "light"), [(4, {}, 2), (6, {}, 3), (4, {"heavy": 3.0}, 1), (40, {}, 3)]
)
def test_clients_share_the_buffers_of_a_prefill_server(buffers, weights, light):
    hooks = Hooks(plugin_config("vtc", {}, weights), "any")
    queue = Bootstrap(buffers)
    queue.queue = flood()
    found = hooks.disaggregation.bootstrap(Bootstrap.pop_bootstrapped, queue)
    assert sum(req.routing_key == "light" for req in found) == light
    assert len(found) == min(buffers, 33)


def test_a_client_with_buffers_waits_for_one_without():
    hooks = Hooks(plugin_config("vtc", {}), "any")
    late = tagged("heavy", Due(5.0, 9.0, None), 0.0)  # a client's name, and the time that is left
    hooks.home.discover([Req(f"h{n}", late) for n in range(3)], 0.0)
    queue = Bootstrap(3)
    queue.queue = [Req("due", late), *flood()]
    found = hooks.disaggregation.bootstrap(Bootstrap.pop_bootstrapped, queue)
    assert [req.routing_key for req in found] == ["light"] * 3
