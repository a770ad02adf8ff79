"""Test the conclusions that a client draws from its own requests, on hand-computed examples."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from fairbench.config.resolve import experiment
from fairbench.errors import UsageError
from fairbench.targets import parse_targets
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.disguises import REACTIONS, EndedRequest
from fairbench.workloads.spec import load_workload

CHAT = load_workload("chat")


def claiming(**wrong):
    data = CHAT.model_dump(mode="json", exclude_none=True)
    scenario = {"rate": 0.1, "misbehaving": [{"client": 0, **wrong}]}
    data |= {"scenarios": {"s1": scenario}, "targets": {"ttft": "2s", "tpot": "50ms"}}
    return type(CHAT).model_validate(data)


def test_a_program_sent_at_a_refill_follows_the_end_of_a_delayed_one():
    reaction = REACTIONS["refill"]()
    assert not reaction(EndedRequest(0.2, 100, 0))
    assert reaction(EndedRequest(1.0, 100, 0))
    assert not reaction(EndedRequest(0.9, 100, 100))


def test_a_program_sent_at_eviction_follows_a_large_drop_of_cached_tokens():
    reaction = REACTIONS["eviction"]()
    assert not reaction(EndedRequest(9.0, 100, 0))  # nothing has been cached yet
    assert not reaction(EndedRequest(0.1, 100, 80))
    assert not reaction(EndedRequest(0.1, 1000, 400))  # exactly half of the highest number so far
    assert reaction(EndedRequest(0.1, 1000, 399))
    assert not REACTIONS["eviction"]()(
        EndedRequest(0.1, 1000, 399)
    )  # each client is judged separately


def test_claims_belong_to_the_claiming_client():
    plans = plan_clients(claiming(targets={"ttft": "100ms"}, weight=4.0, reaction="refill"), "s1")
    assert plans[0].targets == parse_targets({"ttft": "100ms", "tpot": "50ms"}, "")
    assert plans[1].targets == parse_targets({"ttft": "2s", "tpot": "50ms"}, "")
    assert [plan.weight for plan in plans[:3]] == [4.0, 1.0, 1.0]
    assert [plan.reaction for plan in plans[:3]] == ["refill", None, None]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"reaction": "refil"}, "reaction"),
        ({"targets": {"tfft": "1s"}}, r"misbehaving.targets 'tfft'.*ttft"),
        ({"weight": 0.0}, "weight"),
    ],
)
def test_impossible_values_are_refused(wrong, complaint):
    with pytest.raises(ValidationError, match=complaint):
        claiming(**wrong)


@pytest.mark.parametrize("key", ["reaction = 'refill'", "output_multiple = 2"])
def test_behaviours_of_simulated_clients_are_refused_before_any_server_starts(tmp_path, key):
    judge = Path(__file__).parents[2] / "workloads/judge.toml"
    reacting = f"[scenarios.x]\nrate = 1.0\nmisbehaving = [{{ client = 0, {key} }}]\n"
    file = tmp_path / "reacting.toml"
    file.write_text(f"{judge.read_text()}\n{reacting}")
    flags = {"workload": str(file), "scenario": "x", "scheduler": "d2lpm"}
    plan = experiment(flags, {}).client_plans()[0]
    assert plan.reaction or plan.disguise.output_multiple > 1
    with pytest.raises(UsageError, match=f"{key.split()[0]}: not supported by backend emulator"):
        experiment(flags | {"backend": "emulator"}, {})


def test_a_reaction_with_a_limit_is_refused():
    with pytest.raises(UsageError, match="misbehaving: in_flight and reaction both set the start"):
        plan_clients(claiming(in_flight=2, reaction="refill"), "s1")
