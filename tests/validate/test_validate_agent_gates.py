"""Test gates for sessions against measured runs: the cliff, throughput and waits of three arms."""

import json
from functools import cache

import pytest

from tests.shared_data import needs
from tests.validate.agent_gates import MEASURED, POD_BLOCKS, SESSIONS, Bench

pytestmark = [needs(SESSIONS), needs(MEASURED)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return cache(Bench(tmp_path_factory.mktemp("gates")).mean)


@cache
def measured(arm, users):
    cells = json.loads(MEASURED.read_text(encoding="utf-8"))["cells"]
    return next(cell for cell in cells if (cell["arm"], cell["sessions"]) == (arm, users))


def measured_ratio(arm, users):
    return measured(arm, users)["output_tok_s"] / measured("baseline", users)["output_tok_s"]


@pytest.mark.slow
def test_one_pod_has_the_cliff_and_a_gate_keeps_throughput_beyond_it(run):
    # a quarter of the measured cluster for a third of the measured time
    small = {"pods": 1, "duration_s": 600.0}
    below, beyond = (run("baseline", users, **small) for users in (12, 48))
    gated = run("most-room", 48, **small)
    assert below.hit > 0.85
    assert beyond.late_hit < 0.25  # contexts fill the pod after the first minutes
    assert gated.output_tok_s / beyond.output_tok_s == pytest.approx(
        measured_ratio("most-room", 192), rel=0.15
    )
    assert gated.p50_s < beyond.p50_s


@pytest.mark.slow
def test_the_hit_rate_falls_between_48_and_192_sessions(run):
    found = {users: run("baseline", users) for users in (48, 96, 192)}
    assert found[48].hit == pytest.approx(measured("baseline", 48)["hit_window"], abs=0.03)
    # The time at which memory is full depends on the sessions, which cannot be fetched.
    assert found[96].hit == pytest.approx(measured("baseline", 96)["hit_window"], abs=0.1)
    assert found[96].late_hit < found[96].hit
    # While the first prompts arrive, the simulation has more hits than the measured pods.
    assert measured("baseline", 192)["hit_steady"] < 0.03
    assert found[192].late_hit < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("users", [48, 96, 192])
def test_prompts_are_as_long_as_measured(run, users):
    found_tokens = run("baseline", users).pressure * 4 * POD_BLOCKS * 16
    assert found_tokens == pytest.approx(measured("baseline", users)["prompt_len"]["mean"], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "users", "rel"),
    [
        ("most-room", 96, 0.05),
        ("most-room", 192, 0.1),
        ("origin-only", 192, 0.2),
        ("most-room", 338, 0.2),
        ("origin-only", 338, 0.2),
    ],
)
def test_throughput_relative_to_the_default_is_as_measured(run, arm, users, rel):
    found = run(arm, users).output_tok_s / run("baseline", users).output_tok_s
    assert found == pytest.approx(measured_ratio(arm, users), rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize("users", [192, 338])
@pytest.mark.parametrize("arm", ["most-room", "origin-only"])
def test_throughput_of_a_gate_beyond_the_cliff_is_as_measured(run, arm, users):
    found = run(arm, users)
    assert found.output_tok_s == pytest.approx(measured(arm, users)["output_tok_s"], rel=0.1)


@pytest.mark.slow
def test_a_session_that_waits_for_its_own_pod_keeps_more_of_its_prefix(run):
    for users in (192, 338):
        assert run("origin-only", users).hit > 1.15 * run("most-room", users).hit


@pytest.mark.slow
def test_p99_of_the_default_beyond_the_cliff_is_within_a_factor_of_one_and_a_half(run):
    found_s = run("baseline", 192).p99_waiting_s
    assert 1 / 1.5 <= found_s / measured("baseline", 192)["ttft_s"]["p99"] <= 1.5


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["most-room", "origin-only"])
def test_at_192_sessions_the_measured_p99_of_a_gate_lies_between_the_bounds(run, arm):
    # The P99 depends on whether requests that wait at the end of the run count.
    found = run(arm, 192)
    assert found.p99_s < measured(arm, 192)["ttft_s"]["p99"] < found.p99_waiting_s
