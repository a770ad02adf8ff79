"""Test the load cap inside servers of both engines: the settings and their effect."""

from copy import copy
from itertools import count
from types import SimpleNamespace

import pytest

from fairbench.config.resolve import resolve
from fairbench.core import Request
from fairbench.errors import RunFailed, UsageError
from fairbench_engines.sglang.hooks import Hooks
from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_engines.sglang.views import ArmedQueue
from fairbench_engines.vllm.scheduler_host import VLLMHome
from fairbench_load.client_metrics import Ledger
from fairbench_load.plugin_config import LOAD_CAP, config_from, plugin_config
from fairbench_load.server_facts import PluginReport, require_active

CAP = {LOAD_CAP: 400}  # two requests of 100 + 128 / 2 tokens


class Req:
    """The fields of SGLang's request that the plugin reads."""

    def __init__(self, produced=0):
        self.routing_key = "a"
        self.origin_input_ids = list(range(100))
        self.output_ids, self.finished_len = [1] * produced, None
        self.finished_reason = None
        self.sampling_params = SimpleNamespace(max_new_tokens=500)


def sglang_pass(home: SGLangHome, waiting: list[Req]) -> list[Req]:
    """Return what SGLang admits if all fit into memory, by walking its queue."""
    queue = ArmedQueue(waiting)
    home.arm(queue, 0.0)
    admitted = []
    for req in queue:
        home.admitted(req, 100)
        admitted.append(req)
    for req in admitted:
        waiting.remove(req)
    return admitted


def test_sglang_gets_no_more_requests_than_fit_under_the_cap():
    home = SGLangHome(plugin_config("fcfs", CAP), Ledger(), lambda refresh: [], lambda req: 0)
    waiting = [Req() for _ in range(6)]
    for req in waiting:
        assert home.accepts(req, 0.0)
        home.queued(req, retracted=False, now_s=0.0)
    first, second = sglang_pass(home, waiting)
    assert sglang_pass(home, waiting) == []
    home.queued(first, retracted=True, now_s=0.0)
    waiting.append(first)
    assert len(sglang_pass(home, waiting)) == 1
    second.output_ids = [1] * 10
    second.finished_reason = "stop"
    # the expected output is now 10 tokens, so two more count 105 each beside the running 164
    home.produced([second])
    assert len(sglang_pass(home, waiting)) == 2
    assert home.cap.tokens == 164 + 2 * 105


def test_sglang_would_admit_none_that_the_cap_refuses():
    home = SGLangHome(plugin_config("fcfs", CAP), Ledger(), lambda refresh: [], lambda req: 0)
    home._preemption = SimpleNamespace(spent=False, would_fit=lambda req, without: True)
    waiting = [Req(), Req(), Req()]
    for req in waiting:
        assert home.accepts(req, 0.0)
        home.queued(req, retracted=False, now_s=0.0)
    running = sglang_pass(home, waiting)
    home.batch.show_batch(SimpleNamespace(reqs=running))
    first, last = (home._tracked[req].request for req in (running[0], *waiting))
    assert not home.batch.would_fit(last, [])
    assert home.batch.would_fit(last, [first])


@pytest.mark.parametrize(("number", "full"), [(2, False), (3, True)])
def test_as_in_the_simulator_the_batch_of_sglang_is_full_after_a_refusal(number, full):
    hooks = Hooks(plugin_config("fcfs", CAP), "0.5.23")
    batch = SimpleNamespace(batch_is_full=False, is_empty=lambda: False, reqs=[])
    waiting = [Req() for _ in range(number)]
    for req in waiting:
        assert hooks.home.accepts(req, 0.0)
        hooks.home.queued(req, retracted=False, now_s=0.0)
    scheduler = SimpleNamespace(waiting_queue=waiting, running_batch=batch, chunked_req=None)

    def original(scheduler):
        return sglang_pass(hooks.home, scheduler.waiting_queue), batch

    assert len(hooks.admission.admit(original, scheduler)[0]) == 2
    assert batch.batch_is_full is full
    hooks.admission.admit(lambda scheduler: (None, SimpleNamespace(**vars(batch))), scheduler)
    assert not hooks.home.capped  # none was capped in that pass


# a stand-in for vLLM's scheduler
ENGINE = SimpleNamespace(running=[], now_s=lambda: 0.0, has_slot=lambda theirs: True)


class Theirs:
    """The fields of vLLM's request that the plugin reads."""

    def __init__(self, number):
        self.request_id = f"r{number}"
        self.prompt_token_ids = list(range(100))
        self.all_token_ids = self.prompt_token_ids
        self.session_id, self.max_tokens, self.priority = "a", 500, 0
        self.sampling_params = self.lora_request = self.prompt_embeds = self.cache_salt = None
        self.mm_features = []
        self.num_tokens, self.num_computed_tokens, self.num_output_tokens = 100, 0, 0
        self.status = SimpleNamespace(name="WAITING")


def vllm_pass(home: VLLMHome) -> list[Theirs]:
    """Return what vLLM admits if all fit into memory, by peeking and popping the queue's head."""
    admitted = []
    home.begin_pass()
    while (theirs := home.peek_request()) is not None:
        home.pop_request()
        theirs.status = SimpleNamespace(name="RUNNING")
        admitted.append(theirs)
    home.end_pass()
    return admitted


def test_vllm_sees_an_empty_queue_once_the_cap_is_reached():
    home = VLLMHome(plugin_config("fcfs", CAP), Ledger(), ENGINE)
    for number in range(6):
        home.add_request(Theirs(number))
    first, second = vllm_pass(home)
    assert vllm_pass(home) == []
    home.prepend_request(first)
    assert vllm_pass(home) == [first]
    second.num_output_tokens = 10
    home.produced([SimpleNamespace(request_id=second.request_id, new_token_ids=[7] * 10)])
    home.gone(second)
    assert len(vllm_pass(home)) == 2
    assert home.cap.tokens == 164 + 2 * 105


@pytest.mark.parametrize("local", ["fcfs", "justitia", "autellix"])
def test_a_request_that_vllm_passes_over_is_not_offered_again_in_the_pass(local):
    home = VLLMHome(plugin_config(local, {}), Ledger(), ENGINE)
    for number in range(2):
        home.add_request(Theirs(number))
    offered = []
    home.begin_pass()
    while (theirs := home.peek_request()) is not None:  # neither of them ever runs
        offered.append(theirs.request_id)
        home.pop_request()
    assert offered == ["r0", "r1"]
    home.end_pass()
    assert len(home.view) == 0


@pytest.mark.parametrize("local", ["fcfs", "justitia", "lpm-client-cap"])
def test_a_session_of_vllm_waits_again_between_its_turns(local):
    settings = {LOAD_CAP: 400} | ({f"{local}.max_running": 1} if local == "lpm-client-cap" else {})
    cache = SimpleNamespace(get_computed_blocks=lambda theirs: (None, 0))
    clock = count()
    engine = copy(ENGINE)
    engine.kv_cache_manager, engine.now_s = cache, lambda: float(next(clock))
    home = VLLMHome(plugin_config(local, settings), Ledger(), engine)
    session = Theirs(0)
    for _ in range(5):
        session.status = SimpleNamespace(name="WAITING")
        home.add_request(session)
        assert vllm_pass(home) == [session]
        assert home.cap.tokens == 164
    home.gone(session)
    assert home.cap.tokens == 0


def test_auto_waits_until_the_steps_of_the_server_are_known():
    home = SGLangHome(
        plugin_config("fcfs", {LOAD_CAP: "auto"}), Ledger(), lambda _: [], lambda req: 0
    )
    assert home.costs is not None
    # 100 us, 1 us per request and 1 us per token, so that a unit is 100 tokens
    for requests in range(1, 40):
        context = requests * (50 + requests % 7)
        home.costs.observe_decode(requests, context, (100 + requests + context) * 1e-6)
    waiting = [Req() for _ in range(9)]
    for req in waiting:
        assert home.accepts(req, 0.0)
        home.queued(req, retracted=False, now_s=0.0)
    assert len(sglang_pass(home, waiting)) == 3  # three units of 165 tokens, at most 500
    assert home.cap.most_tokens == pytest.approx(500, rel=0.01)


def test_without_a_cap_no_costs_are_measured():
    assert (
        SGLangHome(plugin_config("fcfs", {}), Ledger(), lambda _: [], lambda req: 0).costs is None
    )
    assert LOAD_CAP not in plugin_config("fcfs", {LOAD_CAP: "none"}).params


def test_the_cap_is_passed_with_the_settings_and_reported_back():
    config = plugin_config("dlpm", CAP)
    assert config_from(plugin_config("dlpm", CAP).environment()) == config
    told = PluginReport(**Hooks(config, "0.5.23").report())
    require_active([told], plugin_config("dlpm", CAP))
    with pytest.raises(RunFailed, match=r"dlpm with engine.load_cap = 400 instead of None"):
        require_active([told], plugin_config("dlpm", {}))
    with pytest.raises(RunFailed, match=r"dlpm with engine.load_cap = 400 instead of auto"):
        require_active([told], plugin_config("dlpm", {LOAD_CAP: "auto"}))


@pytest.mark.parametrize("kind", ["sglang", "vllm", "emulator"])
def test_every_backend_with_schedulers_of_fairbench_obeys_the_cap(kind):
    spec = resolve(
        {"backend": kind, "model": "m"} if kind != "emulator" else {"backend": kind}, CAP
    )
    assert spec.settings[LOAD_CAP] == 400


def test_a_server_without_fairbenchs_schedulers_does_not_support_the_cap():
    with pytest.raises(UsageError, match=r"engine.load_cap = 400: backend endpoint"):
        resolve({"backend": {"kind": "endpoint", "base_url": "http://x"}, "model": "m"}, CAP)


def test_a_restarted_engine_forgets_its_measurements():
    cap = plugin_config("fcfs", CAP).load_cap()
    one = Request(0, "a", 0, 0, (), 100, 5)
    cap.enter(one)
    cap.finish(one, 10)
    cap.forget()
    cap.enter(one)
    assert cap.tokens == 164
