"""Test the H100's measured profile on this project's own runs (tests/gpu)."""

from pathlib import Path

import pytest

from fairbench.errors import DataError
from fairbench_studies.validation.serving.compare import compare_serving
from fairbench_studies.validation.serving.files import load_serving
from fairbench_studies.validation.serving.measured import serving_run
from fairbench_studies.validation.serving.profiles import MEASURED_H100, profile_of
from fairbench_studies.validation.serving.replay import replay
from tests.validate.test_validate_serving import record

RUNS = Path(__file__).parent.parent / "data" / "sglang_h100_loops.jsonl.gz"


def loops():
    return {run.name.removeprefix("sglang-h100-"): run for run in load_serving(RUNS)}


@pytest.mark.parametrize(
    ("name", "throughput_pct", "tpot_pct"),
    [
        ("fixed-c8-warm", 1.1, 2),
        ("varied-c48-cold", 4.5, 6),
        ("mixed-c128-cold", 5, 7.5),
        ("mixed-c1-cold", 0.5, 0.5),  # one long context at a time
        ("mixed-c8-cold", 1.5, 4.5),
    ],
)
def test_runs_that_were_not_fitted_to_come_out_as_documented(name, throughput_pct, tpot_pct):
    run = loops()[name]
    assert not run.fitted
    profile = profile_of(run.gpu, run.model, run.tp, run.engine)
    assert profile.profile_id == MEASURED_H100
    found = compare_serving(run, replay(run, profile), profile.profile_id)
    assert found.throughput.within(throughput_pct)
    assert found.tpot_p50_ms.within(tpot_pct)


def test_seven_runs_were_fitted_to_and_ten_are_tests():
    fitted = {name for name, run in loops().items() if run.fitted}
    fixed = {f"fixed-c{at_once}-{cache}" for at_once in (1, 32, 128) for cache in ("cold", "warm")}
    assert fitted == fixed | {"mixed-c32-cold"}
    assert len(loops()) == 17


def test_a_run_states_cache_and_pool():
    cold, warm = (serving_run(record(warm=warm), "x") for warm in (False, True))
    assert (cold.warm, warm.warm) == (False, True)
    profile = profile_of(cold.gpu, cold.model, cold.tp, cold.engine)
    # 100 tokens are computed, or one, because the last token of a prompt is always computed.
    saved_s = replay(cold, profile).ttft_s - replay(warm, profile).ttft_s
    assert (saved_s > 0).all()
    # A pool that holds one prompt and its answer keeps only the last one.
    small = serving_run(record(warm=True, pool_tokens=115), "x")
    assert (replay(small, profile).ttft_s > replay(warm, profile).ttft_s).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_tokens": -1}, "field 'pool_tokens' = -1: must be at least 0"),
        ({"pool_tokens": True}, "field 'pool_tokens' = True: must be int"),
        ({"warm": 1}, "field 'warm' = 1: must be bool"),
    ],
)
def test_a_bad_field_is_named(changes, message):
    with pytest.raises(DataError, match=message):
        serving_run(record(**changes), "x")
