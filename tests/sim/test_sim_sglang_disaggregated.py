"""Test prefill and decode servers under the plugin, on SGLang's own classes and random streams.

A decode server's queue, its budget of memory and its pools are SGLang's. Prompts arrive at once.
"""

import random
from collections import Counter
from importlib import import_module
from types import SimpleNamespace
from unittest import mock

import pytest

from fairbench_engines.sglang.hooks import Hooks
from fairbench_load.plugin_config import plugin_config
from tests.sim.sglang_seam import BEFORE_0_5_22, VERSION, Absent, SteppedEngine, sglang, why_absent
from tests.sim.sglang_streams import ask_ours, ask_sglang, assert_alike, random_stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]

RESERVED = 4  # tokens that SGLang keeps free for each running request


def hooks_of(local, settings=None):
    """Return the plugin's hooks in a decode server."""
    hooks = Hooks(plugin_config(local, settings or {}), VERSION)
    hooks.obey(SimpleNamespace(disaggregation_mode="decode"))
    return hooks


class DecodeServer:
    """A decode server of SGLang without a model. ``close`` it after use."""

    def __init__(self, pool, hooks=None):
        limits = {"chunk": 64, "max_prefill": 1000, "slots": 50, "conservativeness": 1.0}
        self._hooks = hooks
        self._engine = SteppedEngine(
            *("fcfs",), pool=pool, hooks=hooks, match_limit=1000, ignore_eos=False, **limits
        )
        self._decode = import_module("sglang.srt.disaggregation.decode")
        self._scheduler = self._engine.scheduler
        self._scheduler.disaggregation_mode = sglang().disaggregation.DisaggregationMode.DECODE
        self._scheduler.disagg_decode_prealloc_queue = self.queue = self._make_queue()
        self._scheduler.enable_decode_hicache = False
        self._poll = mock.patch.object(
            self._decode, "poll_and_all_reduce", lambda all, group: [one.poll() for one in all]
        )
        self._poll.start()
        self._left = {}  # output tokens of each request with memory

    def close(self):
        self._poll.stop()
        self._engine.close()

    def _make_queue(self):
        utils, scheduler = sglang().disaggregation, self._scheduler
        queue = self._decode.DecodePreallocQueue.__new__(self._decode.DecodePreallocQueue)
        shared = ("req_to_token_pool", "token_to_kv_pool_allocator", "tree_cache")
        vars(queue).update({name: getattr(scheduler, name) for name in shared})
        vars(queue).update(
            **{name: [] for name in ("queue", "retracted_queue", "pending_reqs")},
            **dict.fromkeys(("gloo_group", "draft_token_to_kv_pool", "host_pool")),
            **dict.fromkeys(("tp_rank", "host_reserved_tokens", "_num_published_destinations"), 0),
            scheduler=scheduler,
            transfer_queue=SimpleNamespace(queue=[], enable_staging=False),
            req_to_metadata_buffer_idx_allocator=utils.ReqToMetadataIdxAllocator(1000),
            metadata_buffers=Absent(),
            token_to_kv_pool=Absent(),
            kv_manager=Absent(kv_args=SimpleNamespace(state_types=[])),
            transfer_backend=utils.TransferBackend.FAKE,
            num_reserved_decode_tokens=RESERVED,
            max_total_num_tokens=10**9,
            pp_size=1,
            is_mla_backend=False,
            _prefill_dp_rank_queries={},
        )
        return queue

    def submit(self, number, tokens, output, client):
        prompt = range(1000 * number, 1000 * number + tokens)
        host = sglang().disaggregation.FAKE_BOOTSTRAP_HOST
        facts = {"bootstrap_host": host, "bootstrap_room": number}
        return self._engine.submit(number, prompt, [7] * output, output, client, **facts)

    def step(self):
        """Give memory, and let running requests decode. Return who got memory."""
        allocated, failed = self.queue.pop_preallocated()
        assert not failed
        got = [one.req for one in allocated]
        for req in got:
            self._left[req] = req.sampling_params.max_new_tokens
            req.output_ids.append(7)  # comes with the prompt
        self._decode_once()
        return [int(req.rid) for req in got]

    def _decode_once(self):
        running = list(self._left)
        for req in running:
            self._left[req] -= 1
            if self._left[req]:
                req.output_ids.append(7)
            else:
                del self._left[req]
                req.finished_reason = "length"
                pool = self._scheduler.token_to_kv_pool_allocator
                rows = self._scheduler.req_to_token_pool
                row = req.req_pool_idx if BEFORE_0_5_22 else req.kv.req_pool_idx
                held = rows.req_to_token[row, : len(req.origin_input_ids)]
                pool.free(held.to(sglang().torch.int64))
                rows.free(req)
        if self._hooks:
            self._hooks.results(lambda *_: None, self._scheduler, SimpleNamespace(reqs=running))


def served(hooks, seed, *, clients="xy", pool=400):
    """Return who got memory in each step. All requests have come when the first step begins."""
    draw, server = random.Random(seed), DecodeServer(pool, hooks)
    outputs, steps = Counter(), []
    try:
        for number in range(40):
            client, output = clients[number % len(clients)], draw.choice([1, 2, 5, 20])
            server.submit(number, draw.choice([20, 60, 120]), output, client)
            outputs[client] += output - 1
        while server.queue.queue:
            steps.append(server.step())
        while server._left:
            server.step()
    finally:
        server.close()
    return steps, outputs


def test_fcfs_gives_memory_as_sglang_does():
    for seed in range(12):
        stock, _ = served(None, seed)
        assert served(hooks_of("fcfs"), seed)[0] == stock, seed
        assert len(stock) > 10


@pytest.mark.parametrize(
    ("local", "settings"),
    [("vtc", {}), ("lcf", {}), ("dlpm", {"dlpm.quantum": 30}), ("vtc", {"vtc.preempt": "fair"})],
)
def test_every_request_is_served_and_each_output_but_the_first_charged(local, settings):
    for seed in range(6):
        hooks = hooks_of(local, settings)
        steps, outputs = served(hooks, seed, clients="xxxy")
        assert sorted(number for step in steps for number in step) == list(range(40))
        charged = {client: of["output_tokens"] for client, of in hooks.home.ledger.items()}
        assert charged == outputs
        hooks.home.sweep([])
        assert hooks.home.idle


def test_vtc_gives_a_light_client_memory_before_the_rest_of_a_flood():
    for seed in range(6):
        place = {}
        for local in ("fcfs", "vtc"):
            steps, _ = served(hooks_of(local), seed, clients="x" * 36 + "y" * 4)
            order = [number for step in steps for number in step]
            place[local] = max(order.index(number) for number in range(36, 40))
        assert place["fcfs"] == 39
        assert place["vtc"] < 16


# Prefill servers: requests come into the queue from the queue before it.


def bootstrapped(scheduler):
    """Prepare a scheduler that queues new requests as a prefill server does."""
    enqueue = scheduler._add_request_to_queue

    def add(req, is_retracted=False):
        if is_retracted:
            enqueue(req, is_retracted)
        else:
            scheduler.waiting_queue.append(req)

    scheduler._add_request_to_queue = add


@pytest.mark.parametrize("local", ["fcfs", "lpm", "vtc", "dlpm"])
def test_a_prefill_server_orders_requests_as_simulated(local):
    for seed in range(10):
        stream, hooks = random_stream(seed), Hooks(plugin_config(local, {}), VERSION)
        theirs = ask_sglang("fcfs", stream, hooks, bootstrapped)
        assert_alike(theirs, ask_ours(local, {}, stream), stream)
        assert hooks.home.ledger.total("arrivals") == len(stream.arrivals)
        assert hooks.home.idle
