"""Test that a real server's steps are charged to their clients, and no second is charged twice."""

from types import SimpleNamespace

import pytest

from fairbench.core import PS_PER_S, Request
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.local.fcfs import FCFS
from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_engines.step_times import Decode, PromptPart, StepTimes
from fairbench_engines.vllm.scheduler_host import StepPart, VLLMHome
from fairbench_load.client_metrics import Ledger
from fairbench_load.plugin_config import plugin_config
from tests.engines.test_live_plugin_batch import FakeReq

COSTS = ProfileCosts(load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang"))


class Told(FCFS):
    """A scheduler that records each step's clients and the completed prompts."""

    def __init__(self):
        super().__init__(FCFS.Params())
        self.spent = {"a": 0, "b": 0}
        self.complete = []

    def on_prompt_time(self, request, gpu_ps, complete):
        self.spent[request.client] += gpu_ps
        if complete:
            self.complete.append(request)

    def on_gpu_time(self, client, gpu_ps):
        self.spent[client] += gpu_ps


@pytest.mark.parametrize(("took_s", "load_s", "paid_s"), [(1, 0.4, 0.7), (1, 0, 0.5), (1, 3, 1)])
def test_a_request_alone_pays_for_its_tokens_from_the_host(took_s, load_s, paid_s):
    """Both requests compute 100 tokens. The rest of a step of a second is divided equally."""
    told = Told()
    one, other = Request(0, "a", 0, 0, (), 4_000, 9), Request(1, "b", 0, 0, (), 4_000, 9)
    prompts = [PromptPart(one, 3_900, 100, True, load_s), PromptPart(other, 3_900, 100, True)]
    StepTimes(told, COSTS).step(10.0, 10.0 + took_s, prompts)
    assert told.spent["a"] == pytest.approx(paid_s * PS_PER_S)
    assert sum(told.spent.values()) == pytest.approx(took_s * PS_PER_S)


def test_overlapping_steps_add_up_to_the_elapsed_time():
    told = Told()
    times = StepTimes(told, COSTS)
    long, short = Request(0, "a", 0, 0, (), 4_000, 9), Request(1, "b", 0, 0, (), 1_000, 9)
    times.step(10.0, 10.34, [PromptPart(long, 0, 4_000, True), PromptPart(short, 0, 500, False)])
    first = dict(told.spent)
    assert sum(first.values()) == 34 * PS_PER_S // 100
    assert first["a"] > 5 * first["b"]
    assert told.complete == [long]
    # The next step was launched before the previous one ended.
    times.step(10.3, 10.6, decoding=[Decode(long, 4_001), Decode(short, 1_001)])
    assert sum(told.spent.values()) == 6 * PS_PER_S // 10
    assert told.spent["a"] - first["a"] > told.spent["b"] - first["b"] > 0
    times.step(10.4, 10.5, decoding=[Decode(long, 4_002)])  # no charge beyond the existing ones
    assert sum(told.spent.values()) == 6 * PS_PER_S // 10


def test_inside_sglang_counters_are_the_time_of_its_steps():
    config = plugin_config("vtc", {"vtc.charge": "gpu-time"})
    home = SGLangHome(config, Ledger(), lambda refresh: [], lambda req: 0)
    mine, other, unknown = FakeReq("a", 300, 0), FakeReq("b", 100, 0), FakeReq("c", 9, 0)
    for req in (mine, other):
        home.accepts(req, 0.0)
        home.queued(req, retracted=False, now_s=0.0)
        home.admitted(req, len(req.origin_input_ids))
        req.output_ids.append(1)
    home.took(1.0, 1.2, prompts=[(mine, 0, 300), (other, 0, 100), (unknown, 0, 9)])
    home.produced([mine, other])
    home.took(1.2, 1.3, decoding=[mine, other, unknown])
    counters = home.scheduler.counters
    # no step has been seen yet
    assert counters == {"a": 15 * PS_PER_S // 100, "b": 15 * PS_PER_S // 100}
    for _ in range(10):
        home.costs.observe_decode(2, 400, 0.1)
        home.costs.observe_decode(4, 1_200, 0.28)
        home.costs.observe_decode(1, 300, 0.07)
    home.took(1.3, 1.4, decoding=[mine, other])
    assert sum(counters.values()) == 4 * PS_PER_S // 10
    assert counters["a"] > counters["b"]


ENGINE = SimpleNamespace(now_s=lambda: 0.0)  # a stand-in for vLLM's scheduler


def theirs(name, client, prompt, outputs, computed):
    """Return the fields of vLLM's request that the plugin reads."""
    return SimpleNamespace(
        request_id=name,
        session_id=client,
        prompt_token_ids=list(range(prompt)),
        num_prompt_tokens=prompt,
        max_tokens=50,
        priority=0,
        sampling_params=None,
        lora_request=None,
        cache_salt=None,
        mm_features=[],
        prompt_embeds=None,
        num_computed_tokens=computed,
        num_output_tokens=outputs,
        num_tokens=prompt + outputs,
    )


def test_inside_vllm_a_step_is_split_among_decoders_and_chunks():
    home = VLLMHome(plugin_config("vtc", {"vtc.charge": "gpu-time"}), Ledger(), ENGINE)
    decodes, chunk = theirs("0", "a", 100, 5, 105), theirs("1", "b", 400, 0, 256)
    for one in (decodes, chunk):
        home.add_request(one)
        home.scheduler.on_admitted(home._tracked[one.request_id].request, 1, recompute=False)
    home.produced([SimpleNamespace(request_id=decodes.request_id, new_token_ids=[7] * 5)])
    told = []
    home.scheduler.on_prompt_time = lambda request, gpu_ps, complete: told.append(
        (request.client, gpu_ps, complete)
    )
    home.scheduler.on_gpu_time = lambda client, gpu_ps: told.append((client, gpu_ps))
    gone = StepPart("gone", 9, 1, True)
    home.took(2.0, 2.2, [StepPart("0", 105, 1, True), StepPart("1", 256, 256, False), gone])
    assert told == [("b", PS_PER_S // 10, False), ("a", PS_PER_S // 10)]
    told.clear()
    home.took(2.2, 2.3, [StepPart("1", 400, 144, False)])
    assert told == [("b", PS_PER_S // 10, True)]
