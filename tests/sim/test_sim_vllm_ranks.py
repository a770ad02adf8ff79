"""Test two data-parallel ranks on vLLM's own scheduler classes, under a flood of 40 against 4.

Runs in the environment of tests/vllm_cpu/install.sh.
"""

import os
from collections import Counter
from statistics import mean
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from fairbench.errors import UsageError
from fairbench.hardware.engine_params import VLLMLimits
from fairbench.schedulers.registry import build_local
from fairbench_engines.ranks import FOLDER
from fairbench_engines.vllm.ranks import check_ranks
from tests.sim.vllm_plugin_streams import fair_engine
from tests.sim.vllm_seam import vllm, why_absent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_absent()), reason=why_absent() or "present"),
]
PROMPT, OUTPUT, STEP_S = 48, 16, 0.1
SETTINGS = {"dlpm": {"dlpm.quantum": 500}}


class Ranks:
    """Engines with ``slots`` each, whose clients ask again as soon as they are answered."""

    def __init__(self, local, ranks, slots, folder, asynchronous=False):
        self.now_s, self._number = 0.0, 0
        limits = VLLMLimits(100_000, 2_048, max_num_seqs=slots, async_scheduling=asynchronous)
        self.engines = []
        for rank in range(ranks):
            environment = {FOLDER: str(folder)} if folder else {}
            with patch.dict(os.environ, environment):
                made = fair_engine(
                    *(limits, local, SETTINGS.get(local, {}), lambda: self.now_s),
                    configured={"parallel_config.data_parallel_index": rank if folder else 0},
                )
            self.engines.append(made)
        self.sent = {}  # number of a request -> client, rank, time
        self.tokens, self.waits = Counter(), []

    def ask(self, client, rank):
        number, self._number = self._number, self._number + 1
        self.sent[number] = client, rank, self.now_s
        prompt = range(1000 * number, 1000 * number + PROMPT)
        engine = self.engines[rank]
        engine.scheduler.add_request(engine.request(number, prompt, [7] * OUTPUT, client=client))

    def flood(self, steps, lights, connections=4):
        """Return the light client's share, and its mean seconds from request to answer."""
        for number in range(40):
            self.ask("heavy", number % len(self.engines))
        for number in range(connections):
            self.ask("light", lights[number % len(lights)])
        for _ in range(steps):
            self.now_s += STEP_S
            ended = [number for engine in self.engines for number in engine.step()[3]]
            for number in ended:
                client, rank, since_s = self.sent.pop(number)
                self.tokens[client] += PROMPT + 2 * OUTPUT
                if client == "light":
                    self.waits.append(self.now_s - since_s)
                self.ask(client, rank)
        return self.tokens["light"] / self.tokens.total(), mean(self.waits)


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_light_client_at_one_of_two_ranks_is_served_as_by_one_rank(local, asynchronous, tmp_path):
    """Two ranks of 2 slots are compared with one of 4. All of the light client is at rank 0."""
    alone, alone_s = Ranks(local, 1, 4, None, asynchronous).flood(600, [0])
    apart, apart_s = Ranks(local, 2, 2, None, asynchronous).flood(600, [0])
    shared, shared_s = Ranks(local, 2, 2, tmp_path, asynchronous).flood(600, [0])
    assert alone == pytest.approx(0.5, abs=0.05)
    assert apart == pytest.approx(0.25, abs=0.05)
    assert shared == pytest.approx(0.5, abs=0.05)
    assert shared_s == pytest.approx(alone_s, rel=0.15)
    assert shared_s < 0.7 * apart_s


@pytest.mark.parametrize("local", ["vtc", "dlpm"])
def test_a_flooder_at_three_ranks_gets_no_more_than_its_share(local, tmp_path):
    shared, _ = Ranks(local, 3, 2, tmp_path).flood(600, [0, 1], connections=10)
    assert shared == pytest.approx(0.5, abs=0.08)


def test_an_abort_of_all_requests_leaves_no_waiting_client(tmp_path):
    ranks = Ranks("vtc", 2, 2, tmp_path)
    one, other = ranks.engines
    for _ in range(5):
        ranks.ask("a", 0)
    ranks.now_s = 1.0
    one.step()
    ranks.now_s = 2.0
    other.scheduler.home.look(2.0)
    assert list(other.scheduler.home.ranks.waiting) == ["a"]
    aborted = one.vllm.request.RequestStatus.FINISHED_ABORTED
    one.scheduler.finish_requests([str(number) for number in range(5)], aborted)
    other.scheduler.home.look(3.0)
    assert list(other.scheduler.home.ranks.waiting) == []


def test_a_reset_of_the_cache_keeps_the_accounts_of_ranks(tmp_path):
    ranks = Ranks("vtc", 2, 2, tmp_path)
    ranks.ask("a", 0)
    while ranks.engines[0].step():
        ranks.now_s += 1.0
    scheduler = ranks.engines[0].scheduler
    before = dict(scheduler.home.scheduler.balances())
    assert scheduler.reset_prefix_cache()
    assert dict(scheduler.home.scheduler.balances()) == before == {"a": PROMPT + 2 * OUTPUT}


def server(policy="fcfs", **parallel):
    """Return the part of a server's configuration that concerns ranks."""
    return SimpleNamespace(
        parallel_config=vllm().config.ParallelConfig(**parallel),
        scheduler_config=SimpleNamespace(policy=policy),
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"data_parallel_size_local": 2}, "ranks on several hosts"),
        ({"data_parallel_size_local": 4, "data_parallel_backend": "ray"}, "-backend ray"),
        ({"data_parallel_size_local": 4, "data_parallel_rank_local": 1}, "one by one"),
        ({"data_parallel_size_local": 4}, ""),
    ],
)
def test_ranks_without_a_common_memory_are_refused(changed, says, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    config = server(data_parallel_size=4)
    for name, value in changed.items():
        setattr(config.parallel_config, name, value)
    if not says:
        assert check_ranks(config, build_local("vtc", {})) is None
        with pytest.raises(UsageError, match=r"rpm .* cannot share"):
            check_ranks(config, build_local("rpm", {}))
        config.scheduler_config.policy = "priority"
        with pytest.raises(UsageError, match="with --scheduling-policy priority: each priority"):
            check_ranks(config, build_local("vtc", {}))
        return
    with pytest.raises(UsageError, match=f"--data-parallel-size 4 is not .*{says}"):
        check_ranks(config, build_local("vtc", {}))


def test_a_core_without_the_folder_of_the_first_process_is_refused(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    config = server()
    config.parallel_config.data_parallel_index = 1
    with pytest.raises(UsageError, match="VLLM_PLUGINS must include fairbench"):
        check_ranks(config, build_local("fcfs", {}))
