"""A derived or measured profile in words: predictions, pool and grade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairbench.hardware.timing import TimingProfile

BATCHES, CONTEXT = (1, 8, 64), 1_000
PROMPTS = (128, 1_024, 8_192)


def described(
    profile: TimingProfile, source: str, note: str, error_pct: Mapping[str, float]
) -> Iterator[str]:
    """Yield the lines that ``fairbench profile`` prints.

    Args:
        profile: Profile to describe.
        source: Origin of the profile, as text.
        note: Remark on the profile, or empty.
        error_pct: Errors in held-out iterations by name, in percent; empty if there are none.
    """
    pool = profile.pool
    yield f"profile   {profile.profile_id}"
    yield f"grade     {profile.grade}"
    yield f"source    {source}"
    if note:
        yield f"note      {note}"
    tokens = pool.tokens(pool.mem_fraction_static)
    yield (
        f"KV pool   {tokens:,} tokens of {pool.kv_bytes_per_token:,.0f} bytes on each GPU, beside "
        f"{pool.weights_gib:.1f} GiB of weights (fraction {pool.mem_fraction_static:g})"
    )
    ms = ", ".join(f"{name} {value:.4g}" for name, value in profile.coefficients_ms.items())
    yield f"fit, ms   {ms}, host {profile.host_ms:g}"
    if error_pct:
        yield (
            f"held out  {error_pct['MAPE']:.1f}% off on average, P95 {error_pct['P95']:.0f}%, "
            f"bias {error_pct['bias']:+.1f}%"
        )
    steps = (f"{n}: {decode_ms(profile, n):.1f}" for n in BATCHES)
    yield f"decode    ms a step by batch, {CONTEXT:,} tokens of context each: {', '.join(steps)}"
    prompts = (f"{n:,}: {prefill_ms(profile, n):.1f}" for n in PROMPTS)
    yield f"prefill   ms by tokens of a lone prompt, in one iteration: {', '.join(prompts)}"


def decode_ms(profile: TimingProfile, batch: int, context: int = CONTEXT) -> float:
    """Return the milliseconds of a decode step of ``batch`` sequences.

    Args:
        profile: Timing profile.
        batch: Number of sequences.
        context: Context of each sequence, in tokens.
    """
    return profile.decode_ps(batch, batch * context) / 1e9


def prefill_ms(profile: TimingProfile, tokens: int) -> float:
    """Return the milliseconds of an iteration that prefills one prompt."""
    return profile.prefill_ps([(0, tokens)]) / 1e9
