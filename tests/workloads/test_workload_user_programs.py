"""Test kinds of programs in files that FAIRBENCH_PROGRAMS names."""

import os

import pytest

from fairbench.errors import UsageError
from fairbench.workloads.clients import plan_clients
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import program_stream
from fairbench.workloads.programs import KINDS, VARIABLE, program_class

MINE = """
from dataclasses import dataclass
from fairbench.core import Demand, Segment
from fairbench.workloads.programs.base import Program

class Echo(Program):
    kind = "echo"

    @dataclass(frozen=True)
    class Params:
        tokens: int

    @classmethod
    def build(cls, params, rng, program_id, client, item):
        made = cls(program_id, client, Demand(1, params.tokens, 1))
        made.prompt = (Segment(f"{program_id}/text", params.tokens),)
        return made

    async def run(self, llm):
        await llm.generate(self.prompt, name="a", output_tokens=1, max_new_tokens=1, depth=0)
"""
WORKLOAD = {
    "name": "mine", "program": "echo", "latency": "program", "clients": 2,
    "duration_s": 9.0, "warmup_s": 1.0, "max_drain_s": 9.0,
    "params": {"tokens": 7}, "scenarios": {"s1": {"rate": 3.0}},
}  # fmt: skip


@pytest.fixture
def named(monkeypatch, tmp_path):
    def named(*texts):
        paths = [tmp_path / f"mine{number}.py" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
        monkeypatch.setenv(VARIABLE, os.pathsep.join(map(str, paths)))

    return named


def test_a_workload_runs_programs_of_a_kind_from_a_users_file(named):
    named(MINE)
    plan = plan_clients(WorkloadSpec.model_validate(WORKLOAD), "s1")[0]
    jobs = [job for _, job in program_stream(plan, seed=0)]
    assert len(jobs) > 9
    assert {job.demand.input_tokens for job in jobs} == {7}


def test_parameters_of_such_a_kind_are_checked(named):
    named(MINE)
    with pytest.raises(ValueError, match="params"):
        WorkloadSpec.model_validate(WORKLOAD | {"params": {"tokens": "seven"}})


def test_without_the_variable_the_kind_is_unknown(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UsageError, match="unknown program kind 'echo'"):
        program_class("echo")


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (
            [MINE.replace('"echo"', '"judge"')],
            "the program kind 'judge' exists already; choose another name",
        ),
        ([MINE, MINE], "the program kind 'echo' exists already; choose another name"),
        ([MINE.replace('"echo"', '"an echo"')], "class Echo needs a kind of letters"),
        ([MINE.replace("async def run", "async def walk")], "class Echo needs a method run"),
        ([MINE.replace("    @dataclass(frozen=True)\n", "")], "needs a dataclass Params"),
        (["1 / 0"], "ZeroDivisionError"),
    ],
)
def test_impossible_values_are_refused(named, texts, complaint):
    named(*texts)
    with pytest.raises(UsageError, match=complaint):
        program_class("unknown")


def test_bundled_kinds_read_no_file(named):
    named("1 / 0")
    assert program_class("judge") is KINDS["judge"]
