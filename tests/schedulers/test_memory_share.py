"""Test memory as a fair share: admission by hand, on random pools, and in whole runs."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.errors import UsageError
from fairbench.report.result_lines import memory_lines
from fairbench.schedulers.base import Setup
from fairbench.schedulers.eviction.registry import build_eviction
from fairbench.schedulers.memory_share import MemoryShare, PromptTokens
from fairbench.schedulers.registry import build_local
from fairbench.schedulers.views import ListView
from fairbench.sim.run import simulate
from fairbench_load.plugin_config import Evicting, config_from, plugin_config
from tests.invariants import run_checked
from tests.sim.sim_helpers import small_spec
from tests.strategies import examples

POOL = 90  # tokens; three clients have shares of 30 tokens each
CLIENTS = ("x", "y", "z")
SHARE = POOL / len(CLIENTS)


@dataclass
class Memory:
    """The tokens of each client: pinned by running requests, and cached."""

    pinned: dict[str, int] = field(default_factory=dict)
    cached: dict[str, int] = field(default_factory=dict)
    demands: dict[Request, PromptTokens] = field(default_factory=dict)
    clients = CLIENTS

    @property
    def free(self):
        return POOL - sum(self.pinned.values()) - sum(self.cached.values())

    def held(self, client):
        return self.pinned.get(client, 0) + self.cached.get(client, 0)

    def unpinned(self, client):
        return self.cached.get(client, 0)

    def demand(self, request):
        return self.demands[request]


class Worker:
    """A worker with this memory, and a waiting queue in order of arrival."""

    def __init__(self, pinned, cached, waiting):
        """``waiting`` lists, for each request, the client and the new and pinned tokens."""
        self.memory = Memory(dict(pinned), dict(cached))
        policy = build_eviction("max-min", {})
        policy.prepare(Setup(CLIENTS, dict.fromkeys(CLIENTS, 1.0), POOL))
        self.share = MemoryShare(policy.entitled, self.memory)
        self.queue = []
        for number, (client, new, pins) in enumerate(waiting):
            request = Request(number, client, number, 0, (Segment(f"{number}", pins),), pins, 1)
            self.memory.demands[request] = PromptTokens(new, pins)
            self.queue.append(request)
        self.view = ListView(self.queue, lambda request: 0, lambda request: request.prompt)

    def begin(self, pending=()):
        return self.share.begin(self.view, dict(pending))

    def admitted(self, scheduler="fcfs", pending=()):
        """Return the numbers of the requests that a pass admits. Memory is allocated after it."""
        local = build_local(scheduler, {})
        local.prepare(Setup(CLIENTS, pool_tokens=POOL))
        for request in self.queue:
            local.on_arrival(request, self.view, 0.0)
        view, found = self.begin(pending), []
        if not view.clients():
            return found
        selection = local.select(view, 0.0)
        request = next(selection, None)
        while request is not None:
            self.view.leave(request)
            local.on_admitted(request, request.input_tokens, False)
            found.append(request.request_id)
            try:
                request = selection.send(True)
            except StopIteration:
                break
        return found


def test_requests_within_the_share_are_admitted_until_the_share_is_pinned():
    worker = Worker({"x": 10}, {}, [("x", 10, 10), ("x", 10, 10), ("y", 5, 5), ("x", 10, 10)])
    # x reaches its 30 tokens. Its last request borrows, because y no longer waits.
    assert worker.admitted() == [0, 1, 2, 3]
    worker = Worker({"x": 30}, {}, [("x", 10, 10), ("y", 5, 5), ("y", 5, 5)])
    assert worker.admitted() == [1, 2]


def test_a_client_above_its_share_waits_while_another_below_its_share_waits():
    worker = Worker({"x": 30}, {}, [("x", 10, 10), ("y", 5, 5)])
    view = worker.begin()
    assert view.clients() == ["y"]
    assert [request.client for request in view.queue_order()] == ["y"]
    worker.view.leave(worker.queue[1])
    assert worker.begin().clients() == ["x"]  # memory is lent when no other client wants it


def test_cached_tokens_of_a_client_within_its_share_are_not_lent_and_those_above_are():
    lacks = {"x": 30, "z": 25}
    assert Worker(lacks, {"y": 30}, [("x", 10, 10)]).admitted() == []
    assert Worker(lacks, {"y": 30}, [("x", 5, 5)]).admitted() == [0]  # five tokens are free
    assert Worker({"x": 30}, {"y": 55}, [("x", 10, 10)]).admitted() == [0]  # y is above its share
    assert Worker({"x": 30}, {"x": 25, "y": 30}, [("x", 20, 40)]).admitted() == []
    assert Worker({"x": 30}, {"x": 25, "y": 30}, [("x", 10, 30)]).admitted() == [0]
    own = {
        "x": 25,
        "z": 25,
    }  # the borrower's own cached tokens within its share are not lent either
    assert Worker(own, {"x": 5, "y": 30}, [("x", 10, 10)]).admitted() == []
    assert Worker(own, {"x": 5, "y": 30}, [("x", 5, 10)]).admitted() == [0]


def test_a_client_that_runs_nothing_may_run_a_request_larger_than_its_share():
    worker = Worker({"y": 20}, {"z": 10}, [("x", 50, 50), ("x", 1, 1), ("y", 10, 10)])
    assert worker.admitted() == [0, 2]


def test_prompts_in_progress_and_admissions_of_the_same_pass_count():
    waiting = [("x", 20, 20), ("y", 5, 5), ("y", 5, 5), ("y", 5, 5)]
    assert Worker({"x": 10}, {}, waiting).admitted()[0] == 0
    assert Worker({"x": 5}, {}, waiting).admitted(pending={"x": 10})[0] == 1
    two = [("x", 20, 20), ("x", 20, 20), ("y", 30, 30), ("y", 5, 5)]
    assert Worker({}, {}, two).admitted()[:2] == [0, 2]


@pytest.mark.parametrize("scheduler", ["fcfs", "lpm", "vtc", "dlpm", "rpm", "edf"])
def test_the_share_composes_with_any_local_scheduler(scheduler):
    waiting = [("x", 10, 10), ("x", 10, 10), ("y", 10, 10), ("z", 10, 10)]
    worker = Worker({"x": 30}, {"y": 10, "z": 10}, waiting)
    admitted = worker.admitted(scheduler)
    assert set(admitted[:2]) == {2, 3}  # y and z are below their share, and x waits for both


tokens = st.integers(0, 30)
waits = st.lists(
    st.tuples(st.sampled_from(CLIENTS), st.integers(1, 40), st.integers(0, 30)), max_size=6
)


@given(pinned=st.tuples(tokens, tokens, tokens), cached=st.tuples(tokens, tokens, tokens), of=waits)
@examples(300)
def test_no_request_that_fits_waits_while_nobody_below_its_share_wants_memory(pinned, cached, of):
    """The account is work conserving, lends memory, and protects clients up to their share."""
    cached = [min(one, 90 - sum(pinned)) // 3 for one in cached]
    waiting = [(client, new, new + more) for client, new, more in of]
    worker = Worker(
        dict(zip(CLIENTS, pinned, strict=True)), dict(zip(CLIENTS, cached, strict=True)), waiting
    )
    memory, view = worker.memory, worker.begin()
    oldest = {}
    for request in worker.queue:
        oldest.setdefault(request.client, request)

    def within(request):
        pins = memory.pinned[request.client]
        return pins == 0 or pins + memory.demands[request].pins <= SHARE

    shown = view.clients()
    for client, request in oldest.items():
        new, pins = memory.demands[request]
        prefix = {client: pins - new}
        above = (
            max(0, min(memory.cached[one] - prefix.get(one, 0), memory.held(one) - SHARE))
            for one in CLIENTS
        )
        fits = new <= memory.free + sum(above)
        wanted = any(within(one) for other, one in oldest.items() if other != client)
        assert (client in shown) == (within(request) or (fits and not wanted))
    if shown == [] and oldest:
        assert all(memory.demands[one].new > memory.free for one in oldest.values())


# in whole runs


def shared_spec(scheduler, workload, **more):
    flags = {"eviction": "max-min", "scenario": "s1"} | more.pop("flags", {})
    return small_spec(scheduler, workload, flags=flags, memory__share=True, **more)


@pytest.mark.parametrize("scheduler", ["vtc", "dlpm"])
@pytest.mark.parametrize("workload", ["judge", "long-qa"])
def test_whole_runs_keep_every_invariant(scheduler, workload):
    summary = run_checked(shared_spec(scheduler, workload, pool=30_000)).summary
    assert summary["pinned_beyond_share"]["allocations"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_request_ends_although_documents_are_larger_than_a_share(engine):
    size = {"pool": 40_000} if engine == "sglang" else {"vllm__num_gpu_blocks_override": 2_500}
    spec = shared_spec("vtc", "long-qa", flags={"engine": engine}, **size)
    summary = simulate(spec).summary
    audit = summary["pinned_beyond_share"]
    assert summary["completed"]
    assert not summary["unfinished"] + summary["refused"]
    assert 0 < audit["beyond"] <= audit["allocations"]  # a document is larger than a share


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, "needs an eviction policy with shares: set eviction to 'quota' or"),
        ({"eviction": "lfu"}, "needs an eviction policy with shares"),
        (
            {"backend": "emulator"},
            "memory.share = True: only simulated runs and servers of SGLang and vLLM support",
        ),
        (
            {"backend": {"kind": "sglang"}, "model": "m", "eviction": "lfu"},
            "memory.share = True: needs an eviction policy with shares",
        ),
    ],
)
def test_shares_without_an_eviction_policy_that_has_them_are_refused(flags, expected):
    with pytest.raises(UsageError, match=expected):
        small_spec("vtc", "chat", flags=flags, memory__share=True)


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_servers_of_engines_get_the_shares_from_the_settings_of_a_run(kind):
    flags = {"backend": {"kind": kind}, "model": "m", "eviction": "max-min"}
    spec = small_spec("vtc", "chat", flags=flags, memory__share=True)
    config = plugin_config("vtc", spec.settings, None, Evicting("max-min", CLIENTS))
    assert config.shares_memory
    assert config_from(config.environment()) == config
    assert not plugin_config("vtc", {}, None, Evicting("max-min", CLIENTS)).shares_memory


def test_no_bound_is_printed_where_memory_decides_on_admission():
    notes = simulate(shared_spec("vtc", "chat")).summary["notes"]
    assert any("memory.share queues requests" in reason for reason in notes.values())


def test_the_broken_assumption_is_printed_and_a_kept_one_too():
    summary = simulate(shared_spec("vtc", "chat")).summary
    for audit, expected in (
        (
            {"allocations": 7, "beyond": 2, "lost_tokens": 50.0},
            "ASSUMPTION BROKEN: at 2 of 7 alloc",
        ),
        ({"allocations": 7, "beyond": 0, "lost_tokens": 0.0}, "no client below its share lost a"),
    ):
        lines = memory_lines(summary | {"pinned_beyond_share": audit})
        assert expected in [*lines][-1][1]


def test_a_run_without_shares_has_the_setting_nowhere():
    assert not [key for key in small_spec("vtc", "chat").settings if key.startswith("memory.")]
