"""Test the clients of a run: the paper's scenarios ([DLPM] Table 3), counts, rates, determinism."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import UsageError
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import expected_programs, program_stream
from fairbench.workloads.spec import load_workload, with_settings, workload_names
from fairbench.workloads.traffic.arrivals import Rate
from tests.workloads.workload_fakes import calls_of


def plans(workload="tot", scenario="s1", **arguments):
    return plan_clients(load_workload(workload), scenario, **arguments)


def programs(plan, seed=0, **arguments):
    return list(program_stream(plan, seed=seed, **arguments))


def differing(wrong, calm):
    """Return the parameters of the heavy client that differ, as (its value, the others')."""
    names = type(calm.params).__dataclass_fields__
    pairs = {name: (getattr(wrong.params, name), getattr(calm.params, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


PAPERS = [name for name in workload_names() if not name.startswith("vtc-")]


class TestTable3:
    """Client 0 is heavy in exactly one way, and the others are equal."""

    @pytest.mark.parametrize(
        ("workload", "scenario", "expected"),
        [
            ("tot", "s1", {"branches": (4, 2)}),
            ("judge", "s1", {"dimensions": (16, 2)}),
            ("long-qa", "s1", {}),
            ("tot", "s2", {"question_scale": (10.0, 1.0)}),
            ("judge", "s2", {"extra_tokens": (600, 0)}),
            ("long-qa", "s2", {"document_scale": (2.0, 1.0)}),
        ],
    )
    def test_synthetic_scenarios_match_the_table(self, workload, scenario, expected):
        wrong, *calm = plans(workload, scenario)
        assert [plan.misbehaving for plan in (wrong, *calm)] == [True, False, False]
        assert calm[0].params == calm[1].params
        assert differing(wrong, calm[0]) == expected
        multiple = wrong.arrivals.rates[0].programs_per_s / calm[0].arrivals.rates[0].programs_per_s
        assert multiple == (4.0 if (workload, scenario) == ("long-qa", "s1") else 1.0)

    def test_the_structure_of_s2_is_the_same_for_all(self):
        assert {plan.params.branches for plan in plans("tot", "s2")} == {3}
        assert {plan.params.dimensions for plan in plans("judge", "s2")} == {8}

    def test_in_chat_client_0_floods_and_client_2_returns_to_normal_midway(self):
        calm0, calm1, returning, flooding = plans("chat", "s1", duration_s=100.0)
        normal = calm0.arrivals.rates[0].programs_per_s
        assert calm0.arrivals.rates == calm1.arrivals.rates == (Rate(0.0, normal),)
        assert returning.arrivals.rates == (Rate(0.0, 4 * normal), Rate(50.0, normal))
        assert flooding.arrivals.rates == (Rate(0.0, 4 * normal),)
        assert [p.misbehaving for p in (calm0, calm1, returning, flooding)] == [
            False, False, True, True,
        ]  # fmt: skip

    @pytest.mark.parametrize("workload", PAPERS)
    def test_scenario_none_has_no_heavy_client_and_the_rates_of_s1(self, workload):
        calm, s1 = plans(workload, "none"), plans(workload, "s1")
        assert len(calm) == len(s1)
        for plan in calm:
            assert not plan.misbehaving
            assert (plan.params, plan.arrivals.rates) in [
                (p.params, p.arrivals.rates) for p in s1 if not p.misbehaving
            ]


class TestRatesAndCounts:
    def test_a_default_rate_is_per_gpu_and_a_given_one_is_not(self):
        own = load_workload("tot").scenario("s1").rate
        assert plans(dp=4)[1].arrivals.rates == (Rate(0.0, 4 * own),)
        assert plans(dp=4, request_rate=0.5)[1].arrivals.rates == (Rate(0.0, 0.5),)

    def test_arrivals_stop_at_the_duration(self):
        plan = plans(duration_s=50.0, request_rate=2.0)[1]
        times = [arrival_s for arrival_s, _ in programs(plan)]
        assert times == sorted(times)
        assert 60 < len(times) < 140
        assert times[-1] < 50.0

    def test_a_number_of_programs_extends_the_default_duration(self):
        spec = load_workload("tot")
        plan = plans(num_programs=40, request_rate=0.01)[1]
        times = [arrival_s for arrival_s, _ in programs(plan)]
        assert len(times) == 40
        assert times[-1] > spec.duration_s

    def test_number_of_programs_within_a_given_duration(self):
        plan = plans(num_programs=40, request_rate=0.01, duration_s=100.0)[1]
        assert len(programs(plan)) < 10

    def test_a_client_at_four_times_the_rate_sends_four_times_as_many(self):
        assert [plan.arrivals.num_programs for plan in plans("long-qa", num_programs=5)] == [
            20,
            5,
            5,
        ]

    def test_counts_of_a_client_that_returns_to_normal_midway(self):
        # 100 programs at 2/s take 50 s: 25 s at 8/s and 25 s at 2/s make 250 programs.
        plan = plans("chat", num_programs=100, request_rate=2.0)[2]
        assert plan.arrivals.num_programs == 250
        assert plan.arrivals.rates == (Rate(0.0, 8.0), Rate(25.0, 2.0))

    def test_all_programs_arrive_together(self):
        for plan in plans("chat", num_programs=4, request_rate=inf):
            times = [arrival_s for arrival_s, _ in programs(plan, "chat")]
            assert set(times) == {0.0}
        counts = [p.arrivals.num_programs for p in plans("chat", num_programs=4, request_rate=inf)]
        assert counts == [4, 4, 10, 16]

    def test_additional_clients_are_well_behaved(self):
        more = plans(clients=6)
        assert [plan.client for plan in more] == [f"client-{i}" for i in range(6)]
        assert [plan.misbehaving for plan in more] == [True] + [False] * 5

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"workload": "chat", "clients": 3}, "clients = 3.*at least 4.*client 3 is heavy"),
            ({"clients": 0}, "clients = 0.*at least 1"),
            ({"request_rate": -1.0}, "request_rate = -1.0: must be above 0 or inf"),
            ({"request_rate": nan}, "request_rate = nan"),
            ({"request_rate": inf}, "request_rate = inf: needs num_programs"),
            ({"burstiness": 0.0}, "burstiness = 0.0: must be above 0 or inf$"),
            ({"burstiness": nan}, "burstiness = nan"),
            ({"num_programs": 0}, "num_programs = 0"),
            ({"duration_s": -5.0}, "duration_s = -5.0"),
            ({"dp": 0}, "dp = 0"),
            ({"workload": "chat", "scenario": "s2"}, "scenario of chat 's2': choose from none, s1"),
        ],
    )
    def test_impossible_values_are_refused(self, arguments, message):
        with pytest.raises(UsageError, match=message):
            plans(**arguments)


class TestExpectedPrograms:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"request_rate": 2.0, "duration_s": 50.0}, [100, 100, 100]),
            ({"num_programs": 7}, [7, 7, 7]),
            ({"num_programs": 7, "request_rate": inf}, [7, 7, 7]),
            ({"num_programs": 700, "request_rate": 2.0, "duration_s": 50.0}, [100, 100, 100]),
            # four times the rate, and one client only for the first half
            ({"workload": "chat", "request_rate": 1.0, "duration_s": 40.0}, [40, 40, 100, 160]),
            ({"workload": "chat", "request_rate": inf, "num_programs": 4}, [4, 4, 10, 16]),
        ],
    )
    def test_rates_and_counts(self, arguments, expected):
        counts = [expected_programs(plan) for plan in plans(**arguments)]
        assert counts == pytest.approx(expected)

    def test_the_rate_is_the_average_of_the_arrivals(self):
        plan = plans("chat", request_rate=1.0, duration_s=400.0)[2]
        counts = [len(programs(plan, seed=seed)) for seed in range(20)]
        # 1,000 programs, within 7 (the standard error of a mean of 20 Poisson counts)
        assert expected_programs(plan) == pytest.approx(1_000)
        assert sum(counts) / 20 == pytest.approx(1_000, abs=30)


class TestSettings:
    def test_a_parameter_changes_both_behaviours_unless_the_scenario_differs(self):
        spec = with_settings(load_workload("tot"), {"branches": 3, "output_tokens": 64})
        wrong, calm, _ = plan_clients(spec, "s1")
        assert (wrong.params.branches, calm.params.branches) == (4, 3)
        assert (wrong.params.output_tokens, calm.params.output_tokens) == (64, 64)

    def test_a_parameter_overrides_the_value_of_the_scenario_for_all(self):
        spec = with_settings(load_workload("tot"), {"branches": 2})
        assert {plan.params.branches for plan in plan_clients(spec, "s2")} == {2}

    def test_a_parameter_of_heavy_clients_reaches_only_these(self):
        changes = {"misbehaving.branches": 5, "misbehaving.rate_multiple": 2.0}
        wrong, calm, _ = plan_clients(with_settings(load_workload("tot"), changes), "s1")
        assert (wrong.params.branches, calm.params.branches) == (5, 2)
        assert wrong.arrivals.rates[0].programs_per_s == 2 * calm.arrivals.rates[0].programs_per_s

    def test_setting_a_parameter_leaves_the_original_unchanged(self):
        spec = load_workload("tot")
        with_settings(spec, {"branches": 3})
        assert spec == load_workload("tot")

    @given(st.integers(1, 10))
    def test_setting_a_parameter_twice_equals_setting_it_once(self, branches):
        once = with_settings(load_workload("tot"), {"branches": branches})
        assert with_settings(once, {"branches": branches}) == once

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"branch": 3}, r"parameter of tot 'branch'.*Did you mean 'branches'"),
            ({"branches": 0}, r"tot\.branches = 0"),
            ({"branches": 2.5}, r"tot\.branches = 2\.5"),
            ({"branches": True}, r"tot\.branches = True"),
            ({"branches": "3"}, r"tot\.branches = '3'"),
            ({"question_tokens": inf}, r"tot\.question_tokens = inf"),
            ({"question_tokens": nan}, r"tot\.question_tokens = nan"),
            ({"misbehaving.branches": 0}, r"misbehaving.*branches = 0"),
            ({"misbehaving.rate_multiple": -1}, r"rate_multiple = -1"),
        ],
    )
    def test_wrong_settings_of_clients_are_refused(self, changes, message):
        with pytest.raises(UsageError, match=message) as raised:
            with_settings(load_workload("tot"), changes)
        assert "\n" not in str(raised.value)


def test_a_machine_may_have_a_separate_rate_and_the_longest_prefix_wins():
    table = load_workload("tot").model_dump(mode="json", exclude_none=True)
    table["scenarios"]["s1"] |= {"rate": 1.0, "rates": {"a10g": 0.5, "a10g-24gb/llama-3.2": 0.25}}
    spec = WorkloadSpec.model_validate(table)

    def rate(gpu, **flags):
        plan = plan_clients(spec, "s1", dp=2, gpu=gpu, **flags)[1]
        return plan.arrivals.rates[0].programs_per_s

    assert rate("a100-80gb/llama-3.1-8b/tp1/x") == rate("") == 2.0
    assert rate("a10g-24gb/llama-2-7b/tp1/x") == 1.0
    assert rate("a10g-24gb/llama-3.2-3b/tp1/x") == 0.5
    assert rate("a10g-24gb/llama-3.2-3b/tp1/x", request_rate=3.0) == 3.0


class TestMix:
    """Clients that run programs of different kinds, at their own rates."""

    def test_each_client_has_its_own_program_and_rate(self):
        talks, also_talks, trees, judge = plans("mix", dp=2)
        assert [p.kind for p in (talks, also_talks, trees, judge)] == [
            "chat", "chat", "tree-of-thought", "judge",
        ]  # fmt: skip
        rates = [p.arrivals.rates[0].programs_per_s for p in (talks, trees, judge)]
        assert rates == pytest.approx([2.72, 0.14, 1.24])
        assert trees.params == plans("tot")[1].params
        assert judge.params == plans("judge")[1].params
        assert talks.params == plans("chat")[0].params

    def test_a_given_rate_changes_all_clients_by_the_same_factor(self):
        rates = [p.arrivals.rates[0].programs_per_s for p in plans("mix", request_rate=2.72)]
        assert rates == pytest.approx([2.72, 2.72, 0.14, 1.24])

    def test_programs_of_a_client_are_of_its_kind(self):
        *_, trees, judge = plans("mix", num_programs=1)
        assert [len(calls_of(program)) for _, program in programs(trees)] == [30]
        assert [len(calls_of(program)) for _, program in programs(judge)] == [4]

    def test_a_mix_needs_all_its_clients(self):
        with pytest.raises(
            UsageError, match="clients = 3: must be at least 4 for scenario s1 of mix"
        ):
            plans("mix", clients=3)

    @pytest.mark.parametrize(
        ("changed", "complaint"),
        [
            ({"program": "tree"}, "scenarios.s1.others: unknown program kind 'tree'"),
            ({"client": 4}, "scenarios.s1.others.client = 4: must be below clients = 4"),
            ({"client": 3}, "scenarios.s1.others: a client is listed twice"),
            ({"params": {"branches": 2}}, "scenarios.s1.others.params"),
        ],
    )
    def test_errors_in_a_mix_are_named(self, changed, complaint):
        table = load_workload("mix").model_dump(mode="json", exclude_none=True)
        table["scenarios"]["s1"]["others"][0].update(changed)
        with pytest.raises(ValueError, match=complaint):
            WorkloadSpec.model_validate(table)

    def test_a_client_cannot_be_in_two_groups(self):
        table = load_workload("mix").model_dump(mode="json", exclude_none=True)
        table["scenarios"]["s1"]["misbehaving"] = [{"client": 2}]
        with pytest.raises(
            ValueError, match=r"\.others: client 2 is also in 'misbehaving'; list it once"
        ):
            WorkloadSpec.model_validate(table)
