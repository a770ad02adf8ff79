"""Test the plugin with features of SGLang, on SGLang's own classes and random streams.

Each feature is compared either with SGLang alone, iteration by iteration, or with the simulator.
"""

import random
from collections import Counter
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from unittest import mock
from zlib import crc32

import pytest

from fairbench.errors import UsageError
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.registry import build_local, locals_by_name
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.release import check_server
from fairbench_load.by_class import ByClass
from fairbench_load.plugin_config import plugin_config
from tests.sim.sglang_seam import (
    DRAFTS,
    HICACHE,
    HOST_CACHE,
    VERSION,
    Absent,
    OverlapEngine,
    PipelinedEngine,
    SteppedEngine,
    sglang,
    why_absent,
)
from tests.sim.sglang_streams import (
    Tokens,
    ask_ours,
    ask_ours_under,
    ask_sglang,
    assert_alike,
    random_stream,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

SEEDS = range(4)
CASES = {
    "fcfs": {},
    "lpm": {},
    "vtc": {},
    "dlpm": {"dlpm.quantum": 30},
    "dlpm-skip": {"dlpm.quantum": 30, "dlpm.no_room": "skip"},
}


def hooks_of(case, **server):
    """Return the plugin's hooks for a case in a server with these arguments."""
    settings = CASES[case]
    hooks = Hooks(plugin_config(next(iter(settings), case).split(".")[0], settings), VERSION)
    hooks.obey(SimpleNamespace(**server))
    return hooks


def with_facts(seed, **choices):
    """Return a random stream whose requests have random facts."""
    stream, draw = random_stream(seed), random.Random(f"facts {seed}")
    for arrival in stream.arrivals:
        drawn = {name: draw.choice(values) for name, values in choices.items()}
        arrival.facts = {name: value for name, value in drawn.items() if value is not None}
    return stream


class PatientEngine(SteppedEngine):
    """An SGLang scheduler that may have nothing to run while something loads."""

    def iterate(self):
        for _ in range(50):
            if (iteration := super().iterate()) is not None:
                return iteration
        return None


NGRAM = {
    "speculative_algorithm": "NGRAM",
    "speculative_num_draft_tokens": DRAFTS,
    "page_size": 1,
}
HICACHE_SERVER = {"tree": HICACHE, "settings": HOST_CACHE}
PATIENT = {"kind": PatientEngine}


def assert_served(stream, theirs, hooks):
    """Assert that every request finished, and that its client paid for its outputs once."""
    finished = sorted(number for one in theirs.values() for number in one.finished)
    assert finished == list(range(len(stream.arrivals)))
    outputs = Counter()
    for arrival in stream.arrivals:
        outputs[arrival.client] += arrival.output
    assert {client: of["output_tokens"] for client, of in hooks.home.ledger.items()} == outputs
    assert hooks.home.idle


# adapters


def adapters(slots):
    """Return a preparation of a scheduler whose batches have at most ``slots`` adapters."""

    def prepare(scheduler):
        fits = SimpleNamespace(validate_lora_batch=lambda used: len(used - {None}) <= slots)
        scheduler.enable_lora, scheduler.lora_drainer = True, None
        scheduler.enable_lora_overlap_loading = False
        scheduler.tp_worker = Absent(
            model_runner=Absent(lora_manager=fits, prefill_aware_swa=False)
        )

    return prepare


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_is_a_part_of_the_prefix_and_not_of_the_client(case):
    settings, seen = CASES[case], Counter()
    for seed in SEEDS:
        stream = with_facts(seed, lora_id=["a", "b", None])
        hooks = hooks_of(case)
        theirs = ask_sglang("fcfs", stream, hooks, adapters(8))
        name = hooks.home.config.local
        assert_alike(theirs, ask_ours(name, settings, stream), stream)
        assert hooks.home.idle
        assert {client for client, _ in hooks.home.ledger.items()} <= {"x", "y"}
        seen["cached"] += sum(c > 0 for one in theirs.values() for _, c, _ in one.prefills)
    assert seen["cached"] > 10


@pytest.mark.parametrize("slots", [1, 2])
def test_a_request_waits_while_no_slot_is_free_for_its_adapter(slots):
    for case in ("fcfs", "vtc", "dlpm-skip"):
        for seed in SEEDS:
            stream = with_facts(seed, lora_id=["a", "b", "c", None])
            hooks = hooks_of(case)
            theirs = ask_sglang("fcfs", stream, hooks, adapters(slots))
            assert sum(len(one.finished) for one in theirs.values()) == len(stream.arrivals)
            assert hooks.home.idle


class Manager:
    """A stand-in for SGLang's manager of adapters. ``slots`` adapters fit on the GPU."""

    device = "cpu"

    def __init__(self, slots):
        self.slots, self.pending_lora_load_events = slots, {}
        self.memory_pool = SimpleNamespace(uid_to_buffer_id={})

    def validate_lora_batch(self, used):
        return len(used - {None}) <= self.slots

    def fetch_new_loras(self, new, kept):
        here = self.memory_pool.uid_to_buffer_id
        for name in [one for one in here if one not in kept]:
            del here[name]
        here |= dict.fromkeys(new, 0)


class Event(Absent):
    """A stand-in for a GPU's event, which happens at some time."""

    draw = random.Random("events")

    def query(self):
        self.happened = self.__dict__.get("happened") or self.draw.random() < 0.4
        return self.happened


def loading(slots):
    """Return a preparation of a scheduler that loads adapters while others compute."""

    def prepare(scheduler):
        adapters(slots)(scheduler)
        module, torch = import_module("sglang.srt.lora.lora_overlap_loader"), sglang().torch
        # 0.5.17 asks for the current stream of a GPU
        module.torch = SimpleNamespace(get_device_module=torch.get_device_module, cuda=Absent())
        loader = module.LoRAOverlapLoader(Manager(slots))
        loader.device_module = SimpleNamespace(Event=Event, current_stream=Absent)
        scheduler.lora_overlap_loader, scheduler.enable_lora_overlap_loading = loader, True

    return prepare


def draining(slots):
    """Return a preparation of a scheduler that drains adapters for others which wait long."""

    def prepare(scheduler):
        adapters(slots)(scheduler)
        drainer = import_module("sglang.srt.lora.lora_drainer").LoRADrainer
        scheduler.lora_drainer = drainer(slots, 1e-6)

    return prepare


@pytest.mark.parametrize("prepare", [loading, draining])
@pytest.mark.parametrize("slots", [1, 2])
def test_a_request_waits_while_its_adapter_loads_or_drains(prepare, slots):
    for case in ("fcfs", "vtc", "dlpm-skip"):
        for seed in range(2):
            stream = with_facts(seed, lora_id=["a", "b", "c", None])
            hooks = hooks_of(case)
            theirs = ask_sglang("fcfs", stream, hooks, prepare(slots), kind=PatientEngine)
            assert_served(stream, theirs, hooks)


# priorities


def priorities(*, low_first=False, preempts=True, threshold=10):
    """Return a preparation of a scheduler with ``--enable-priority-scheduling``."""

    def prepare(scheduler):
        scheduler.enable_priority_scheduling = scheduler.policy.enable_priority_scheduling = True
        scheduler.enable_priority_preemption = preempts
        scheduler.schedule_low_priority_values_first = low_first
        scheduler.policy.priority_sign = 1 if low_first else -1
        scheduler.priority_scheduling_preemption_threshold = threshold

    return prepare


def server_of(*, low_first=False, preempts=True):
    return {
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": low_first,
        "disable_priority_preemption": not preempts,
    }


@pytest.mark.parametrize("low_first", [False, True])
@pytest.mark.parametrize("preempts", [False, True])
def test_classes_are_served_in_sglangs_own_order(low_first, preempts):
    """The order holds with SGLang's preemption, too, and for requests that name no priority."""
    for seed in range(12):
        stream = with_facts(seed, priority=[0, 5, 20, None])
        prepare = priorities(low_first=low_first, preempts=preempts)
        settings = {"schedule_low_priority_values_first": low_first}
        stock = ask_sglang("fcfs", stream, None, prepare, settings=settings)
        hooks = hooks_of("fcfs", **server_of(low_first=low_first, preempts=preempts))
        assert ask_sglang("fcfs", stream, hooks, prepare, settings=settings) == stock, seed
        assert hooks.home.idle


@pytest.mark.parametrize("case", CASES)
def test_clients_share_fairly_inside_a_class_as_simulated(case):
    settings = CASES[case]

    class Classes(ByClass):
        def __init__(self, params):
            super().__init__(lambda: build_local(hooks.home.config.local, settings))

    Classes.cache_aware = hooks_of(case).order.cache_aware
    for seed in SEEDS:
        stream = with_facts(seed, priority=[0, 5, 20])
        stream.limit = 0  # SGLang refreshes waiting prefixes in the order of classes
        hooks = hooks_of(case, **server_of(preempts=False))
        theirs = ask_sglang("fcfs", stream, hooks, priorities(preempts=False))
        assert_alike(theirs, ask_ours_under(Classes, FCFS.Params(), stream), stream)
        assert hooks.home.idle


# speculative decoding


def speculative(scheduler):
    """Prepare a scheduler for speculative decoding by n-grams."""
    spec = sglang().spec_info.SpeculativeAlgorithm
    scheduler.spec_algorithm = spec.from_string("NGRAM")
    scheduler.batch_result_processor = replace(
        scheduler.batch_result_processor, model_worker=Absent()
    )


@pytest.mark.parametrize("case", ["fcfs", "lpm", "vtc", "dlpm-skip"])
def test_accepted_tokens_are_charged_and_drafts_are_not(case):
    for seed in SEEDS:
        stream = random_stream(seed)
        hooks = hooks_of(case)
        theirs = ask_sglang("fcfs", stream, hooks, speculative, settings=NGRAM)
        if case == "fcfs":
            assert theirs == ask_sglang("fcfs", stream, None, speculative, settings=NGRAM)
        assert_served(stream, theirs, hooks)


@pytest.mark.parametrize("case", ["edf", "autellix"])
def test_a_preempted_request_keeps_its_accepted_tokens(case):
    """The schedulers preempt running requests during speculative decoding."""
    preempted = 0
    for seed in SEEDS:
        stream, draw = random_stream(seed), random.Random(seed)
        for arrival in stream.arrivals:
            arrival.first_ms = draw.choice([None, 5, 100])
        hooks = Hooks(plugin_config(case, {}), VERSION)
        theirs = ask_sglang("fcfs", stream, hooks, speculative, settings=NGRAM)
        assert_served(stream, theirs, hooks)
        preempted += sum(bool(one.retracted and one.prefills) for one in theirs.values())
    assert preempted > 0 or case != "edf"


# memory: which request is preempted when it runs out


def retractions(name, stream, kind):
    """Return what SGLang did under ``preempt=fair``, and how far clients were ahead each time."""
    hooks, seen = hooks_of(name), []
    order = hooks.home.retraction_order

    def ordered(running, now_s):
        found = order(running, now_s)
        account = hooks.home.scheduler.account
        seen.append([(req.routing_key, account.ahead(req.routing_key)) for req in found])
        return found

    hooks.home.retraction_order = ordered
    return ask_sglang("fcfs", stream, hooks, kind=kind), hooks, seen


@pytest.mark.parametrize("kind", [SteppedEngine, OverlapEngine])
@pytest.mark.parametrize("name", ["vtc", "dlpm"])
def test_nobody_below_their_share_is_preempted_for_somebody_above_it(name, kind):
    """INV-22: memory comes from the running client that is furthest ahead, then from the next."""
    seen = Counter()
    with mock.patch.dict(CASES, {name: {f"{name}.preempt": "fair"}}):
        for seed in range(20):
            stream = random_stream(seed)
            theirs, hooks, orders = retractions(name, stream, kind)
            assert_served(stream, theirs, hooks)
            for order in orders:
                ahead = [one for _, one in order]
                assert ahead == sorted(ahead, reverse=True)
                seen["several clients"] += len({client for client, _ in order}) > 1
            seen["retracted"] += sum(len(one.retracted) for one in theirs.values())
            if kind is SteppedEngine:
                settings = {f"{name}.preempt": "fair"}
                assert_alike(theirs, ask_ours(name, settings, stream), stream)
    assert min(seen["several clients"], seen["retracted"]) > 4


# host memory


@pytest.mark.parametrize("policy", ["fcfs", "lpm"])
def test_the_plugin_decides_as_sglang_does_with_a_host_cache(policy):
    for seed in range(8):
        stream, hooks = random_stream(seed), hooks_of(policy)
        stream.limit = 10_000
        stock = ask_sglang(policy, stream, **HICACHE_SERVER)
        assert ask_sglang("fcfs", stream, hooks, **HICACHE_SERVER) == stock, seed
        assert hooks.home.idle


@pytest.mark.parametrize("case", CASES)
def test_tokens_from_the_hosts_cache_count_as_cached(case):
    """Prompts are charged for their computed tokens, even if SGLang declines a short load."""
    loaded = []

    def listen(scheduler):
        load = scheduler.tree_cache.init_load_back

        def heard(params):
            found = load(params)
            loaded.append(found[0] if found else 0)
            return found

        scheduler.tree_cache.init_load_back = heard

    for seed in range(12):
        stream, hooks = random_stream(seed), hooks_of(case)
        theirs = ask_sglang("fcfs", stream, hooks, listen, **HICACHE_SERVER)
        assert_served(stream, theirs, hooks)
        total = hooks.home.ledger.total
        computed = sum(new for one in theirs.values() for *_, new in one.prefills)
        assert total("extend_tokens") + total("recomputed_tokens") == computed
    assert sum(one > 0 for one in loaded) > 10


def storing(scheduler):
    """Prepare a scheduler whose requests' prefixes come from storage, each after some passes."""
    tree, asked = scheduler.tree_cache, Counter()
    scheduler.enable_hicache_storage = True
    scheduler._prefetch_kvcache = scheduler._prefetch_after_device_hit_loss = lambda req: False
    tree.pop_prefetch_loaded_span = lambda handle: (0, None)

    def progressed(handle):
        asked[handle] += 1
        return asked[handle] > crc32(str(handle).encode()) % 4

    tree.check_prefetch_progress = progressed


@pytest.mark.parametrize("case", CASES)
def test_a_request_waits_while_its_prefix_comes_from_storage(case):
    for seed in SEEDS:
        stream, hooks = random_stream(seed), hooks_of(case)
        theirs = ask_sglang("fcfs", stream, hooks, storing, **HICACHE_SERVER | PATIENT)
        assert_served(stream, theirs, hooks)


# Tensor parallelism: each rank decides by itself.


def on_a_rank(name, seed, stream):
    """Return the decisions of a rank with its own clock and random numbers, or None if refused.

    The clock never runs backwards.
    """
    draw, now_s = random.Random(f"rank {seed}"), [0.0]

    def clock():
        now_s[0] += draw.choice([0, 1e-6, 0.01, 3])
        return now_s[0]

    random.seed(seed)
    with mock.patch.object(Hooks, "_now_s", staticmethod(clock)):
        hooks = Hooks(plugin_config(name, {}), VERSION)
        ranks = SimpleNamespace(tp_size=2)
        try:
            check_server(ranks, hooks.home.scheduler, measures=hooks.home.costs is not None)
        except UsageError:
            return None
        return ask_sglang("fcfs", stream, hooks)


def test_ranks_decide_alike_or_are_refused():
    refused = set()
    for name in locals_by_name():
        for seed in range(3):
            stream = random_stream(seed)
            first = on_a_rank(name, 1, stream)
            assert first == on_a_rank(name, 2, stream), name
            if first is None:
                refused.add(name)
    assert {"rpm", "edf", "dlpm-hold", "justitia", "equinox"} <= refused
    assert not refused & {"fcfs", "lpm", "vtc", "dlpm", "lcf", "priority"}


# Pipeline parallelism: a stage has several running batches.


@pytest.mark.parametrize("case", CASES)
def test_a_stage_of_a_pipeline_admits_as_sglang_does(case):
    for seed in range(8):
        stream = random_stream(seed)
        stream.limit, stream.pool = (
            10_000,
            max(1500, stream.pool),
        )  # SGLang aborts what fits no batch
        hooks = hooks_of(case)
        theirs = ask_sglang("fcfs", stream, hooks, kind=PipelinedEngine)
        if case in ("fcfs", "lpm"):
            assert theirs == ask_sglang(case, stream, kind=PipelinedEngine), seed
        finished = [number for one in theirs.values() for number in one.finished]
        assert sorted(finished) == list(range(len(stream.arrivals)))
        assert hooks.home.idle


# Structured output: a request is queued once its grammar is ready.


class Grammars:
    """A stand-in for SGLang's manager of grammars. Every third request waits for a grammar."""

    def __init__(self, scheduler):
        self._waiting, self._add = [], scheduler._add_request_to_queue

    def add(self, req, is_retracted=False):
        if int(req.rid) % 3 or is_retracted or req.output_ids:
            self._add(req, is_retracted)
        else:
            self._waiting.append([5, req])

    def has_waiting_grammars(self):
        return bool(self._waiting)

    def get_ready_grammar_requests(self):
        for one in self._waiting:
            one[0] -= 1
        ready = [req for left, req in self._waiting if left <= 0]
        self._waiting = [one for one in self._waiting if one[0] > 0]
        for req in ready:
            self._add(req)
        return []


def structured(scheduler):
    """Prepare a scheduler in which some requests wait for a grammar."""
    scheduler.grammar_manager = Grammars(scheduler)
    scheduler._add_request_to_queue = scheduler.grammar_manager.add


@pytest.mark.parametrize("case", ["fcfs", "lpm", "vtc"])
def test_a_request_that_waits_for_its_grammar_is_served_as_in_sglang(case):
    for seed in SEEDS:
        stream = random_stream(seed)
        stream.limit = 10_000
        stream.arrivals.append(replace(stream.arrivals[-1], step=stream.arrivals[-1].step + 1000))
        hooks = hooks_of(case)
        theirs = ask_sglang("fcfs", stream, hooks, structured)
        if case != "vtc":
            assert theirs == ask_sglang(case, stream, None, structured)
        assert hooks.home.ledger.total("arrivals") == hooks.home.ledger.total("finished")
        assert hooks.home.idle


# Images: SGLang names their tokens by numbers of up to 63 bits.


@pytest.mark.parametrize("case", CASES)
def test_the_tokens_of_an_image_are_charged_as_sglang_counts_them(case):
    wide = 1 << 61
    for seed in SEEDS:
        stream = random_stream(seed)
        plain = ask_sglang("fcfs", stream, hooks_of(case))
        hooks = hooks_of(case)
        with mock.patch.object(Tokens, "first", wide):
            theirs = ask_sglang("fcfs", stream, hooks)
        without_ids = [
            {step: (one.prefills, one.retracted, one.finished) for step, one in done.items()}
            for done in (theirs, plain)
        ]
        assert without_ids[0] == without_ids[1]
        computed = sum(
            hooks.home.ledger.total(what) for what in ("extend_tokens", "recomputed_tokens")
        )
        assert computed == sum(new for one in theirs.values() for *_, new in one.prefills)


# embeddings


def test_embeddings_are_served_in_order_of_arrival_whatever_the_scheduler():
    for case in CASES:
        hooks = hooks_of(case, is_embedding=True)
        for seed in range(4):
            stream = random_stream(seed)
            assert ask_sglang("fcfs", stream, hooks) == ask_sglang("fcfs", stream)
        assert hooks.report()["local"] == "fcfs"
