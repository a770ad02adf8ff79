"""Test attack behaviours as workloads: unchanged load, changed behaviour, and the bundled files."""

import re
import sys
from pathlib import Path

import pytest

from fairbench.errors import UsageError
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.plan import program_stream
from fairbench.workloads.spec import load_workload
from fairbench_attacks.behaviour import CHOICES, HONEST, KNOWN, Behaviour, behaviour_of
from fairbench_attacks.search import random_behaviours, tpe_behaviours
from fairbench_attacks.store import attack_file, known_file, known_workload
from fairbench_attacks.workload import ATTACK, SPLITS, Stakes, attack_workload, choices
from fairbench_attacks.workload import HONEST as HONESTLY

ROOT = Path(__file__).resolve().parents[2]
JUDGE = load_workload("judge")


def attacked(behaviour, **options):
    return attack_workload(JUDGE, "none", behaviour, Stakes(), **options)


def sent(workload, scenario, client, duration_s=200.0):
    plan = plan_clients(workload, scenario, duration_s=duration_s)[client]
    return [(at_s, job.demand) for at_s, job in program_stream(plan, seed=5)]


@pytest.mark.parametrize("name", KNOWN)
def test_the_files_of_known_attacks_are_current_and_can_be_read(name):
    """A failure means that the files must be written again, as docs/guide/attack.md explains."""
    path = ROOT / "workloads" / "attacks" / f"{name}.toml"
    assert path.read_text(encoding="utf-8") == known_file(name)
    assert load_workload(str(path)) == known_workload(name)


@pytest.mark.parametrize("name", KNOWN)
def test_victims_send_the_same_load_under_every_attack(name):
    workload = known_workload(name)
    for victim in (1, 2, 3):
        assert sent(workload, HONESTLY, victim) == sent(workload, ATTACK, victim)


def test_the_honest_behaviour_is_the_twin():
    workload = attacked(HONEST)
    for client in range(4):
        assert sent(workload, HONESTLY, client) == sent(workload, ATTACK, client)


@pytest.mark.parametrize(
    "behaviour",
    [
        *KNOWN.values(),
        Behaviour(identities=3, on_share=0.25),
        Behaviour(identities=2, split=4),
        Behaviour(padding_tokens=3000, padding_fresh=True, keep_alive=4),
    ],
)
def test_an_attacker_sends_as_many_programs_as_its_twin(behaviour):
    """Compare the mean number of programs over 20,000 s."""
    workload = attacked(behaviour)
    plans = plan_clients(workload, ATTACK, duration_s=20_000.0)
    mine = [plan for plan in plans if plan.misbehaving]
    assert len(mine) == behaviour.identities
    assert {plan.owner for plan in mine} == {"client-0"}
    expected = sum(plan.arrivals.expected_programs() for plan in mine)
    assert expected == pytest.approx(4 * 0.31 * 20_000, rel=0.01)


def test_identities_that_take_turns_are_never_active_together():
    workload = attacked(Behaviour(identities=4, in_turn=True, period_s=20.0))
    for turn, client in enumerate((0, 4, 5, 6)):
        times = [at_s for at_s, _ in sent(workload, ATTACK, client)]
        assert times
        assert {int(at_s // 20) % 4 for at_s in times} == {turn}


def test_calls_are_split_and_the_output_is_the_same():
    twin, split = (sent(attacked(Behaviour(split=s)), ATTACK, 0)[0][1] for s in (1, 8))
    assert (twin.requests, split.requests) == (4, 18)
    assert split.output_tokens == twin.output_tokens


@pytest.mark.parametrize("name", ["judge", "programming"])
def test_every_kind_of_split_has_a_valid_choice(name):
    workload = load_workload(name)
    assert set(choices(workload, CHOICES)["split"]) == set(CHOICES["split"])
    assert workload.program in SPLITS


def test_a_program_that_cannot_be_split_leaves_no_choice():
    assert choices(load_workload("chat"), CHOICES)["split"] == (1,)
    with pytest.raises(UsageError, match="split: programs of kind chat cannot be split; choose"):
        attack_workload(load_workload("chat"), "none", Behaviour(split=2), Stakes())


PROMISED = JUDGE.model_copy(
    update={"targets": {"e2el": "40s", "ttft": "5x"}, "client_weights": {"client-1": 2.0}}
)


def test_deadlines_and_weights_are_claimed_where_there_are_any():
    behaviour = Behaviour(identities=2, deadline_part=0.1, weight_multiple=4.0)
    workload = attack_workload(PROMISED, "none", behaviour, Stakes())
    plans = plan_clients(workload, ATTACK, duration_s=10.0)
    claimed = {plan.client: (str(plan.targets), plan.weight) for plan in plans}
    assert claimed["client-0"] == claimed["client-4"] == ("ttft:0.5x e2el:4000ms", 4.0)
    assert claimed["client-1"] == ("ttft:5x e2el:40000ms", 1.0)
    honest = plan_clients(workload, HONESTLY, duration_s=10.0)
    assert {(str(plan.targets), plan.weight) for plan in honest} == {claimed["client-1"]}
    assert len(choices(PROMISED, CHOICES)["deadline_part"]) > 1
    assert len(choices(PROMISED, CHOICES)["weight_multiple"]) > 1


def test_the_file_of_the_page_has_deadlines_and_weights_to_claim(tmp_path):
    page = ROOT / "docs/guide/attack.md"
    (block,) = re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    file = tmp_path / "promises.toml"
    file.write_text(block)
    promises = load_workload(str(file))
    assert choices(promises, CHOICES) == CHOICES
    claimed = Behaviour(deadline_part=0.5, weight_multiple=4.0)
    (wrong,) = attack_workload(promises, "none", claimed, Stakes()).scenarios[ATTACK].misbehaving
    assert (wrong.targets, wrong.weight) == ({"ttft": "1000ms", "e2el": "10000ms"}, 4.0)


def test_deadlines_and_weights_are_claimed_only_where_they_exist():
    left = choices(JUDGE, CHOICES)
    assert (left["deadline_part"], left["weight_multiple"]) == ((1.0,), (1.0,))
    with pytest.raises(
        UsageError,
        match=(
            "deadline_part: workload judge has no latency targets; add targets to it, or "
            "leave deadline_part out"
        ),
    ):
        attacked(Behaviour(deadline_part=0.5))
    with pytest.raises(
        UsageError,
        match=(
            "weight_multiple: workload judge has no weights; add weights to it, or leave "
            "weight_multiple out"
        ),
    ):
        attacked(Behaviour(weight_multiple=2.0))


def test_a_reacting_attacker_sends_the_same_programs():
    workload = attacked(Behaviour(reaction="eviction"))
    assert plan_clients(workload, ATTACK, duration_s=10.0)[0].reaction == "eviction"
    assert sent(workload, HONESTLY, 0) == sent(workload, ATTACK, 0)


def test_a_mix_is_refused():
    with pytest.raises(
        UsageError, match="workload mix: attacks need a workload with equal clients"
    ):
        attack_workload(load_workload("mix"), "none", HONEST, Stakes())


def test_settings_without_effect_give_equal_behaviours():
    assert Behaviour(in_turn=True, period_s=20.0).plain() == HONEST
    assert Behaviour(padding_of_victim=True).plain() == HONEST
    assert Behaviour(padding_fresh=True, keep_alive=4).plain() == HONEST
    assert Behaviour(reaction="refill", in_flight=4).plain() == Behaviour(reaction="refill")
    turns = Behaviour(identities=2, in_turn=True, on_share=0.5, period_s=20.0)
    assert turns.plain() == Behaviour(identities=2, in_turn=True, period_s=20.0)


def test_behaviours_read_back():
    for behaviour in KNOWN.values():
        assert behaviour_of(behaviour.changed()) == behaviour
    with pytest.raises(UsageError, match=r"unknown behaviour 'paddding_tokens'.*padding_tokens"):
        behaviour_of({"paddding_tokens": 3})


def test_random_choices_depend_on_the_number_and_are_never_tried_twice():
    all_choices = choices(JUDGE, CHOICES)
    whole = random_behaviours(all_choices, 3, 0, 12, [])
    first = random_behaviours(all_choices, 3, 0, 5, [])
    assert first + random_behaviours(all_choices, 3, 5, 7, first) == whole
    assert len(set(whole)) == 12
    assert HONEST not in whole
    assert random_behaviours(all_choices, 4, 0, 12, []) != whole
    assert all(one == one.plain() for one in whole)


def test_a_search_of_few_choices_ends():
    few = {"identities": (1, 2, 3)}
    found = random_behaviours(few, 0, 0, 10, [])
    assert {one.identities for one in found} == {2, 3}
    assert len(found) == 2


def test_files_omit_default_values():
    text = attack_file(attacked(Behaviour(padding_tokens=7)))
    assert "padding_tokens = 7" in text
    assert "max_new_multiple" not in text


def test_the_optimiser_goes_where_trials_were_good_and_repeats_itself():
    pytest.importorskip("optuna")
    all_choices = choices(JUDGE, CHOICES)
    tried = random_behaviours(all_choices, 3, 0, 40, [])
    scored = [(one, 1.0 if one.padding_tokens == 8000 else 0.0) for one in tried]
    found = tpe_behaviours(all_choices, 3, 40, 8, scored, tried)
    assert len({*found, *tried}) == 48
    assert sum(one.padding_tokens == 8000 for one in found) > 8 * 1 / 3 * 1 / 4
    assert tpe_behaviours(all_choices, 3, 40, 8, scored, tried) == found
    assert tpe_behaviours(all_choices, 4, 40, 8, scored, tried) != found


def test_the_optimiser_does_not_repeat_impossible_choices():
    pytest.importorskip("optuna")
    few = {"identities": (1, 2, 3, 5)}
    tried = [Behaviour(identities=2), Behaviour(identities=3)]
    found = tpe_behaviours(few, 0, 2, 8, [(tried[0], 0.5)], tried)
    assert found == [Behaviour(identities=5)]


def test_the_optimiser_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="--optimiser tpe: needs Optuna"):
        tpe_behaviours(choices(JUDGE, CHOICES), 0, 0, 1, [], [])
