"""Test clients that cheat: padding, others' prefixes, reservations, several names."""

from dataclasses import replace
from itertools import islice

import pytest
from pydantic import ValidationError

from fairbench.core import Segment
from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.disguises import KEEP_ALIVE_S, Disguise, first_prompt, first_tokens
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import program_stream
from fairbench.workloads.programs.single import Single
from fairbench.workloads.spec import load_workload, workload_names
from tests.sim.memory_pool import Pool
from tests.workloads.workload_fakes import calls_of, demand_of

# a workload for each kind of program; replayed files are not bundled.
OF_EACH_KIND = {spec.program: spec for spec in map(load_workload, workload_names())}


def workload(wrong, **keys):
    """Return judges with two dimensions, and client 0 with the given misbehaviour."""
    data = load_workload("judge").model_dump(mode="json", exclude_none=True)
    wrong = [{"client": 0, **one} for one in wrong]
    data["scenarios"] = {"s1": {"rate": 0.5, "misbehaving": wrong, **keys.pop("scenario", {})}}
    return WorkloadSpec.model_validate(data | {"duration_s": 100.0} | keys)


def jobs(spec, client, seed=0):
    return [one for _, one in program_stream(plan_clients(spec, "s1")[client], seed=seed)]


class TestPadding:
    def test_every_prompt_begins_with_the_padding_and_is_otherwise_unchanged(self):
        plain, padded = (jobs(workload(one), 0)[0] for one in ([], [{"padding_tokens": 300}]))
        before, after = calls_of(plain), calls_of(padded)
        assert [call.prompt[1:] for call in after] == [call.prompt for call in before]
        assert {call.prompt[0] for call in after} == {Segment("client-0/padding", 300)}
        assert [call.max_new_tokens for call in after] == [call.max_new_tokens for call in before]

    def test_the_demand_includes_the_padding(self):
        plain, padded = (jobs(workload(one), 0)[0] for one in ([], [{"padding_tokens": 300}]))
        assert padded.demand == demand_of(calls_of(padded))
        assert padded.demand.input_tokens == plain.demand.input_tokens + 4 * 300
        assert padded.demand.output_tokens == plain.demand.output_tokens

    def test_clients_of_one_owner_share_the_padding(self):
        wrong = [{"padding_tokens": 9}, {"client": 1, "padding_tokens": 9}]
        spec = workload(wrong, client_owners={"client-0": "eve", "client-1": "eve"})
        assert [plan.owner for plan in plan_clients(spec, "s1")] == ["eve", "eve", "client-2"]
        keys = {calls_of(jobs(spec, client)[0])[0].prompt[0].key for client in (0, 1)}
        assert keys == {"eve/padding"}

    @pytest.mark.parametrize(
        ("tokens", "expected"),
        [(0, ()), (2, (Segment("a", 2),)), (3, (Segment("a", 3),)),
         (5, (Segment("a", 3), Segment("b", 2)))],
    )  # fmt: skip
    def test_a_prompt_begins_like_those_of_another_client(self, tokens, expected):
        assert first_tokens((Segment("a", 3), Segment("b", 4)), tokens) == expected


class TestPrefixOfAnother:
    def spec(self, tokens):
        return workload([{"padding_tokens": tokens, "padding_of": 1}])

    def test_the_prefix_is_that_of_the_latest_prompt_of_the_other_client(self):
        spec = self.spec(200)
        other = plan_clients(spec, "s1")[1]
        theirs = list(program_stream(other, seed=3))
        copied = 0
        for at_s, job in program_stream(plan_clients(spec, "s1")[0], seed=3):
            before = [one for when_s, one in theirs if when_s <= at_s]
            prompt = calls_of(job)[0].prompt
            if before:
                assert prompt[:2] == first_tokens(calls_of(before[-1])[0].prompt, 200)
            else:
                assert prompt[0] == Segment("client-0/padding", 200)
            copied += bool(before)
        assert copied > 1

    def test_missing_text_is_replaced_by_unique_text(self):
        for job in jobs(self.spec(50_000), 0):
            calls = calls_of(job)
            assert sum(part.length for part in calls[0].prompt[:-3]) == 50_000
            assert job.demand == demand_of(calls)

    @pytest.mark.parametrize("spec", OF_EACH_KIND.values(), ids=OF_EACH_KIND)
    def test_the_first_prompt_of_every_kind_can_be_copied(self, spec):
        plan = plan_clients(spec, "none", duration_s=100.0, request_rate=1.0)[0]
        for _, job in islice(program_stream(plan, seed=0), 3):
            assert first_prompt(job) == calls_of(job)[0].prompt


def test_reservations_grow_and_outputs_do_not():
    plain, greedy = (jobs(workload(one), 0)[0] for one in ([], [{"max_new_multiple": 2.5}]))
    assert [call.max_new_tokens for call in calls_of(greedy)] == [640, 640, 640, 5]
    assert [call.output_tokens for call in calls_of(greedy)] == [256, 256, 256, 2]
    assert greedy.demand == plain.demand


class TestLongerAnswers:
    def pair(self, **wrong):
        plain, longer = (jobs(workload(one), 0)[0] for one in ([], [wrong]))
        return plain, longer, calls_of(plain), calls_of(longer)

    def test_cancelled_answers_are_continued_and_no_later_prompt_has_the_rest(self):
        plain, longer, before, after = self.pair(output_multiple=16)
        assert [call.output_tokens for call in before] == [256, 256, 256, 2]
        assert [call.output_tokens for call in after] == [4096, 4096, 4096, 32]
        assert [call.prompt for call in after] == [call.prompt for call in before]
        assert longer.demand.input_tokens == plain.demand.input_tokens
        assert longer.demand.output_tokens == 16 * plain.demand.output_tokens

    def test_a_client_announces_its_output_or_more(self):
        *_, after = self.pair(output_multiple=4, max_new_multiple=2.5)
        assert [call.max_new_tokens for call in after] == [1024, 1024, 1024, 8]
        *_, after = self.pair(output_multiple=2, max_new_multiple=2.5)
        assert [call.max_new_tokens for call in after] == [640, 640, 640, 5]

    @pytest.mark.parametrize("spec", OF_EACH_KIND.values(), ids=OF_EACH_KIND)
    def test_every_kind_of_program_continues_unchanged(self, spec):
        plan = plan_clients(spec, "none", duration_s=100.0, request_rate=1.0)[0]
        disguise = Disguise(plan.owner, padding_tokens=10, output_multiple=3)
        plain, longer = (
            next(iter(program_stream(one, seed=0))).program
            for one in (plan, replace(plan, disguise=disguise))
        )
        before, after = calls_of(plain), calls_of(longer)
        assert [call.prompt[1:] for call in after] == [call.prompt for call in before]
        assert [call.output_tokens for call in after] == [3 * call.output_tokens for call in before]
        assert longer.demand == demand_of(after)


class TestMemory:
    """Scan flooding and pinning, on calls and on a pool of 100 tokens that two clients share."""

    def sends(self, number, keep_alive=0):
        """Return the prompts of a call of 20 tokens, 19 of them padding, and of its repetitions."""
        disguise = Disguise("eve", padding_tokens=19, fresh=True, keep_alive=keep_alive)
        job = disguise.dress(Single(number, "eve", Segment(f"{number}", 1), 1), None)
        return [call.prompt for call in calls_of(job)]

    VICTIM = (Segment("victim", 40),)

    def play(self, policy, *prompts):
        """Return the cached part of the victim's prompt after these calls."""
        pool = Pool(policy, 100, {"victim": 1.0, "eve": 1.0})
        for prompt in prompts:
            client = "victim" if prompt == self.VICTIM else "eve"
            assert pool.start(client, prompt) is not None
            pool.finish(0)
        return pool.start("victim", self.VICTIM)

    def test_each_call_has_fresh_padding_and_is_otherwise_unchanged(self):
        wrong = {"padding_tokens": 300, "padding_fresh": True}
        plain, padded = (jobs(workload(one), 0)[:2] for one in ([], [wrong]))
        paddings = []
        for before, after in zip(plain, padded, strict=True):
            calls = calls_of(after)
            assert [call.prompt[1:] for call in calls] == [one.prompt for one in calls_of(before)]
            assert after.demand == demand_of(calls)
            paddings += [call.prompt[0] for call in calls]
        assert {one.length for one in paddings} == {300}
        assert len(set(paddings)) == len(paddings) == 8
        assert jobs(workload([wrong]), 0)[0].demand == padded[0].demand

    def test_the_padding_is_repeated_after_the_work(self):
        wrong = {"padding_tokens": 300, "padding_fresh": True, "keep_alive": 2}
        (job, *_) = jobs(workload([wrong]), 0)
        calls = calls_of(job)
        work, turns = calls[:4], calls[4:]
        assert [call.prompt for call in turns] == 2 * [call.prompt[:1] for call in work]
        assert [call.start_s for call in turns] == 4 * [KEEP_ALIVE_S] + 4 * [2 * KEEP_ALIVE_S]
        assert {call.output_tokens for call in turns} == {1}
        assert len({call.name for call in calls}) == 12

    def test_the_padding_of_all_calls_is_repeated_once_per_turn(self):
        (job, *_) = jobs(workload([{"padding_tokens": 300, "keep_alive": 3}]), 0)
        turns = calls_of(job)[4:]
        assert [call.prompt for call in turns] == 3 * [(Segment("client-0/padding", 300),)]
        assert job.demand == demand_of(calls_of(job))

    @pytest.mark.parametrize("spec", OF_EACH_KIND.values(), ids=OF_EACH_KIND)
    def test_the_demand_of_every_kind_is_exact(self, spec):
        plan = plan_clients(spec, "none", duration_s=100.0, request_rate=1.0)[0]
        disguise = Disguise(plan.owner, padding_tokens=10, fresh=True, keep_alive=2)
        _, job = next(iter(program_stream(replace(plan, disguise=disguise), seed=0)))
        assert job.demand == demand_of(calls_of(job))

    def test_a_scan_of_five_prompts_flushes_lru_but_not_a_share(self):
        scan = [prompt for number in range(5) for prompt in self.sends(number)]
        assert {policy: self.play(policy, self.VICTIM, *scan) for policy in EVICTIONS} == {
            **{"lru": 0, "lfu": 0, "retention": 0},
            **{"quota": 40, "quota-lending": 40, "max-min": 40},
        }

    def test_keep_alive_turns_make_the_victim_the_least_recently_used(self):
        """60 tokens and the victim's 40 fill the pool; the next call needs 20.

        Without turns, the attacker's oldest call is evicted. With turns, only the three tokens
        after the paddings are older than the victim's prompt, which is evicted as a whole.
        """
        begun = [self.sends(number, keep_alive=1) for number in range(3)]
        first, turns = ([call[at] for call in begun] for at in (0, 1))
        last = self.sends(3)
        assert self.play("lru", *first, self.VICTIM, *last) == 40
        assert self.play("lru", *first, self.VICTIM, *turns, *last) == 0
        assert self.play("max-min", *first, self.VICTIM, *turns, *last) == 40


def test_without_a_disguise_no_program_is_wrapped():
    plan = plan_clients(workload([{"rate_multiple": 4.0}]), "s1")[0]
    assert plan.disguise is None
    assert plan.owner == plan.client


def test_a_scenario_may_have_fewer_clients():
    spec = workload([], scenario={"clients": 2}, clients=7)
    assert len(plan_clients(spec, "s1")) == 2
    assert len(plan_clients(spec, "none")) == 2
    assert len(plan_clients(spec, "s1", clients=9)) == 9


@pytest.mark.parametrize(
    ("wrong", "keys", "complaint"),
    [
        ({"padding_of": 1}, {}, "misbehaving.padding_of: needs padding_tokens"),
        (
            {"padding_of": 0, "padding_tokens": 1},
            {},
            "padding_of = 0: must not be one of this table's own clients",
        ),
        ({"padding_of": 3, "padding_tokens": 1}, {}, "padding_of = 3: must be below clients = 3"),
        ({}, {"scenario": {"clients": 4}}, "clients = 4: must be at most clients = 3"),
        ({"client": 2}, {"scenario": {"clients": 2}}, "client = 2: must be below clients = 2"),
        ({}, {"client_owners": {"client-8": "eve"}}, "unknown client in client_owners 'client-8'"),
        ({"padding_fresh": True}, {}, "misbehaving.padding_fresh: needs padding_tokens"),
        ({"keep_alive": 4}, {}, "misbehaving.keep_alive: needs padding_tokens"),
        ({"padding_tokens": 1, "keep_alive": 0}, {}, "keep_alive"),
        ({"max_new_multiple": 0.5}, {}, "max_new_multiple"),
        ({"in_flight": 0}, {}, "in_flight"),
        ({"output_multiple": 0}, {}, "output_multiple"),
        ({"output_multiple": 1.5}, {}, "output_multiple"),
        ({"output_multiple": 1001}, {}, "output_multiple"),
        ({"output_multiple": True}, {}, "output_multiple"),
    ],
)
def test_impossible_values_are_refused(wrong, keys, complaint):
    with pytest.raises((ValidationError, ValueError), match=complaint):
        workload([wrong], **keys)
