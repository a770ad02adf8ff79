"""Test that the reasoning workload has its file's lengths, which are unpredictable."""

import random

import pytest

from fairbench.workloads.programs import make_params, program_class
from fairbench.workloads.spec import load_workload


def reasoning(scenario, client=3, count=2000):
    """Return (input, output) tokens of the client's programs, and their limits."""
    spec = load_workload("reasoning")
    chosen = spec.scenario(scenario)
    own = next(wrong.params for wrong in chosen.misbehaving if wrong.client == client)
    params = make_params(spec.program, {**spec.params, **chosen.params, **own}, "reasoning")
    rng = random.Random(1)
    chat = program_class(spec.program)
    demands = [chat.build(params, rng, n, "client-3", None).demand for n in range(count)]
    assert {demand.requests for demand in demands} == {1}
    lengths = [(demand.input_tokens, demand.output_tokens) for demand in demands]
    return lengths, params.max_new_tokens


@pytest.mark.parametrize(("scenario", "mean"), [("s1", 1502), ("s2", 6008)])
def test_lengths_match_the_file(scenario, mean):
    lengths, allowed = reasoning(scenario)
    outputs = [made for _, made in lengths]
    assert sum(outputs) / len(outputs) == pytest.approx(mean, rel=0.05)
    assert sum(read for read, _ in lengths) / len(lengths) == pytest.approx(1377, rel=0.06)
    assert max(outputs) <= allowed
    assert allowed > 10 * 1502, "what is allowed says nothing of what comes"
    # A quarter of the outputs are far shorter than the mean, and some use nearly their limit.
    assert sorted(outputs)[len(outputs) // 4] < 0.65 * mean
    assert max(outputs) > 0.6 * allowed
