"""Test the plugin with features of vLLM, on vLLM's own classes and random streams.

Each feature is compared either with vLLM alone, step by step, or with the simulator.
"""

import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fairbench.core import prompt_tokens
from fairbench.hardware.engine_params import VLLMLimits
from fairbench.schedulers.registry import build_local
from fairbench_engines.scheduler_host import program_of
from fairbench_engines.vllm.views import BlockQueue
from fairbench_load.by_class import ByClass
from fairbench_load.plugin_config import Evicting
from tests.sim.vllm_eviction_streams import POLICIES
from tests.sim.vllm_eviction_streams import stream_of as evicting_stream
from tests.sim.vllm_plugin_streams import SETTINGS, ask_ours, ask_plugin, fair_engine
from tests.sim.vllm_seam import vllm, why_absent
from tests.sim.vllm_streams import (
    CLIENTS,
    Priority,
    ask_vllm,
    assert_alike,
    client_of,
    random_stream,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

SEEDS = range(8)  # every second stream is asynchronous
SCHEDULERS = ("fcfs", "lpm", "vtc", "dlpm")
LIMITS = VLLMLimits(pool_tokens=10_000, max_num_batched_tokens=512, max_num_seqs=4)


def stream_of(seed, asynchronous=None, **choices):
    """Return a random stream whose requests have random facts."""
    stream, draw = random_stream(seed, asynchronous), random.Random(f"facts {seed}")
    stream.policy = "fcfs"
    for number in range(len(stream.arrivals)):
        drawn = {name: draw.choice(values) for name, values in choices.items()}
        stream.facts[number] = {name: value for name, value in drawn.items() if value is not None}
    return stream


def served(steps):
    return sorted(number for step in steps.values() for number in step.finished)


def everything(stream):
    return list(range(len(stream.arrivals)))


def charged_by_client(engine):
    return {client: of["output_tokens"] for client, of in engine.scheduler.home.ledger.items()}


def outputs_by_client(stream):
    outputs = Counter()
    for number, arrival in enumerate(stream.arrivals):
        outputs[client_of(number)] += arrival.output
    return outputs


class Kept:
    """A reference to the engine of a run, to look at its ledger afterwards."""

    def __init__(self, prepare=lambda engine: None):
        self.engine, self._prepare = None, prepare

    def __call__(self, engine, tokens=None):
        self.engine = engine
        self._prepare(engine)


def same_as_vllm(stream, configured=(), prepare=lambda engine: None, **named):
    """Assert that the plugin's FCFS decides as vLLM alone. Return the plugin's engine."""
    kept = Kept(prepare)
    stock = ask_vllm(stream, configured, prepare)
    assert ask_plugin(stream, "fcfs", {}, watch=kept, configured=configured, **named) == stock
    assert served(stock) == everything(stream)
    return kept.engine


# adapters


def adapter(name):
    from vllm.lora.request import LoRARequest

    return LoRARequest(name, 1 + "abc".index(name), f"/adapters/{name}")


def with_adapters(seed, names, asynchronous=None):
    vllm()
    stream = stream_of(seed, asynchronous, lora_request=[*map(adapter, names), None])
    for number, facts in stream.facts.items():
        if "lora_request" in facts:
            stream.apart[number] = facts["lora_request"].lora_name
    return stream


def slots(number):
    return {"lora_config": SimpleNamespace(max_loras=number)}


@pytest.mark.parametrize("local", SCHEDULERS)
def test_an_adapter_is_a_part_of_the_prefix_and_not_of_the_client(local):
    settings, hits = SETTINGS.get(local, {}), 0
    for seed in SEEDS:
        stream, kept = with_adapters(seed, "ab"), Kept()
        theirs = ask_plugin(stream, local, settings, watch=kept, configured=slots(2))
        hits += sum(map(bool, (hit for one in theirs.values() for hit in one.hits.values())))
        assert_alike(theirs, ask_ours(stream, local, settings), stream)
        assert charged_by_client(kept.engine) == outputs_by_client(stream)
    assert hits > 10


def test_with_enough_slots_adapters_are_served_as_by_vllm():
    for seed in SEEDS:
        same_as_vllm(with_adapters(seed, "abc"), slots(3))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("local", ["fcfs", "vtc", "dlpm"])
def test_an_adapter_without_a_slot_counts_as_no_room(local, number):
    """A request never passes it unless its scheduler says so: FCFS keeps the order of arrival."""
    for seed in SEEDS:
        stream, most = with_adapters(seed, "abc"), []

        def watched(engine, _, most=most):
            schedule = engine.scheduler.schedule

            def scheduled():
                plan = schedule()
                names = {one.request_id: one for one in engine.scheduler.running}
                used = {names[name].lora_request for name in plan.num_scheduled_tokens}
                most.append(len(used - {None}))
                return plan

            engine.scheduler.schedule = scheduled

        steps = ask_plugin(
            stream, local, SETTINGS.get(local, {}), watch=watched, configured=slots(number)
        )
        assert served(steps) == everything(stream)
        assert max(most) <= number
        lost = any(step.preempted for step in steps.values())
        order = [one for _, step in sorted(steps.items()) for one in step.hits]
        assert local != "fcfs" or lost or order == sorted(order)


# speculative decoding


def drafting(most):
    """Return the configuration of speculative decoding with up to ``most`` drafts."""
    spec = SimpleNamespace(
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        disable_eagle_block_drop=False,
        use_eagle=lambda: False,
        use_eagle_block_drop=lambda: False,
        needs_eagle_block_drop=lambda: False,
    )
    return {"speculative_config": spec, "num_speculative_tokens": most}


def with_room_for(stream, drafts):
    """Let a step compute a request with all its drafts, as vLLM demands."""
    tokens = max(1 + drafts, stream.limits.max_num_batched_tokens)
    stream.limits = replace(stream.limits, max_num_batched_tokens=tokens)
    return stream


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_drafts_change_no_decision_of_fcfs(drafts):
    for seed in range(12):
        stream = with_room_for(stream_of(seed), drafts)
        engine = same_as_vllm(stream, drafting(drafts))
        assert charged_by_client(engine) == outputs_by_client(stream)


@pytest.mark.parametrize("local", [*SCHEDULERS, "edf"])
def test_accepted_tokens_are_charged_and_drafts_are_not(local):
    for seed in SEEDS:
        stream, kept = with_room_for(stream_of(seed), 3), Kept()
        settings = SETTINGS.get(local, {})
        steps = ask_plugin(stream, local, settings, watch=kept, configured=drafting(3))
        assert served(steps) == everything(stream)
        assert charged_by_client(kept.engine) == outputs_by_client(stream)


def test_a_step_with_drafts_is_a_step_of_decoding():
    """Costs are fitted to steps of one request, whose context is its computed tokens."""
    engine = fair_engine(
        LIMITS, "vtc", {"vtc.charge": "gpu-time"}, lambda: 0.0, configured=drafting(3)
    )
    home, seen = engine.scheduler.home, []
    home.costs.observe_decode = lambda *observed: seen.append(observed[:2])
    home.costs.observe_prefill = lambda chunks, _: seen.append(chunks)
    engine.scheduler.add_request(engine.request(0, range(16), [7] * 30, client="a"))
    while engine.step() is not None:
        pass
    assert seen[0] == [(0, 16)]
    assert {count for count, _ in seen[1:]} == {1}


# priorities


class Classes(ByClass):
    """A scheduler for each class. Memory is taken as by vLLM, which puts that request first."""

    def __init__(self, make):
        super().__init__(make, low_first=True)
        if self.retraction_order is None:
            self.retraction_order = self._as_vllm

    def _as_vllm(self, running, now_s):
        return Priority.retraction_order(self, running, now_s)

    def on_retract(self, request, view, now_s):
        super().on_retract(request, view, now_s)
        self.requeue(request, first=True)


def with_classes(seed):
    stream = stream_of(seed)
    stream.policy = "priority"
    return stream


def test_classes_are_served_in_vllms_own_order():
    seen = Counter()
    for seed in range(24):
        stream = with_classes(seed)
        same_as_vllm(stream)
        seen["preempted"] += sum(len(one.preempted) for one in ask_vllm(stream).values())
    assert seen["preempted"] > 10


FAIR = [("vtc", {"vtc.preempt": "fair"}), ("dlpm", {"dlpm.preempt": "fair", "dlpm.quantum": 50})]


@pytest.mark.parametrize(
    ("local", "settings"), [*((local, SETTINGS.get(local, {})) for local in SCHEDULERS), *FAIR]
)
def test_clients_share_fairly_inside_a_class_as_simulated(local, settings):
    seen = Counter()
    for seed in range(16):
        stream = with_classes(seed)
        theirs = ask_plugin(stream, local, settings)
        ours = Classes(lambda: build_local(local, settings))
        assert_alike(theirs, ask_ours(stream, local, settings, scheduler=ours), stream)
        seen["preempted"] += sum(len(one.preempted) for one in theirs.values())
    assert seen["preempted"] > 10


# Structured output: a request waits until its grammar is ready, and others pass it.


def grammars(engine):
    """Let every third request wait for its grammar for some passes."""
    scheduler, statuses = engine.scheduler, engine.vllm.request.RequestStatus
    left, handle, add = {}, scheduler._handle_blocked_waiting_request, scheduler.add_request

    def added(request):
        if int(request.request_id) % 3 == 0:
            request.status = statuses.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
            left[request.request_id] = 5
        add(request)

    def handled(request):
        if request.status != statuses.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            return handle(request)
        left[request.request_id] -= 1
        if left[request.request_id]:
            return False
        request.status = statuses.WAITING
        return True

    scheduler.add_request, scheduler._handle_blocked_waiting_request = added, handled
    engine.awaits = lambda: any(left.values())


def test_a_request_that_waits_for_its_grammar_is_served_as_by_vllm():
    for seed in SEEDS:
        same_as_vllm(stream_of(seed), prepare=grammars)


@pytest.mark.parametrize("local", SCHEDULERS)
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_grammars_delay_no_request_for_ever(local, policy):
    """With classes, too, a request that waits is in its class again after the pass."""
    for seed in SEEDS:
        stream, kept = stream_of(seed), Kept(grammars)
        stream.policy = policy
        steps = ask_plugin(stream, local, SETTINGS.get(local, {}), watch=kept)
        assert served(steps) == everything(stream)
        assert charged_by_client(kept.engine) == outputs_by_client(stream)


# Pipeline and tensor parallelism: one scheduler decides for all ranks.


@pytest.mark.parametrize(("stages", "ranks"), [(2, 1), (4, 1), (1, 4), (2, 2)])
def test_stages_and_ranks_are_served_as_by_vllm(stages, ranks):
    configured = {
        "parallel_config.pipeline_parallel_size": stages,
        "parallel_config.tensor_parallel_size": ranks,
        "max_concurrent_batches": stages,
    }
    for seed in SEEDS:
        stream = stream_of(seed, asynchronous=False)
        engine = same_as_vllm(stream, configured)
        assert charged_by_client(engine) == outputs_by_client(stream)


def test_an_asynchronous_pipeline_is_served_as_by_vllm():
    configured = {
        "parallel_config.pipeline_parallel_size": 2,
        "max_concurrent_batches": 3,
        "use_v2_model_runner": True,
    }
    for seed in SEEDS:
        stream = stream_of(seed, asynchronous=True)
        engine = same_as_vllm(stream, configured)
        assert charged_by_client(engine) == outputs_by_client(stream)


@pytest.mark.parametrize("local", SCHEDULERS)
def test_a_pipeline_serves_and_charges_every_request(local):
    configured = {"parallel_config.pipeline_parallel_size": 3, "max_concurrent_batches": 3}
    for seed in SEEDS:
        stream, kept = stream_of(seed, asynchronous=False), Kept()
        settings = SETTINGS.get(local, {})
        steps = ask_plugin(stream, local, settings, watch=kept, configured=configured)
        assert served(steps) == everything(stream)
        assert charged_by_client(kept.engine) == outputs_by_client(stream)


# Images: vLLM counts their tokens in the prompt, and tells them apart by their hash.


def with_images(seed):
    """Return a stream in which the first tokens of most requests are one of two images."""
    vllm()
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    stream, draw = stream_of(seed), random.Random(f"images {seed}")
    for number, arrival in enumerate(stream.arrivals):
        name = draw.choice(["cat", "dog", None])
        if name is not None:
            length = min(20, prompt_tokens(arrival.prompt))
            position = PlaceholderRange(offset=0, length=length)
            named = stream.apart[number] = f"{name} {length}"
            image = MultiModalFeatureSpec(None, "image", named, position)
            stream.facts[number]["mm_features"] = [image]
    return stream


def encoder(images):
    """Return a preparation of an engine whose encoder computes ``images`` images a step."""

    def prepare(engine):
        scheduler = engine.scheduler
        scheduler.max_num_encoder_input_tokens = 20 * images
        scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(40 * images)

    return prepare


@pytest.mark.parametrize("images", [1, 2])
def test_images_are_served_as_by_vllm(images):
    for seed in SEEDS:
        stream = with_images(seed)
        engine = same_as_vllm(stream, prepare=encoder(images))
        assert charged_by_client(engine) == outputs_by_client(stream)


@pytest.mark.parametrize("local", SCHEDULERS)
def test_the_tokens_of_an_image_are_charged_as_those_of_a_text(local):
    settings = SETTINGS.get(local, {})
    for seed in SEEDS:
        stream, kept = with_images(seed), Kept(encoder(100))
        theirs = ask_plugin(stream, local, settings, watch=kept)
        assert_alike(theirs, ask_ours(stream, local, settings), stream)


@pytest.mark.parametrize("local", ["lpm", "dlpm"])
def test_equal_placeholders_of_two_images_are_different_prefixes(local):
    """Both have 40 equal tokens. Cold requests with the same 32 first tokens come last."""
    vllm()
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    engine = fair_engine(LIMITS, local, {}, lambda: 0.0)
    encoder(3)(engine)
    for number, name in enumerate(["cat", "cat", "dog"]):
        image = MultiModalFeatureSpec(None, "image", name, PlaceholderRange(offset=0, length=20))
        engine.scheduler.add_request(
            engine.request(number, [5] * 40, [7], client="a", mm_features=[image])
        )
    order = [one.request_id for one in engine.scheduler.home.view.match_order()]
    assert order == [0, 2, 1]


# Connectors: a host's memory, or the memory of a server that prefills.


def connected(steps, role="kv_both"):
    """Return the configuration of a connector whose loads take ``steps`` steps."""
    vllm()
    from vllm.config import KVTransferConfig

    told = KVTransferConfig(
        kv_connector="HostMemory",
        kv_connector_module_path="tests.sim.vllm_connector",
        kv_connector_extra_config={"steps": steps},
        kv_role=role,
    )
    return {"kv_transfer_config": told}


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_prefixes_from_a_host_are_served_as_by_vllm(steps):
    loaded = 0
    for seed in SEEDS:
        stream = stream_of(seed)
        engine = same_as_vllm(stream, connected(steps))
        assert charged_by_client(engine) == outputs_by_client(stream)
        loaded += len(engine.scheduler.connector.loaded)
    assert loaded > 5


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("local", SCHEDULERS)
def test_tokens_from_a_host_count_as_cached(local, steps):
    engine = fair_engine(
        LIMITS, local, SETTINGS.get(local, {}), lambda: 0.0, configured=connected(steps)
    )
    scheduler, counted = engine.scheduler, []
    for number in range(2):
        scheduler.add_request(engine.request(number, range(100), [7] * 3, client="a"))
        while engine.step() is not None:
            pass
        counted.append(scheduler.counters["extend_tokens"])
        scheduler.kv_cache_manager.reset_prefix_cache()  # of the GPU, not of the host
    assert counted == [100, 100 + 4]  # the host has six blocks of 16 tokens
    assert scheduler.home.idle
    assert scheduler.counters["admissions"] == 2


@pytest.mark.parametrize("steps", [0, 3])
def test_a_request_that_ends_while_it_loads_is_forgotten(steps):
    engine = fair_engine(LIMITS, "vtc", {}, lambda: 0.0, configured=connected(steps))
    scheduler = engine.scheduler
    aborted = engine.vllm.request.RequestStatus.FINISHED_ABORTED
    asked = {"extra_args": {"kv_transfer_params": {"do_remote_prefill": True}}}
    scheduler.add_request(engine.request(0, range(100), [7] * 3, client="a", sampling=asked))
    engine.plan() if not steps else scheduler.schedule()
    scheduler.finish_requests("0", aborted)
    assert scheduler.home.idle
    scheduler.add_request(engine.request(1, range(50), [7] * 3, client="a"))
    while engine.step() is not None:
        pass
    assert scheduler.home.idle
    assert scheduler.counters["finished"] == 2


# disaggregation


@pytest.mark.parametrize("steps", [0, 2])
def test_a_server_that_only_decodes_charges_outputs_and_one_token_of_each_prompt(steps):
    for seed in SEEDS:
        stream, kept = stream_of(seed), Kept()
        stream.limits = replace(stream.limits, enable_prefix_caching=False, pool_tokens=5_000)
        asked = {"extra_args": {"kv_transfer_params": {"do_remote_prefill": True}}}
        for number in everything(stream):
            stream.facts[number]["sampling"] = asked
        configured = connected(steps, "kv_consumer")
        engine = same_as_vllm(stream, configured)
        assert charged_by_client(engine) == outputs_by_client(stream)
        for local in ("vtc", "dlpm"):
            steps_done = ask_plugin(
                stream, local, SETTINGS.get(local, {}), watch=kept, configured=configured
            )
            assert served(steps_done) == everything(stream)
            ledger = kept.engine.scheduler.home.ledger
            assert ledger.total("extend_tokens") == len(stream.arrivals)
            assert charged_by_client(kept.engine) == outputs_by_client(stream)


@pytest.mark.parametrize("local", SCHEDULERS)
def test_a_server_that_only_prefills_orders_as_simulated(local):
    """Its requests ask for one token each."""
    settings = SETTINGS.get(local, {})
    for seed in SEEDS:
        stream = stream_of(seed)
        for arrival in stream.arrivals:
            arrival.output = 1
        stream.spare = [0] * len(stream.arrivals)
        theirs = ask_plugin(stream, local, settings, configured=connected(0, "kv_producer"))
        assert_alike(theirs, ask_ours(stream, local, settings), stream)


# embeddings


@pytest.mark.parametrize("local", SCHEDULERS)
def test_embeddings_are_served_in_order_of_arrival_whatever_the_scheduler(local):
    engine = fair_engine(
        LIMITS, local, {}, lambda: 0.0, configured={"model_config.runner_type": "pooling"}
    )
    assert engine.scheduler.home.config.local == "fcfs"


# sessions


@pytest.mark.parametrize(
    ("told", "session"),
    [(None, None), ({}, None), ({"session_id": "chat"}, "chat"), ({"other": 1}, None)],
)
def test_a_session_is_known_where_the_caller_names_it(told, session):
    engine = fair_engine(LIMITS, "fcfs", {}, lambda: 0.0)
    for number, client in enumerate("ab"):
        asked = engine.request(number, range(9), [7], client=client, sampling={"extra_args": told})
        engine.scheduler.add_request(asked)
    requests = [engine.scheduler.home.request_of(str(number)) for number in range(2)]
    assert [one.client for one in requests] == ["a", "b"]
    assert [one.program_id for one in requests] == [program_of(one, session) for one in "ab"]


@pytest.mark.parametrize(("sessions", "kept"), [(True, True), (False, False)])
def test_retention_keeps_the_tokens_of_a_session(sessions, kept):
    limits = replace(LIMITS, pool_tokens=20 * 16)
    evicting = Evicting("retention", ("a", "b"))
    engine = fair_engine(limits, "vtc", {}, lambda: 0.0, evicting=evicting)
    told = {"extra_args": {"session_id": "chat"}} if sessions else {}

    def served(number, first, **named):
        prompt = range(first, first + 96)
        engine.scheduler.add_request(engine.request(number, prompt, [7], client="a", **named))
        while engine.step() is not None:
            pass

    served(0, 0, sampling=told)
    for number in range(1, 7):
        served(number, 1000 * number)
    served(7, 0, sampling=told)
    assert (engine.hits["7"] == 80) == kept  # the last of six blocks is always computed


# eviction policies beside these features


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("feature", ["drafts", "host", "host beside steps", "pipeline"])
def test_a_policy_sees_every_block_that_is_cached(policy, feature):
    configured = {
        "drafts": lambda: drafting(3),
        "host": lambda: connected(0),
        "host beside steps": lambda: connected(3),
        "pipeline": lambda: {
            "parallel_config.pipeline_parallel_size": 2,
            "max_concurrent_batches": 2,
        },
    }[feature]()
    for seed in range(6):
        stream = with_room_for(evicting_stream(seed, feature != "pipeline" and seed % 2 == 1), 3)
        kept = Kept()
        steps = ask_plugin(
            *(stream, "vtc", POLICIES[policy]),
            evicting=Evicting(policy, CLIENTS),
            watch=kept,
            configured=configured,
        )
        assert served(steps) == everything(stream)
        pool = kept.engine.scheduler.kv_cache_manager.block_pool
        cached = sum(one.block_hash is not None for one in pool.blocks)
        held = sum(kept.engine.scheduler._eviction.residency().values())
        assert held == pytest.approx(cached * stream.limits.block_size)


# A drafting model like EAGLE, with which a match loses its last block.


def test_matches_are_not_kept_where_the_last_block_of_a_match_is_given_up():
    configured = drafting(3)
    engine = fair_engine(LIMITS, "lpm", {}, lambda: 0.0, configured=configured)
    assert isinstance(engine.scheduler.home.view, BlockQueue)
    eagle = configured["speculative_config"]
    eagle.use_eagle = eagle.use_eagle_block_drop = lambda: True
    engine = fair_engine(LIMITS, "lpm", {}, lambda: 0.0, configured=configured)
    assert not isinstance(engine.scheduler.home.view, BlockQueue)
