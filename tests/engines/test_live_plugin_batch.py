"""Test SGLang's running batch as the plugin shows it to a scheduler."""

from types import SimpleNamespace

from fairbench_engines.sglang.scheduler_host import SGLangHome
from fairbench_load.client_metrics import Ledger
from fairbench_load.plugin_config import plugin_config


class FakeReq:
    """The fields of SGLang's request that the plugin reads."""

    def __init__(self, client, tokens, produced):
        self.routing_key = client
        self.origin_input_ids = list(range(tokens))
        self.output_ids, self.finished_len = [1] * produced, None
        self.finished_reason = None
        self.sampling_params = SimpleNamespace(max_new_tokens=50)


def test_a_scheduler_sees_running_requests_and_its_queue():
    home = SGLangHome(plugin_config("vtc", {}), Ledger(), lambda refresh: [], lambda req: 0)
    assert home.view.running is home.batch
    assert len(home.view.running) == 0
    mine, other, unknown = FakeReq("a", 30, 5), FakeReq("b", 40, 7), FakeReq("c", 9, 1)
    for req in (mine, other):
        assert home.accepts(req, 1.5)
        home.queued(req, retracted=False, now_s=1.5)
    memory = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 100),
        tree_cache=SimpleNamespace(evictable_size=lambda: 23),
    )
    home.batch.show_batch(SimpleNamespace(reqs=[mine, unknown, other]), memory)
    running = home.view.running
    assert (len(running), running.free_tokens) == (2, 123)
    assert [(one.request.client, one.held_tokens, one.reserved_tokens) for one in running] == [
        ("a", 35, 45),
        ("b", 47, 43),
    ]
    assert running.load("b") == (1, 47, 43, 7)
    assert running.load("c").requests == 0
    assert home.view.oldest("a").arrival_s == 1.5
