"""Test the attack search on short simulations: twins, resumption, budgets and refused input."""

import json
import signal
import sys
from dataclasses import replace
from math import inf, isclose

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import experiment
from fairbench.errors import Interrupted, UsageError
from fairbench.execute.tasks import RunContext, attempt
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.metrics.goodput import group_service
from fairbench.metrics.records import Padding
from fairbench.results.new_directories import run_folder
from fairbench.schedulers.parts.finishes import RequestWork
from fairbench.sim.run import simulate_tables
from fairbench.workloads.spec import load_workload
from fairbench_attacks.behaviour import KNOWN, Behaviour
from fairbench_attacks.flags import value_of
from fairbench_attacks.measure import AttackHarm, Seen, combined, harm, pair, replayed
from fairbench_attacks.report import attack_text, draw, processors_text
from fairbench_attacks.search import Search, worst_of
from fairbench_attacks.simulate import gpu_s_per_hour, programs_multiple, replay, tokens_per_hour
from fairbench_attacks.store import SearchPlan, SearchStore, Spent, Trial, known_workload
from fairbench_attacks.workload import ATTACK, Stakes, attack_workload
from fairbench_studies.attacks.rediscovery import (
    SOUGHT,
    Sought,
    by_scheduler,
    is_of_its_kind,
    loss,
    rediscover,
)

PLAN = SearchPlan(
    objective="harm", optimiser="random", trials=10, seeds=1, confirm=2, keep=2,
    victims=2, multiple=3.0, budget=None, scenario="none",
)  # fmt: skip


class InOrder:
    """An executor without processes, which can be interrupted after a given number of tasks."""

    def __init__(self, most=1000):
        self.left = most

    def run(self, tasks, interrupted):
        for index, task in enumerate(tasks):
            if interrupted():
                return
            result = attempt(task, interrupted)
            self.left -= 1
            if not self.left:
                interrupted.signum = signal.SIGINT
            yield index, result


def spec_of(**flags):
    usual = {"scheduler": "lpm", "workload": "judge", "scenario": "none", "duration": 3.0}
    flags = usual | {"request_rate": 2.0} | flags
    return experiment(flags, {}).model_copy(update={"max_drain_s": 1.0})


def search(tmp_path, plan=PLAN, most=1000, **flags):
    store = SearchStore.create(tmp_path, spec_of(**flags), plan)
    return Search(store, RunContext(executor=InOrder(most)))


def files(path):
    return {
        file.relative_to(path): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in (".lock", "attack.json", "cpu.json")
    }


def test_the_honest_twin_gains_exactly_nothing():
    spec = spec_of(duration=40.0, request_rate=0.15).model_copy(update={"max_drain_s": 100.0})
    workload = attack_workload(spec.workload, "none", Behaviour(), Stakes())
    (found,) = replay([pair(spec, workload)], 2, RunContext(executor=InOrder()))
    for key in ("gain", "kept", "finished", "p95"):
        assert found[key] == {"mean": 1.0, "low": 1.0, "high": 1.0}


def test_padding_starves_the_victims_of_lpm():
    spec = spec_of(duration=10.0)
    padded = attack_workload(spec.workload, "none", Behaviour(padding_tokens=8000), Stakes())
    (found,) = replay([pair(spec, padded)], 1, RunContext(executor=InOrder()))
    assert found["kept"]["mean"] < 0.7


@pytest.mark.slow
def test_an_interrupted_search_that_is_resumed_ends_with_the_same_bytes(tmp_path):
    whole = search(tmp_path / "whole")
    found = whole.run()
    assert len(found) == 2
    # The twin and eight trials are finished when the ninth and tenth are running.
    cut = search(tmp_path / "cut", most=10)
    with pytest.raises(Interrupted, match="--resume"):
        cut.run()
    assert len(cut.store.trials()) == 8
    again = Search(SearchStore(cut.store.path), RunContext(executor=InOrder()))
    assert again.run() == found
    assert files(cut.store.path) == files(whole.store.path)


@pytest.mark.slow
def test_the_results_of_the_twin_are_kept_with_the_search(tmp_path):
    whole = search(tmp_path / "whole")
    whole.run()
    # The run of the twin is kept, but not the first trial after it.
    cut = search(tmp_path / "cut", most=2)
    with pytest.raises(Interrupted):
        cut.run()
    assert cut.store.spent().simulations == len(cut.store.honest()) == 1
    Search(SearchStore(cut.store.path), RunContext(executor=InOrder())).run()
    assert cut.store.spent().simulations == whole.store.spent().simulations


@pytest.mark.slow
def test_a_finished_search_can_be_extended(tmp_path):
    ended = search(tmp_path, replace(PLAN, trials=2))
    ended.run()
    first = ended.store.trials()
    words = ["attack", "--resume", str(ended.store.path), "--trials", "4", "--json"]
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, json.loads(result.stdout)["trials"]) == (0, 4)
    assert ended.store.trials()[:2] == first
    assert ended.store.plan() == replace(PLAN, trials=4)


def test_a_resumed_search_keeps_its_settings(tmp_path):
    store = SearchStore.create(tmp_path, spec_of(), PLAN)
    with run_folder(store.path, "search"):
        words = ["attack", "--resume", str(store.path), "--trials", "400"]
        result = CliRunner().invoke(app, words)
    assert (result.exit_code, store.plan()) == (2, PLAN)
    assert "another process is executing this run; wait until it ends" in result.stderr


@pytest.mark.slow
def test_the_most_harmful_attacks_come_first_and_can_be_replayed(tmp_path):
    done = search(tmp_path)
    found = done.run()
    values = [value_of(trial.harms, "harm") for trial in done.store.trials()]
    assert value_of(found[0].trial.harms, "harm") == max(values)
    workload = load_workload(str(done.store.path / "worst" / "1.toml"))
    expected = attack_workload(
        done.spec.workload, "none", found[0].trial.behaviour, Stakes(2, 3.0), name="attack-1"
    )
    assert workload.scenarios["attack"].description == expected.scenarios["attack"].description
    assert (workload.duration_s, workload.warmup_s) == (done.spec.duration_s, done.spec.warmup_s)
    again = replay(
        [pair(done.spec.model_copy(update={"seed": 1000}), workload)],
        2,
        RunContext(executor=InOrder()),
    )
    assert again == [found[0].harm | {"programs": pytest.approx(1.0)}]


@pytest.mark.slow
def test_the_longest_latencies_come_first_by_that_objective(tmp_path):
    spec = spec_of(duration=20.0, request_rate=0.3, seed=4).model_copy(update={"max_drain_s": 20.0})
    store = SearchStore.create(tmp_path, spec, replace(PLAN, objective="latency"))
    done = Search(store, RunContext(executor=InOrder()))
    found = done.run()
    harms = [one.harms[0] for one in done.store.trials()]
    assert [one.trial.harms[0].p95 for one in found] == sorted([one.p95 for one in harms])[:-3:-1]
    by_harm = sorted(harms, key=lambda one: one.kept)
    assert by_harm[1].p95 < found[1].trial.harms[0].p95


def test_latency_is_the_mean_over_seeds_and_infinite_without_values():
    longer, endless = AttackHarm(1.0, 1.0, 1.0, 3.0, False), AttackHarm(1.0, 1.0, 1.0, None, False)
    assert value_of((longer, longer._replace(p95=2.0)), "latency") == 2.5
    assert value_of((longer, endless), "latency") == inf


def test_lost_hits_are_a_fraction_and_zero_where_there_were_none():
    honest, attack = Seen(1.0, 1.0, 1, 1.0, False, 0.8), Seen(1.0, 1.0, 1, 1.0, False, 0.2)
    some, none = harm(attack, honest), harm(attack, honest._replace(hits=0.0))
    assert (some.hits, none.hits) == (0.25, None)
    assert value_of((some,), "hits") == 0.75
    assert value_of((some, none), "hits") == 0.375
    assert combined([some])["hits"]["mean"] == 0.25


SCAN = Behaviour(padding_tokens=3000, padding_fresh=True)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [SCAN, replace(SCAN, keep_alive=2)])
def test_memory_attacks_cost_hits_under_lru_and_are_reproducible(behaviour):
    """A victim uses two documents of 2,000 tokens at a time. Its share is 7,500 tokens."""
    flags = {"workload": "long-qa", "duration": 600.0, "request_rate": 0.01, "seed": 3}
    sets = {"long-qa.document_tokens": 2000.0, "long-qa.document_sigma": 0.0}
    sets |= {"long-qa.gap_mean_s": 10.0, "engine.max_total_tokens": 30_000}
    kept = {}
    for eviction in ("lru", "max-min"):
        usual = {"scheduler": "fcfs", "scenario": "none", "eviction": eviction}
        spec = experiment(usual | flags, sets).model_copy(update={"max_drain_s": 60.0})
        both = pair(spec, attack_workload(spec.workload, "none", behaviour, Stakes()))
        (found,) = replay([both], 1, RunContext(executor=InOrder()))
        assert replay([both], 1, RunContext(executor=InOrder())) == [found]
        kept[eviction] = found["hits"]["mean"]
    assert kept["lru"] < kept["max-min"] <= 1


def test_of_equally_harmful_behaviours_the_first_is_listed_first():
    mild, bad, worse = (AttackHarm(1.0, kept, kept, 1.0, False) for kept in (0.9, 0.5, 0.2))
    trials = [
        Trial(number, Behaviour(identities=number + 2), harms, error)
        for number, (harms, error) in enumerate(
            [((mild,), ""), ((worse,), ""), ((), "too long"), ((bad,), ""), ((worse,), "")]
        )
    ]
    assert [one.number for one in worst_of(trials, "harm", 2)] == [1, 3]
    assert [one.number for one in worst_of(trials, "harm", 9)] == [1, 3, 0]


def test_latency_needs_a_twin_beside_which_programs_end(tmp_path):
    stuck = search(tmp_path, replace(PLAN, objective="latency", multiple=30.0), request_rate=20.0)
    with pytest.raises(UsageError, match=r"latency: at seed 0, in the run with the honest client"):
        stuck.run()


def test_a_figure_is_drawn(tmp_path):
    pytest.importorskip("seaborn")
    few = {"trials": 2, "confirm": 1, "keep": 1}
    done = search(tmp_path, SearchPlan(**(vars_of(PLAN) | few)))
    draw(done, done.run(), [tmp_path / "attack.svg"])
    assert "Attacks on lpm, judge, dp 1" in (tmp_path / "attack.svg").read_text()


@pytest.mark.parametrize("which", ["budget", "gpu_budget"])
def test_an_attacker_without_requests_is_within_any_budget(tmp_path, which):
    plan = SearchPlan(**(vars_of(PLAN) | {which: 1e-9}))
    seeker = search(tmp_path, plan, duration=1e-3)
    attack = replayed(seeker.spec, seeker.workload(Behaviour()), ATTACK)
    assert tokens_per_hour(attack) == gpu_s_per_hour(attack) == 0


def test_an_attack_keeps_within_its_budget(tmp_path):
    spec = spec_of(duration=600.0, request_rate=0.31)
    greedy = Behaviour(padding_tokens=8000)
    store = SearchStore.create(tmp_path, spec, PLAN)
    free = Search(store, RunContext()).workload(greedy)
    asked = tokens_per_hour(_of(spec, free))
    # In an hour, 3 x 0.31 programs/s arrive. Each has four calls with 8,000 tokens of padding,
    # about 2,977 of articles, and 770 of output.
    assert isclose(asked, 3600 * 3 * 0.31 * (4 * (8000 + 2977) + 2 * 770), rel_tol=0.1)
    bounded = SearchStore.create(
        tmp_path, spec, SearchPlan(**(vars_of(PLAN) | {"budget": asked / 4}))
    )
    kept = Search(bounded, RunContext()).workload(greedy)
    assert tokens_per_hour(_of(spec, kept)) == pytest.approx(asked / 4)
    assert kept.scenarios["honest"] == free.scenarios["honest"]


def test_an_attack_keeps_within_its_gpu_time(tmp_path):
    spec = spec_of(duration=600.0, request_rate=0.31)
    free = Search(SearchStore.create(tmp_path, spec, PLAN), RunContext())
    honest, padded = (
        gpu_s_per_hour(_of(spec, free.workload(one)))
        for one in (Behaviour(), Behaviour(padding_tokens=8000))
    )
    # Each of the 4 prompts computes its padding once, and 770 decode steps read it from the cache.
    costs = ProfileCosts(load_profile(spec.gpu))
    read_s = 770 * (costs.decode_step_s(1, 8000) - costs.decode_step_s(1, 0))
    attended_s = 4 * (costs.prefill_s(8000, 2977) - costs.prefill_s(0, 2977))
    assert padded - honest == pytest.approx(3600 * 3 * 0.31 * (read_s + attended_s), rel=0.1)
    bounded = {"gpu_budget": honest, "budget": 1e12}
    store = SearchStore.create(tmp_path, spec, SearchPlan(**(vars_of(PLAN) | bounded)))
    kept = Search(store, RunContext()).workload(Behaviour(padding_tokens=8000))
    assert gpu_s_per_hour(_of(spec, kept)) == pytest.approx(honest, rel=1e-3)


def test_fresh_padding_is_computed_at_its_first_use_only(tmp_path):
    spec = spec_of(duration=600.0, request_rate=0.31)
    free = Search(SearchStore.create(tmp_path, spec, PLAN), RunContext())
    padded = Behaviour(padding_tokens=8000)
    cached, fresh, pinned = (
        gpu_s_per_hour(_of(spec, free.workload(one)))
        for one in (
            padded,
            replace(padded, padding_fresh=True),
            replace(padded, padding_fresh=True, keep_alive=4),
        )
    )
    work, calls = RequestWork(ProfileCosts(load_profile(spec.gpu))), 3600 * 3 * 0.31 * 4
    assert fresh - cached == pytest.approx(calls * work.gpu_s(0, 8000, 0))
    assert pinned - fresh == pytest.approx(calls * 4 * work.gpu_s(7999, 1, 1))


def test_longer_answers_count_in_both_budgets(tmp_path):
    spec = spec_of(duration=600.0, request_rate=0.31)
    free = Search(SearchStore.create(tmp_path, spec, PLAN), RunContext())
    honest, longer = (
        _of(spec, free.workload(one)) for one in (Behaviour(), Behaviour(output_multiple=16))
    )
    programs = 3600 * 3 * 0.31  # each has four calls and 770 output tokens
    more = tokens_per_hour(longer) - tokens_per_hour(honest)
    assert more == pytest.approx(programs * 2 * 15 * 770)
    # for a mean call, whose context has grown by half of its output
    costs = ProfileCosts(load_profile(spec.gpu))
    token_s = costs.decode_step_s(1, 1) - costs.decode_step_s(1, 0)
    request_s = (costs.decode_step_s(128, 0) - costs.decode_step_s(64, 0)) / 64
    input_tokens = tokens_per_hour(honest) / programs / 4 - 2 * 770 / 4
    took_s = [770 * m * (token_s * (input_tokens + 770 * m / 4 / 2) + request_s) for m in (1, 16)]
    assert gpu_s_per_hour(longer) - gpu_s_per_hour(honest) == pytest.approx(
        programs * (took_s[1] - took_s[0]), rel=0.02
    )


def test_longer_answers_are_equally_useful_once_all_is_over(tmp_path):
    free = search(tmp_path, duration=20.0, request_rate=0.2)
    runs = []
    for one in (Behaviour(), Behaviour(output_multiple=4, padding_tokens=500)):
        spec = _of(free.spec.model_copy(update={"max_drain_s": 600.0}), free.workload(one))
        tables, _ = simulate_tables(spec, lambda: False)
        padding = Padding(one.padding_tokens, one.output_multiple)
        runs.append((tables.requests.output_tokens, group_service(tables, {0: padding}, 600.0)))
    (short, plain), (long, longer) = runs
    assert plain == longer
    assert plain.fraction == 1
    assert plain.finished == plain.programs > 3
    assert sorted(set(long)) == [2, 8, 256, 1024]
    assert sum(short) < sum(long)


def test_a_behaviour_that_no_workload_can_have_is_kept_with_its_error(tmp_path):
    seeker = search(tmp_path)
    many, few = seeker.try_all([Behaviour(identities=1000), Behaviour(identities=2)], 0)
    assert "clients = 1002: must be less than or equal to 1000" in many.error
    assert (many.harms, few.error) == ((), "")
    assert few.harms == seeker.try_all([Behaviour(identities=2)], 0)[0].harms


@pytest.mark.slow
def test_a_search_ends_when_its_cpu_time_is_spent(tmp_path):
    more = SearchPlan(**(vars_of(PLAN) | {"trials": None, "cpu_hours": 1.0}))
    counted = search(tmp_path, more)
    counted.spent = Spent(0, 3599.999)
    counted.run()
    assert len(counted.store.trials()) == 8  # a whole batch of trials
    spent = counted.store.spent()
    # nine with the first seed (trials and twin), six with two more seeds
    assert spent.simulations == 9 + 6
    told = json.loads((counted.store.path / "attack.json").read_text())
    assert told["cpu_hours"] == spent.cpu_s / 3600
    assert spent.cpu_s > 3600
    assert Search(SearchStore(counted.store.path), RunContext()).spent == spent


def test_known_attacks_are_found_by_their_kind(tmp_path):
    seeker = search(tmp_path, duration=10.0)
    sought = [Sought("padding-3k", "lpm", "padding_tokens"), Sought("bursts", "lpm", "on_share")]
    trials = [
        Trial(0, Behaviour(padding_tokens=8000, in_flight=4), (_kept(0.2),)),
        # this behaviour makes both choices, so it counts as neither kind
        Trial(1, Behaviour(padding_tokens=8000, split=4), (_kept(0.0),)),
        Trial(
            2, Behaviour(padding_tokens=20_000), (), "every request is larger than the KV pool of"
        ),
    ]
    seeker.store.save_trials(trials)
    seeker.plan = SearchPlan(**(vars_of(PLAN) | {"trials": 3}))
    padding, bursts = rediscover(seeker, sought)
    assert (padding["trial"], padding["its_loss"]) == (0, 0.8)
    assert padding["found"] == (0.8 >= 0.9 * padding["loss"] > 0)
    assert padding["loss"] == pytest.approx(loss(_known_harms(seeker, "padding-3k")))
    assert (bursts["found"], bursts["trial"]) == (False, None)


def test_searched_attacks_are_known_and_in_the_order_of_schedulers():
    groups = [scheduler for scheduler, _ in by_scheduler()]
    assert len(set(groups)) == len(groups)
    for one in SOUGHT:
        assert is_of_its_kind(KNOWN[one.attack], one)
        others = [other for other in SOUGHT if other.choice != one.choice]
        assert not any(is_of_its_kind(KNOWN[one.attack], other) for other in others)


def _kept(part):
    return AttackHarm(1.0, part, None, None, False)


def _known_harms(seeker, name):
    return seeker.try_all([KNOWN[name]], 0)[0].harms


@pytest.mark.parametrize("duration", [60.0, 100.0, 600.0])
def test_every_trial_sends_as_many_programs_as_its_twin(tmp_path, duration):
    """The counts agree even if the duration is not a whole number of periods."""
    spec = spec_of(duration=duration)
    made = Search(SearchStore.create(tmp_path, spec, PLAN), RunContext())
    for behaviour in (
        Behaviour(),
        Behaviour(on_share=0.1, period_s=120.0),
        Behaviour(on_share=0.25),
        Behaviour(identities=8, in_turn=True, period_s=20.0),
    ):
        both = pair(spec, made.workload(behaviour))
        assert programs_multiple(*both) == pytest.approx(1.0)


def test_a_file_that_sends_more_than_its_twin_is_reported():
    bursts = known_workload("bursts")
    short, whole = (pair(spec_of(duration=time_s), bursts) for time_s in (100.0, 120.0))
    # the bursts are on for 30 s of each 100 s, not for 25 s
    assert programs_multiple(*short) == pytest.approx(1.2)
    assert programs_multiple(*whole) == pytest.approx(1.0)
    row = {"about": "bursts", "more": False, "p95": None}
    row |= dict.fromkeys(("kept", "finished", "gain", "hits"), None)
    assert "bursts, 1.20 times the programs" in attack_text("", [row | {"programs": 1.2}])
    assert "times" not in attack_text("", [row | {"programs": 1.0}])


def _of(spec, workload):
    count = {"clients": workload.clients, "scenario": ATTACK}
    return spec.model_copy(update={"workload": workload, **count})


def vars_of(plan):
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def test_harm_by_hand():
    honest, attack = Seen(10.0, 0.8, 20, 4.0, False), Seen(15.0, 0.2, 5, 12.0, True)
    assert harm(attack, honest) == AttackHarm(1.5, 0.25, 0.25, 3.0, True)
    assert harm(attack, honest._replace(more=True)).p95 is None
    assert harm(attack._replace(p95_s=None), honest).p95 is None
    both = combined([AttackHarm(1.0, 0.2, 0.2, 2.0, False), AttackHarm(3.0, 0.4, 0.4, 4.0, True)])
    assert both["gain"]["mean"] == 2
    assert (both["p95"]["mean"], both["more"]) == (3, True)


def test_trials_are_written_and_read(tmp_path):
    store = SearchStore.create(tmp_path, spec_of(), PLAN)
    assert store.trials() == []
    trials = [
        Trial(0, Behaviour(identities=2), (AttackHarm(1.5, 0.25, 0.25, None, True),)),
        Trial(
            1, Behaviour(padding_tokens=20_000), (), "every request is larger than the KV pool of"
        ),
    ]
    store.save_trials(trials)
    assert store.trials() == trials
    assert store.plan() == PLAN


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("search.json", {"trials": "x"}, "search.json: trials = 'x': must be a valid integer"),
        ("search.json", {"seeds": 0}, "search.json: seeds = 0: must be greater than or equal to 1"),
        (
            "search.json",
            {"objective": "harmm"},
            "objective = 'harmm': choose from gain, harm, latency, hits. Did you mean 'harm'",
        ),
        ("search.json", {"victims": "a"}, "search.json: victims = 'a': must be a valid integer"),
        (
            "search.json",
            {"multiple": 1e300},
            "programs in total, and at most 2,000,000 are allowed",
        ),
        ("search.json", {"kep": 3}, "search.json: kep = 3: Unexpected keyword argument"),
        ("trials.json", {"trials": 5}, "trials.json: trials: must be a list"),
        ("trials.json", {"trials": [[]]}, "trials.json: trials[0]: must be an object"),
        ("trials.json", {"trials": [{"trial": 0}]}, "trials.json: trials[0]: behaviour: missing"),
        (
            "trials.json",
            {"trials": [{"trial": 0, "behaviour": {"identities": 0}}]},
            "trials[0]: behaviour.identities = 0: must be greater than or equal to 1",
        ),
        (
            "trials.json",
            {"trials": [{"trial": 0, "behaviour": {}, "harms": []}]},
            "trials.json: trials[0] must have the field harms or the field error",
        ),
        ("honest.json", {"0": {"a": 1}}, "honest.json: 0: "),
        ("honest.json", {"x": {}}, "honest.json: 'x' is not a seed"),
        ("cpu.json", {"cpu_s": "x"}, "cpu.json: cpu_s = 'x': must be a valid number"),
        ("cpu.json", {"cpu": 1}, "cpu.json: cpu = 1: Unexpected keyword argument"),
    ],
)
def test_a_damaged_search_is_one_line(tmp_path, file, content, complaint):
    store = SearchStore.create(tmp_path, spec_of(), PLAN)
    whole = vars_of(PLAN) if file == "search.json" else {}
    (store.path / file).write_text(json.dumps(whole | content))
    result = CliRunner().invoke(app, ["attack", "--resume", str(store.path)])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_search_that_cannot_be_written_stops(tmp_path, monkeypatch):
    store = SearchStore.create(tmp_path, spec_of(), PLAN)

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryDirectory", refuse)  # root may write everywhere
    result = CliRunner().invoke(app, ["attack", "--resume", str(store.path)])
    assert result.exit_code == 2
    wanted = f"fairbench: --resume {store.path}: cannot be written: Permission denied\n"
    assert result.stderr == wanted


def test_a_missing_optimiser_is_reported_before_any_trial(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["attack", "--optimiser", "tpe"])
    assert result.exit_code == 2
    assert "--optimiser tpe: needs Optuna: pip install 'fairbench-llm[attack]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_attack_of_too_many_programs_is_refused(tmp_path):
    file = tmp_path / "flood.toml"
    sends = "rate = 1.0\nmisbehaving = [{ client = 0, rate_multiple = "
    scenarios = (f"[scenarios.honest]\n{sends}4.0 }}]", f"[scenarios.attack]\n{sends}1e9 }}]")
    file.write_text("\n".join(('name = "flood"', 'workload = "judge"', *scenarios)))
    result = CliRunner().invoke(app, ["attack", str(file)])
    assert result.exit_code == 2
    assert "programs in total, and at most 2,000,000 are allowed" in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["sybil", "--trials", "3"], "sybil: an attack was given, so the command does"),
        (["--resume", "x", "--seed", "0"], "--resume x continues the search with its stored"),
        (
            ["--workload", "mix"],
            "workload mix: attacks need a workload with equal clients; choose a",
        ),
        (["--objective", "p95"], "--objective p95: choose from gain, harm, latency"),
        (["--budget", "0"], "--budget 0: must be above 0"),
        (["--budget", "inf"], "--budget inf: must be above 0"),
        (["--multiple", "1e300"], "--multiple 1e+300: duration_s = "),
        (["--gpu-budget", "-1"], "--gpu-budget -1: must be above 0"),
        (["--cpu-hours", "0"], "--cpu-hours 0: must be above 0"),
        (["--rediscover", "--scheduler", "lpm"], "--rediscover cannot be combined with attacks, a"),
        (["judge"], "workload judge has no scenario 'honest': choose another scenario"),
        (["--resume", "nowhere"], "nowhere"),
        (["--victims", "100000"], "an attack on judge is not valid: clients = 100001: must be"),
        (["--quick", "--duration", "0"], "duration_s = 0.0: must be greater than 0"),
        (["sybl"], "unknown attack 'sybl': choose from"),
    ],
)
def test_wrong_usage_is_refused_in_one_line(tmp_path, words, complaint, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["attack", *words])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_rediscovery_that_is_interrupted_does_not_say_how_to_go_on(tmp_path):
    cut = search(tmp_path, replace(PLAN, confirm=0, keep=0), most=2)
    with pytest.raises(
        Interrupted, match="--rediscover cannot be continued; its trials are in"
    ) as error:
        rediscover(cut, [Sought("padding-3k", "lpm", "padding_tokens")])
    assert "--resume" not in str(error.value)


def test_a_rediscovery_cannot_be_resumed(tmp_path):
    store = SearchStore.create(tmp_path, spec_of(), replace(PLAN, confirm=0, keep=0))
    result = CliRunner().invoke(app, ["attack", "--resume", str(store.path)])
    assert result.exit_code == 2
    assert (
        "this directory was made by --rediscover, which cannot be continued; run --rediscover again"
    ) in result.stderr


@pytest.mark.slow
def test_a_quick_search_finds_the_padding_that_harms_lpm(tmp_path):
    words = ["attack", "--quick", "--scheduler", "lpm", "--result-dir", str(tmp_path), "--json"]
    result = CliRunner().invoke(app, words)
    worst = json.loads(result.stdout)["worst"][0]
    assert worst["behaviour"]["padding_tokens"] >= 3000
    assert worst["kept"]["mean"] < 0.3


def test_short_cpu_times_are_shown_in_seconds():
    assert processors_text(0.0007) == "3 s"
    assert processors_text(2.014) == "2.01 hours"
