"""Test the time of a step that mixes prefill chunks and decoding."""

from hypothesis import given
from hypothesis import strategies as st

from fairbench.hardware.catalogue import load_profile, profile_ids

PROFILES = [load_profile(name) for name in profile_ids()]
CHUNKS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 8_192)), max_size=5)


def formula_ms(profile, chunks, sequences, context):
    """Compute the time by the formula of TimingProfile, term by term."""
    c = profile.coefficients_ms
    tokens, p = sum(new for _, new in chunks) + sequences, c["p"]
    attention = sum(
        max(c["c_A"] * new * (prefix + (new + 1) / 2), c["c_K"] * prefix) for prefix, new in chunks
    )
    weights = c["c_w"] + c.get("c_e", 0) * (1 - c.get("q_e", 1) ** tokens)
    linear = (weights**p + (c["c_T"] * tokens) ** p) ** (1 / p)
    counts = c["c_npf"] * len(chunks) + c["c_nd"] * sequences + c["c_K"] * context
    launch = c.get("c_pf", 0.0) if chunks else 0.0
    least = c.get("c_l", 0.0) + c.get("c_lp", 0.0) * len(chunks) if chunks else 0.0
    return max(c["c0"] + linear + counts + launch + profile.host_ms + attention, least)


@given(
    profile=st.sampled_from(PROFILES),
    chunks=CHUNKS.filter(bool),
    sequences=st.integers(0, 1_024),
    context=st.integers(0, 10**6),
)
def test_a_mixed_step_is_the_sum_of_its_parts(profile, chunks, sequences, context):
    step_ms = profile.step_ps(chunks, sequences, context) / 10**9
    # A coefficient is rounded to whole picoseconds before a count multiplies it.
    rounding_ms = (1 + context) / 10**9
    assert abs(step_ms - formula_ms(profile, chunks, sequences, context)) < rounding_ms + 1e-6
    if not sequences:
        assert profile.step_ps(chunks, 0, 0) == profile.prefill_ps(chunks)


@given(
    profile=st.sampled_from(PROFILES),
    sequences=st.integers(1, 1_024),
    context=st.integers(1, 10**6),
)
def test_without_chunks_a_mixed_step_is_a_decode_step(profile, sequences, context):
    assert profile.step_ps([], sequences, context) == profile.decode_ps(sequences, context)


def test_a_mixed_step_is_cheaper_than_prefill_and_decode_apart():
    profile = PROFILES[0]
    both = profile.step_ps([(0, 100)], 50, 0)
    alone = profile.prefill_ps([(0, 100)]) + profile.decode_ps(50, 0)
    c = profile.coefficients_ms
    fixed_ms = c["c0"] + profile.host_ms
    assert both < alone - round(fixed_ms * 10**9)
