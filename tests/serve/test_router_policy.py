"""Test our routers as the policy of vllm-router's fork and of llm-d's Python scheduler.

Both are stubs with the published interface: vllm-router's calls ``select(workers, request_text,
headers)``, and llm-d's scores endpoints and reports the selected one.
"""

import random
import runpy
import sys
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from fairbench.errors import UsageError
from fairbench_serve.router_policy import RouterPolicy, client_of, make_policy, policy_from

ROOT = Path(__file__).resolve().parents[2]
URLS = ("http://one:8000", "http://two:8000", "http://three:8000")


class StubRouter:
    """A router around ``select`` that counts requests in flight, as vllm-router does."""

    def __init__(self, select, urls=URLS):
        self.select, self.loads = select, dict.fromkeys(urls, 0)

    def send(self, text="hello", client="a", **headers):
        workers = [
            {"url": url, "load": load, "worker_type": "regular", "model_id": "m"}
            for url, load in self.loads.items()
        ]
        index = self.select(workers, text, {"X-Fairbench-Client": client} | headers)
        url = workers[index]["url"]
        self.loads[url] += 1
        return url


def policy_of(router="d2lpm"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRBENCH_ROUTER", router)
        return make_policy()


def test_requests_with_one_prefix_go_to_one_worker():
    router = StubRouter(policy_of())
    documents = {name: name * 4_000 for name in "xyz"}
    homes = {name: router.send(text) for name, text in documents.items()}
    assert len(set(homes.values())) == 3
    for name, text in documents.items():
        assert {router.send(f"{text} question {number}") for number in range(5)} == {homes[name]}


def test_each_client_goes_round_under_client_round_robin():
    router = StubRouter(policy_of("client-round-robin"))
    for client in ("a", "b", "c"):
        assert {router.send(client=client) for _ in range(3)} == set(URLS)


def test_a_drop_of_the_load_ends_the_oldest_requests():
    """Under least-loaded, the worker that the router calls idle is chosen next."""
    router = StubRouter(policy_of("least-loaded"))
    assert sorted(router.send() for _ in range(6)) == sorted(2 * URLS)
    router.loads[URLS[1]] = 0
    assert [router.send(), router.send()] == [URLS[1]] * 2


def test_workers_come_and_go():
    router = StubRouter(policy_of("least-loaded"), URLS[:1])
    assert router.send() == URLS[0]
    router.loads[URLS[1]] = 0
    assert router.send() == URLS[1]
    gone = router.loads.pop(URLS[0])
    assert {router.send() for _ in range(3)} == {URLS[1]}
    router.loads[URLS[0]] = gone
    assert router.send() == URLS[0]


def test_a_failing_router_leaves_the_choice_to_the_fallback(caplog):
    select = policy_of()
    assert select([], "hello", {}) is None
    assert select([{"no": "url"}], "hello", {}) is None
    assert "fallback" in caplog.text
    assert select([{"url": "u"}], None, None) == 0  # neither text nor headers nor load


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"FAIRBENCH_ROUTER": "d2lmp"}, "Did you mean"),
        ({"FAIRBENCH_SETTINGS": '{"d2lpm.quantum": 5}'}, "quantum"),
        ({"FAIRBENCH_SETTINGS": '{"dlpm.quantum": 5}'}, "is not a parameter of d2lpm"),
        ({"FAIRBENCH_SETTINGS": "5"}, "must have the form"),
        ({"FAIRBENCH_WEIGHTS": '{"a": -1}'}, "weights.a"),
    ],
)
def test_a_wrong_environment_ends_the_launch_with_one_line(environment, says):
    with pytest.raises(UsageError, match=says) as raised:
        policy_from(environment)
    assert "\n" not in str(raised.value)


def test_a_router_that_queues_requests_is_refused(monkeypatch):
    monkeypatch.setattr("fairbench.schedulers.routing.least_loaded.LeastLoaded.holds", True)
    with pytest.raises(
        UsageError, match=r"least-loaded: a router that queues requests cannot run inside"
    ):
        policy_from({"FAIRBENCH_ROUTER": "least-loaded"})


@pytest.mark.parametrize(
    ("sent", "client"),
    [
        ({"x-fairbench-client": "gold"}, "gold"),
        ({"X-LLM-D-Inference-Fairness-ID": "gold"}, "gold"),
        ({"x-smg-routing-key": "gold", "X-Fairbench-Client": "first"}, "first"),
        ({"x-fairbench-client": "a\nb"}, "default"),
        ({}, "default"),
    ],
)
def test_the_client_is_named_by_a_header(sent, client):
    assert client_of(sent) == client


def test_threads_may_ask_at_once():
    policy, chosen = RouterPolicy("round-robin"), Counter()

    def ask():
        for _ in range(60):
            name, _ = policy.send(dict.fromkeys(URLS, 1_000), "a", "hello")
            chosen[name] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(chosen.values()) == {80}


@pytest.mark.parametrize("seed", range(3))
def test_the_requests_in_flight_never_exceed_the_reported_ones(seed):
    draw, policy = random.Random(seed), RouterPolicy()
    loads = dict.fromkeys(URLS, 0)
    for _ in range(300):
        name, _ = policy.send(loads, draw.choice("abc"), draw.choice("xyz") * 500)
        loads[name] += 1
        for url in URLS:
            loads[url] -= draw.randint(0, min(loads[url], 1))
        dispatcher = policy._with_workers(loads)
        assert [len(dispatcher.flights[number]) for number in range(3)] == list(loads.values())


# llm-d's Python scheduler


class CycleState(dict):
    def set(self, key, value):
        self[key] = value


@pytest.fixture
def scorer(monkeypatch):
    """Return the class of the example, which registers itself under a name."""
    registered, framework = {}, ModuleType("py_inference_scheduler.framework")

    def register_scorer(name):
        return lambda cls: registered.setdefault(name, cls)

    framework.register_scorer = register_scorer
    monkeypatch.setitem(sys.modules, "py_inference_scheduler", ModuleType("stub"))
    monkeypatch.setitem(sys.modules, "py_inference_scheduler.framework", framework)
    runpy.run_path(str(ROOT / "examples/llmd_scorer.py"))
    return registered["fairbench"]


class StubScheduler:
    """A scheduler that runs the scorer as a profile does, then tells it the selected endpoint."""

    def __init__(self, scorer, prefer=None):
        self.scorer, self.loads, self._prefer = scorer, dict.fromkeys(URLS, 0), prefer

    def send(self, body, client="a"):
        state = CycleState()
        request = SimpleNamespace(headers={"x-fairbench-client": client}, body=body)
        pods = {
            url: SimpleNamespace(name=url, attributes={"queue_len": load})
            for url, load in self.loads.items()
        }
        scores = self.scorer.score(state, request, pods)
        assert sorted(scores.values()) == [0.0, 0.0, 1.0]
        selected = self._prefer or max(scores, key=scores.get)
        self.scorer.pre_request(state, request, pods[selected])
        self.loads[selected] += 1
        return selected


def test_the_scorer_keeps_documents_at_their_workers(scorer):
    scheduler = StubScheduler(scorer())
    bodies = {name: {"messages": [{"role": "user", "content": name * 4_000}]} for name in "xy"}
    bodies["z"] = {"prompt": "z" * 4_000}
    homes = {name: scheduler.send(body) for name, body in bodies.items()}
    assert len(set(homes.values())) == 3
    assert {name: scheduler.send(body) for name, body in bodies.items()} == homes


def test_a_selection_that_others_decided_is_taken_back(scorer):
    made = scorer(router="least-loaded")
    scheduler = StubScheduler(made, prefer=URLS[2])
    for _ in range(3):
        scheduler.send("hello")
    dispatcher = made._policy._dispatcher
    assert [len(dispatcher.flights[number]) for number in range(2)] == [0, 0]


def test_the_scorer_has_no_score_without_endpoints_and_refuses_a_wrong_router(scorer):
    assert scorer().score(CycleState(), SimpleNamespace(headers={}, body=None), {}) == {}
    with pytest.raises(UsageError, match="d2lmp"):
        scorer(router="d2lmp")
