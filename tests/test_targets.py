"""Test targets: their syntax, which of them wins, and the deadlines of requests."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.parse_flags import goodput_flag
from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.sim.run import simulate
from fairbench.targets import (
    LATENCIES,
    Alone,
    Target,
    Targets,
    alone,
    laid_over,
    named_targets,
    parse_targets,
    written_targets,
)

AMOUNTS = st.integers(1, 10**6).map(lambda thousandths: thousandths / 1000)
TARGETS = st.fixed_dictionaries(
    {}, optional={name: st.builds(Target, AMOUNTS, st.booleans()) for name in LATENCIES}
).map(lambda given: Targets(**given))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("500ms", Target(0.5)),
        ("500", Target(0.5)),  # vLLM's flag has no unit and means milliseconds
        ("2s", Target(2.0)),
        (".25s", Target(0.25)),
        ("1.5x", Target(1.5, of_alone=True)),
    ],
)
def test_a_time_is_read_with_its_unit(text, target):
    assert parse_targets({"ttft": text}, "x") == Targets(ttft=target)


@pytest.mark.parametrize("text", ["0ms", "-1s", "nan", "inf", "1e3", "1m", "", "s", "5 x", 500])
def test_an_invalid_time_is_refused_by_its_name(text):
    with pytest.raises(UsageError, match=re.escape(f"goodput.e2el = {text!r}: write a time above")):
        parse_targets({"e2el": text}, "goodput")


def test_an_unknown_latency_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"unknown latency in targets 'tft'.*Did you mean 'ttft'"):
        parse_targets({"tft": "1s"}, "targets")


@given(TARGETS)
def test_a_written_profile_is_read_back(targets):
    assert written_targets(str(targets)) == targets


@given(TARGETS, TARGETS)
def test_the_upper_layer_takes_precedence(below, above):
    got = laid_over(below, above)
    for name in LATENCIES:
        assert getattr(got, name) == (getattr(above, name) or getattr(below, name))


def test_flags_may_be_repeated_or_given_in_one_text():
    expected = {"ttft": "500", "tpot": "50ms", "gold.e2el": "5x"}
    assert goodput_flag(["ttft:500 tpot:50ms", "gold.e2el:5x"]) == expected
    assert goodput_flag(["ttft:500,tpot:50ms,gold.e2el:5x"]) == expected
    assert goodput_flag(None) is None
    for wrong in ("ttft", "ttft=5", ":5", "ttft:", "ttft:1 ttft:2"):
        with pytest.raises(UsageError, match=r"--goodput .*write \[NAME.\]LATENCY:TIME"):
            goodput_flag([wrong])


def test_the_target_of_a_client_overrides_that_of_its_class_and_that_of_all():
    given_ = {"ttft": "3s", "fast.ttft": "2s", "b.ttft": "1s", "c.tpot": "10ms"}
    usual = {"a": Targets(e2el=Target(9.0)), "b": Targets(ttft=Target(8.0))}
    found = named_targets(given_, "abc", {"a": "fast", "b": "fast"}, usual)
    assert found == {
        "a": Targets(ttft=Target(2.0), e2el=Target(9.0)),
        "b": Targets(ttft=Target(1.0)),
        "c": Targets(ttft=Target(3.0), tpot=Target(0.01)),
    }
    with pytest.raises(UsageError, match=r"unknown client or class in goodput 'fst'.*'fast'"):
        named_targets({"fst.ttft": "1s"}, "abc", {"a": "fast"})


def test_the_due_time_of_a_request_equals_a_hand_computation():
    lone = Alone(0.2, 0.01, 1.2)
    both = Targets(ttft=Target(0.5), tpot=Target(0.1))
    assert both.due(10.0, None, 11) == (10.5, 11.5, 0.1)  # ten more tokens
    assert Targets(e2el=Target(4.0)).due(10.0, None, 11) == (None, 14.0, None)
    assert Targets(tpot=Target(0.1)).due(10.0, None, 11) == (None, None, 0.1)
    assert Targets().due(10.0, None, 11) == (None, None, None)
    first, end, _ = Targets(ttft=Target(3, True), e2el=Target(2, True)).due(10.0, lone, 101)
    assert (first, end) == (pytest.approx(10.6), pytest.approx(12.4))


def lone_requests(gpu, input_tokens, output_tokens):
    """Return requests of one length that arrive far apart."""
    workload = "vtc-overload"
    ends = {"input": input_tokens, "output": output_tokens}
    settings = {f"{workload}.{k}_{end}": v for k, v in ends.items() for end in ("min", "max")}
    flags = {"workload": workload, "scheduler": "fcfs", "scenario": "none", "engine": "sglang"}
    flags |= {"gpu": gpu, "model": "llama-3.1-8b", "num_programs": 2, "request_rate": 0.001}
    return resolve(flags, settings)


@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize(("size"), [(700, 90), (5, 2), (2000, 1)])
def test_the_latency_alone_is_the_simulated_one_of_a_lone_request(gpu, size):
    spec = lone_requests(gpu, *size)
    summary = simulate(spec).summary
    expected = alone(ProfileCosts(load_profile(spec.gpu)), *size)
    assert summary["p50_ttft_ms"] == pytest.approx(expected.ttft_s * 1000, rel=1e-6)
    assert summary["p50_e2el_ms"] == pytest.approx(expected.e2el_s * 1000, rel=1e-6)
    if size[1] > 1:
        assert summary["p50_tpot_ms"] == pytest.approx(expected.tpot_s * 1000, rel=1e-6)
