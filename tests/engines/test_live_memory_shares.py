"""Test memory shares over an engine's mirror: unknown clients, and what a pass asks the engine."""

from types import SimpleNamespace

import pytest

from fairbench.core import Request, Segment
from fairbench.errors import UsageError
from fairbench.schedulers.memory_share import PromptTokens
from fairbench.schedulers.views import ListView
from fairbench_engines.memory_shares import MirroredMemory
from fairbench_engines.mirrored_cache import OTHERS
from fairbench_engines.sglang.hooks import Hooks
from fairbench_load.plugin_config import SETTINGS, Evicting, config_from, plugin_config

POOL, SHARE = 60, 30.0


class Residency:
    """The resident tokens of each client, all pinned."""

    def __init__(self, **pinned):
        self._pinned = {"x": 0, "y": 0, OTHERS: 0} | pinned
        self.clients = tuple(self._pinned)

    def held(self, client):
        return self._pinned[client]

    def unpinned(self, client):
        return 0.0


class Eviction:
    """An engine's eviction that counts look-ups. A request's engine object is its length."""

    def __init__(self, free, **pinned):
        claims = SimpleNamespace(by_client=SimpleNamespace(entitled={"x": SHARE, "y": SHARE}.get))
        self.mirror = SimpleNamespace(residency=Residency(**pinned), claims=claims)
        self.free, self.asked, self.splits = free, [], 0

    def free_tokens(self):
        return self.free

    def demand(self, tokens):
        self.asked.append(tokens)
        return PromptTokens(tokens, tokens)


def waiting(*clients, tokens=10):
    queue = [
        Request(number, client, number, 0, (Segment(f"{number}", tokens),), tokens, 1)
        for number, client in enumerate(clients)
    ]
    return ListView(queue, lambda request: 0, lambda request: request.prompt)


def begin(eviction, view, pending=()):
    memory = MirroredMemory(eviction, ("x", "y"), lambda request: request.input_tokens)
    return memory, memory.begin(view, pending)


def test_unknown_clients_count_as_one_client_without_a_share():
    view = waiting("who", "else")
    memory, shown = begin(Eviction(5), view)
    assert shown.clients() == ["who", "else"]  # nothing is pinned, so either client may run
    first = view.oldest("who")
    view.leave(first)
    memory.changed()
    assert shown.clients() == []  # the other client would borrow more than the free memory
    assert memory.share(OTHERS) == 0
    assert memory.name_of("x") == "x"


def test_an_unknown_client_borrows_only_if_no_known_client_waits_within_its_share():
    eviction = Eviction(50, **{OTHERS: 5})
    assert begin(eviction, waiting("who"))[1].clients() == ["who"]
    assert begin(eviction, waiting("who", "x"))[1].clients() == ["x"]


def test_prompts_of_running_requests_without_memory_count_for_their_clients():
    running = Request(9, "x", 9, 0, (), 25, 1)
    view = waiting("x", "y")
    assert begin(Eviction(40, x=1), view)[1].clients() == ["x", "y"]
    assert begin(Eviction(40, x=1), view, [(running, 25)])[1].clients() == ["y"]


def test_a_pass_looks_a_request_up_once_until_the_memory_changes():
    eviction = Eviction(40)
    memory, shown = begin(eviction, waiting("x", "y"))
    assert len(shown.clients()) == len(shown.clients()) == len(eviction.asked)
    memory.changed()
    shown.clients()
    assert len(eviction.asked) == 4
    eviction.splits += 1
    shown.clients()
    assert len(eviction.asked) == 6


def test_each_pass_asks_how_many_tokens_a_client_holds():
    eviction, view = Eviction(40, x=1), waiting("x", "y")
    memory, shown = begin(eviction, view)
    assert shown.clients() == ["x", "y"]
    # A request of 10 tokens would exceed the share of 30 tokens.
    eviction.mirror.residency = Residency(x=25)
    assert memory.begin(view, ()).clients() == ["y"]


SHARES, MAX_MIN = {"memory.share": True}, Evicting("max-min", ("x", "y"))


@pytest.mark.parametrize("policy", [None, "lru", "lfu"])
def test_shares_without_a_policy_that_has_them_are_refused(policy):
    evicting = Evicting(policy, ("x", "y"))
    with pytest.raises(UsageError, match="needs an eviction policy with shares: set"):
        plugin_config("vtc", SHARES, None, evicting)
    told = plugin_config("vtc", {}, None, evicting).environment()
    with pytest.raises(UsageError, match="needs an eviction policy with shares: set"):
        config_from(told | {SETTINGS: '{"memory.share": true}'})


def test_classes_of_priority_are_refused_with_shares_and_accepted_without():
    arguments = SimpleNamespace(enable_priority_scheduling=True)
    hooks = Hooks(plugin_config("fcfs", SHARES, None, MAX_MIN), "0.5.23")
    with pytest.raises(UsageError, match="--enable-priority-scheduling is not supported with mem"):
        hooks._check(arguments)
    Hooks(plugin_config("fcfs", {}, None, MAX_MIN), "0.5.23")._check(arguments)
