"""Test many clients in few lines: groups, sizes, presence, names, and inheriting files."""

import tomllib
from itertools import pairwise
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.config.spec import to_toml
from fairbench.errors import DataError, UsageError
from fairbench.sim.run import simulate
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.model import ClientPresence, Sizes, WorkloadSpec
from fairbench.workloads.plan import expected_programs, last_arrival_s, program_stream
from fairbench.workloads.spec import load_workload
from fairbench.workloads.traffic import traffic_kind
from fairbench.workloads.traffic.arrivals import TrafficLoad
from tests.strategies import examples

SMALL = """
name = "small"
workload = "chat"
clients = 12
[scenarios.s1]
rate = 2.0
misbehaving = [{ client = 8, count = 2, rate_multiple = 3.0 }]
others = [{ client = 4, count = 4, workload = "judge", rate = 1.0, params = { dimensions = 5 } }]
"""


def spec(text=SMALL, **scenario):
    data = tomllib.loads(text)
    data["scenarios"]["s1"] |= scenario
    return WorkloadSpec.model_validate(data)


def rates(plans):
    return [plan.arrivals.rates[0].programs_per_s for plan in plans]


class TestSizes:
    @examples(20)
    @given(st.floats(0, 3), st.integers(1, 300))
    def test_zipf_sums_to_the_total_and_falls_by_its_law(self, exponent, count):
        sizes = Sizes(zipf=exponent).multiples(count)
        assert sum(sizes) == pytest.approx(count)
        for rank, size in enumerate(sizes, start=1):
            assert size == pytest.approx(sizes[0] * rank**-exponent)

    @examples(20)
    @given(st.integers(1, 20), st.integers(1, 200), st.floats(0.01, 0.99))
    def test_heavy_hitters_have_their_share(self, heavy, light, share):
        sizes = Sizes(heavy=heavy, heavy_share=share).multiples(heavy + light)
        assert sum(sizes) == pytest.approx(heavy + light)
        assert sum(sizes[:heavy]) == pytest.approx(share * (heavy + light))
        assert len(set(sizes[:heavy])) == len(set(sizes[heavy:])) == 1

    def test_heavy_hitters_are_well_behaved_and_run_the_program_of_the_workload(self):
        small = spec(sizes={"zipf": 1.0})
        plans = plan_clients(small, "s1")
        plain = [0, 1, 2, 3, 10, 11]
        harmonic = sum(1 / rank for rank in range(1, 7))
        expected = [2.0 * 6 / harmonic / rank for rank in range(1, 7)]
        assert [rates(plans)[number] for number in plain] == pytest.approx(expected)
        assert rates(plans)[4:8] == [1.0] * 4
        assert rates(plans)[8:10] == [6.0] * 2
        more = plan_clients(small, "s1", clients=30)
        assert sum(rates(more)[:4]) + sum(rates(more)[10:]) == pytest.approx(2.0 * 24)

    def test_counts_follow_rates(self):
        plans = plan_clients(spec(sizes={"heavy": 1, "heavy_share": 0.75}), "s1", num_programs=10)
        counts = [plan.arrivals.num_programs for plan in plans]
        assert counts == [45, 3, 3, 3, 10, 10, 10, 10, 30, 30, 3, 3]

    @pytest.mark.parametrize(
        ("sizes", "said"),
        [
            ({}, "give either zipf, or heavy"),
            ({"zipf": 1.0, "heavy": 1, "heavy_share": 0.5}, "give either"),
            ({"heavy": 2}, "heavy and heavy_share must be given together"),
            (
                {"heavy": 6, "heavy_share": 0.5},
                "scenarios.s1.sizes: heavy = 6: must be below 6, the",
            ),
        ],
    )
    def test_wrong_sizes_are_named(self, sizes, said):
        with pytest.raises(ValueError, match=said):
            spec(sizes=sizes)


class TestGroups:
    def test_every_client_of_a_group_follows_its_entry(self):
        plans = plan_clients(spec(), "s1")
        assert [plan.kind for plan in plans] == ["chat"] * 4 + ["judge"] * 4 + ["chat"] * 4
        assert [plan.misbehaving for plan in plans] == [False] * 8 + [True] * 2 + [False] * 2
        assert {plan.params.dimensions for plan in plans[4:8]} == {5}

    @pytest.mark.parametrize(
        ("scenario", "said"),
        [
            (
                {"misbehaving": [{"client": 3, "count": 2}]},
                ".others: client 4 is also in 'misbehaving'; list it once",
            ),
            ({"misbehaving": [{"client": 10, "count": 3}]}, "client . count - 1 = 12: must be bel"),
            ({"misbehaving": [{"client": 8, "count": 2}, {"client": 9}]}, "listed twice"),
        ],
    )
    def test_groups_do_not_overlap(self, scenario, said):
        with pytest.raises(ValueError, match=said):
            spec(**scenario)

    def test_too_few_clients_for_a_group_are_refused(self):
        with pytest.raises(UsageError, match=r"must be at least 10 .*\(client 9 is heavy\)"):
            plan_clients(spec(), "s1", clients=9)

    def test_names_by_range_weigh_each_client_of_the_range(self):
        small = spec(
            SMALL.replace(
                "[scen",
                """client_weights = { "client-1..3" = 4.0, client-2 = 9.0 }
            classes = { slow = { clients = ["client-5..6"] } }\n[scen""",
            )
        )
        assert small.client_weights == {"client-1": 4.0, "client-2": 9.0, "client-3": 4.0}
        assert small.classes["slow"].clients == ("client-5", "client-6")
        resolved = resolve({"workload": small, "scheduler": "vtc"})
        assert [plan.weight for plan in resolved.client_plans()][:5] == [1.0, 4.0, 9.0, 4.0, 1.0]

    @pytest.mark.parametrize("name", ["client-3..1", "client-0..1000"])
    def test_a_wrong_range_is_named(self, name):
        with pytest.raises(ValueError, match=f"{name}'?: must be an ascending range"):
            spec(SMALL.replace("[scen", f'client_weights = {{ "{name}" = 2.0 }}\n[scen'))


def test_a_heavier_group_gets_proportionally_more_when_all_wait():
    """With virtual counters, a client of weight 3 gets three times the service of weight 1."""
    even = {"input_min": 200, "input_max": 200, "output_min": 50, "output_max": 50}
    data = {
        **{"name": "tiers", "program": "single", "latency": "ttft", "clients": 6, "params": even},
        **{"duration_s": 10.0, "warmup_s": 3.0, "max_drain_s": 0.1},
        "client_weights": {"client-0..1": 3.0},
        "settings": {"engine.max_running_requests": 16},
        "scenarios": {"s1": {"rate": 12.0}},
    }
    workload = WorkloadSpec.model_validate(data)
    rows = simulate(resolve({"workload": workload, "scheduler": "vtc"})).summary["clients"]
    served = [row["service_rate_tok_s"] / row.get("weight", 1.0) for row in rows]
    assert [row.get("weight", 1.0) for row in rows] == [3.0] * 2 + [1.0] * 4
    assert served == [pytest.approx(fmean(served), rel=0.15)] * 6


class TestPresence:
    def test_windows_keep_only_their_arrivals_unmoved(self):
        here = {"windows": [[10.0, 20.0], [30.0, 35.0]]}
        stays, comes = (
            [arrival.at_s for arrival in program_stream(plan_clients(one, "s1")[0], seed=3)]
            for one in (spec(), spec(presence=here))
        )
        assert comes == [at_s for at_s in stays if 10 <= at_s < 20 or 30 <= at_s < 35]
        assert comes
        plan = plan_clients(spec(presence=here), "s1")[0]
        assert last_arrival_s([plan], 3) == comes[-1]
        assert expected_programs(plan) == pytest.approx(2.0 * 15)

    def test_windows_over_a_changing_rate_count_their_arrivals(self):
        ramp = traffic_kind("ramp", {"from_multiple": 0.0, "to_multiple": 1.0})
        source = ramp.usual(TrafficLoad(0, 1.0, 1.0, None, 100.0))
        windows = ClientPresence(windows=((0.0, 50.0), (90.0, 200.0)))
        assert windows.expected_programs(source) == pytest.approx(12.5 + 9.5)

    def test_random_stays_and_absences_have_their_means(self):
        chance = ClientPresence(stay_s=3.0, away_s=9.0)
        intervals = []
        for start_s, end_s in chance.intervals(Random(1)):
            if start_s > 40_000:
                break
            intervals.append((start_s, end_s))
        assert fmean(end_s - start_s for start_s, end_s in intervals) == pytest.approx(3, rel=0.06)
        gaps = [start_s - end_s for (_, end_s), (start_s, _) in pairwise(intervals)]
        assert fmean(gaps) == pytest.approx(9, rel=0.06)

    @pytest.mark.parametrize(("stay_s", "away_s"), [(2.0, 8.0), (40.0, 1.0)])
    def test_presence_is_as_likely_at_the_start_as_later(self, stay_s, away_s):
        """Renewal theory: the probability is stay / (stay + away) at any time."""
        chance = ClientPresence(stay_s=stay_s, away_s=away_s)
        there = [0, 0]
        for seed in range(300):
            for start_s, end_s in chance.intervals(Random(seed)):
                there[0] += start_s <= 0 < end_s
                there[1] += start_s <= 20 < end_s
                if end_s > 20:
                    break
        expected = 300 * stay_s / (stay_s + away_s)
        assert there == [pytest.approx(expected, abs=5 * 75**0.5)] * 2

    def test_each_client_comes_and_goes_independently_and_keeps_its_mean_rate(self):
        many = spec(
            rate=0.5, others=None, misbehaving=[], presence={"stay_s": 10.0, "away_s": 30.0}
        )
        plans = plan_clients(many, "s1", clients=60, duration_s=100.0)
        found = [len(list(program_stream(plan, seed=0))) for plan in plans]
        assert sum(map(expected_programs, plans)) == pytest.approx(0.5 * 100 * 60 / 4)
        assert sum(found) == pytest.approx(0.5 * 100 * 60 / 4, rel=0.3)
        assert len(set(found)) > 20

    def test_a_group_has_a_separate_presence_and_excludes_a_count_of_programs(self):
        windows = {"windows": [[0.0, 1.0]]}
        wrong = [{"client": 8, "presence": windows}]
        plans = plan_clients(spec(misbehaving=wrong), "s1")
        assert [plan.presence is not None for plan in plans] == [n == 8 for n in range(12)]
        with pytest.raises(
            UsageError, match="num_programs: not supported for clients that come and"
        ):
            plan_clients(spec(presence=windows), "s1", num_programs=3)

    def test_clients_of_a_group_come_and_go_as_the_scenario_says_unless_the_group_differs(self):
        usual, own = {"windows": [[0.0, 1.0]]}, {"windows": [[0.25, 0.5]]}
        wrong = [{"client": 8}, {"client": 9, "presence": own}]
        plans = plan_clients(spec(misbehaving=wrong, presence=usual), "s1")
        expected = [own if n == 9 else usual for n in range(12)]
        assert [plan.presence for plan in plans] == [ClientPresence(**one) for one in expected]

    @pytest.mark.parametrize(
        ("table", "said"),
        [
            ({}, "give either windows"),
            ({"stay_s": 1.0}, "stay_s and away_s must be given together"),
            ({"stay_s": 1e-300, "away_s": 1.0}, "greater than or equal to 0.001"),
            ({"windows": [[5.0, 4.0]]}, "in order and without overlap"),
            ({"windows": [[0.0, 4.0], [3.0, 6.0]]}, "in order and without overlap"),
        ],
    )
    def test_wrong_presence_is_named(self, table, said):
        with pytest.raises(ValueError, match=said):
            spec(presence=table)


class TestInheritance:
    def test_a_file_inherits_everything_it_does_not_set(self):
        chat, small = load_workload("chat"), spec()
        assert (small.name, small.description, small.clients) == ("small", "", 12)
        assert small.params == chat.params
        assert small.settings == chat.settings
        assert small.duration_s == chat.duration_s
        assert list(small.scenarios) == ["s1"]
        assert small.scenarios["s1"].rates == chat.scenarios["s1"].rates  # merged key by key
        assert small.workload is None

    def test_parameters_are_merged_except_those_of_another_program(self):
        few = spec(SMALL.replace("[scen", "params = { turns_max = 3 }\n[scen"))
        assert few.params == load_workload("chat").params | {"turns_max": 3}
        with pytest.raises(ValueError, match=r"params\s+Field required"):
            spec(SMALL.replace('"chat"\n', '"chat"\nprogram = "judge"\n', 1))

    def test_other_clients_are_the_well_behaved_ones_of_s1(self):
        judge = load_workload("judge")
        data = {"client": 4, "workload": "judge"}
        other = spec(others=[data]).scenarios["s1"].others[0]
        assert (other.program, other.rate) == ("judge", judge.scenarios["s1"].rate)
        assert other.params == judge.params
        even = {"client": 4, "workload": "vtc-overload", "rate": 9.0}
        other = spec(others=[even]).scenarios["s1"].others[0]
        assert (other.rate, other.arrivals.kind) == (9.0, "constant")

    def test_a_stored_experiment_contains_the_inherited_keys(self, tmp_path):
        stored = to_toml(resolve({"workload": spec(), "scheduler": "fcfs"}))
        assert 'workload = "' not in stored
        again = resolve({}, {}, tomllib.loads(stored))
        assert to_toml(again) == stored
        assert again.workload == spec()

    def test_paths_are_relative_to_the_file_that_names_them(self, tmp_path):
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "base.toml").write_text('name = "base"\nworkload = "../far.toml"\n')
        (tmp_path / "far.toml").write_text('name = "far"\nworkload = "chat"\nclients = 7\n')
        mine = tmp_path / "mine.toml"
        mine.write_text('name = "mine"\nworkload = "./sub/base.toml"\n')
        assert load_workload(str(mine)).clients == 7

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('workload = "chatt"', "unknown workload 'chatt'.*Did you mean 'chat'"),
            ('workload = "./none.toml"', "none.toml"),
            ('workload = "./mine.toml"', "the files refer to each other in a circle, or are"),
            ("workload = 3", "must be a name or a path"),
        ],
    )
    def test_a_wrong_inheritance_is_named_in_one_line(self, tmp_path, text, said):
        mine = tmp_path / "mine.toml"
        mine.write_text(f'name = "mine"\n{text}\n')
        with pytest.raises(DataError, match=said) as error:
            load_workload(str(mine))
        assert "\n" not in str(error.value)

    def test_an_unknown_key_in_a_table_of_a_population_is_named(self, tmp_path):
        mine = tmp_path / "mine.toml"
        mine.write_text(SMALL + "sizes = { zip = 1.0 }\n")
        with pytest.raises(DataError, match=r"scenarios\.s1\.sizes 'zip'.*Did you mean 'zipf'"):
            load_workload(str(mine))
