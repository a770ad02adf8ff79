"""Test that in a run's window, no simulated client has more computed service than service."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairbench
from tests.strategies import examples

CALLS = st.lists(
    st.tuples(
        st.integers(0, 12).map(lambda fifth: fifth / 5),
        st.sampled_from("ab"),
        st.sampled_from([20, 700, 9_000, 20_000]),
        st.integers(1, 40),
    ),
    min_size=2,
    max_size=5,
)
FLAGS = [{"scheduler": "d2lpm"}, {"engine": "vllm", "scheduler": "vtc"}, {"scheduler": "lpm"}]


def summary_of(calls, **flags):
    lines = ["timestamp,client,input_tokens,output_tokens"]
    lines += [",".join(map(str, call)) for call in sorted(calls)]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "calls.csv"
        trace.write_text("\n".join(lines) + "\n")
        return fairbench.run(trace=str(trace), **flags).summary


@given(CALLS, st.sampled_from(FLAGS))
@examples(20)
def test_computed_service_is_at_most_service_in_any_run(calls, flags):
    summary = summary_of(calls, **flags)
    for row in (summary, *summary["clients"]):
        if row["service_rate_tok_s"] is not None:
            assert row["actual_service_tok_s"] <= row["service_rate_tok_s"]


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize(
    "calls",
    [
        [(0, "a", 6000, 100), (0, "b", 12000, 100), (4, "a", 4000, 50), (8, "b", 1000, 300)],
        [(0, "a", 500, 20), (0.79, "b", 30000, 50), (4, "a", 500, 20), (8, "a", 1000, 30)],
        [(0, "a", 500, 20), (4, "a", 500, 20), (7.99, "b", 12000, 50), (8, "a", 1000, 30)],
    ],
)
def test_everything_is_computed_where_nothing_is_cached(calls, flags):
    summary = summary_of(calls, **flags)
    assert summary["cache_hit_rate"] == 0
    assert summary["actual_service_tok_s"] == summary["service_rate_tok_s"]
