"""Test kinds of traffic by name, and that a new kind takes a file and a line."""

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.sim.run import simulate
from fairbench.workloads import traffic
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload
from fairbench.workloads.traffic.arrivals import Arrival


def chat(**changes):
    return load_workload("chat").model_dump(mode="json", exclude_none=True) | changes


@dataclass(frozen=True)
class Listed:
    """Arrivals at given times."""

    times_s: tuple[float, ...]
    timed = True

    def arrivals(self, rng):
        return map(Arrival, self.times_s)

    def expected_programs(self, before_s=inf):
        return sum(time_s < before_s for time_s in self.times_s)

    def last_arrival_s(self, rng):
        return max(self.times_s, default=0.0)


class Trace:
    """The kind ``trace``: a file with the times of every client, ``{"0": [1.5, ...]}``."""

    @dataclass(frozen=True)
    class Params:
        path: str

    def __init__(self, params):
        self.times = json.loads(Path(params.path).read_text(encoding="utf-8"))

    def usual(self, load):
        return Listed(tuple(self.times[str(load.client)]))

    def misbehaving(self, load, rate_multiple, until_fraction):
        raise UsageError("arrivals.trace: the times are given, so nobody sends more")


def test_a_kind_takes_a_class_and_a_line(monkeypatch, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"0": [3.0, 1.0 + 3], "1": [], "2": [2.5], "3": [9.0]}))
    monkeypatch.setitem(traffic.KINDS, "trace", f"{__name__}:Trace")
    arrivals = {"kind": "trace", "params": {"path": str(path)}}
    flags = {"workload": chat(arrivals=arrivals), "scenario": "none", "scheduler": "fcfs"}
    result = simulate(resolve(flags))
    assert sorted(result.programs["arrival_s"]) == [2.5, 3.0, 4.0, 9.0]
    with pytest.raises(UsageError, match="nobody sends more"):
        simulate(resolve(flags | {"scenario": "s1"}))


def test_gamma_is_the_default_kind():
    plain, named = (
        simulate(resolve({"workload": workload, "scheduler": "fcfs", "num_programs": 3}))
        for workload in (chat(), chat(arrivals={"kind": "gamma"}))
    )
    assert list(plain.programs["arrival_s"]) == list(named.programs["arrival_s"])
    assert "arrivals" not in load_workload("chat").model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("arrivals", "complaint"),
    [
        ({"kind": "gama"}, "arrivals: unknown kind of arrivals 'gama'.*Did you mean 'gamma'"),
        (
            {"kind": "gamma", "params": {"shape": 2}},
            "unknown parameter for arrivals of kind gamma 'shape'",
        ),
    ],
)
def test_a_wrong_kind_or_parameter_is_named(arrivals, complaint):
    with pytest.raises(ValueError, match=complaint):
        WorkloadSpec.model_validate(chat(arrivals=arrivals))
