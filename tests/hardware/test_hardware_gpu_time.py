"""Test the split of a step's GPU time between clients against values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import PS_PER_S
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.gpu_time import Decoding, decode_parts, split_in_proportion, step_parts
from fairbench.hardware.timing import ProfileCosts
from tests.strategies import examples

PROFILE = load_profile("a100-80gb/llama-3.1-8b/tp1/measured-sglang")
US = PS_PER_S // 10**6


class Toy:
    """A GPU whose steps take 100 us, plus fixed times per token, per pair and per request."""

    def prefill_s(self, cached_tokens, new_tokens):
        return (100 + 10 * new_tokens + new_tokens * cached_tokens) * 1e-6

    def decode_step_s(self, requests, context_tokens):
        return (100 + 10 * requests + 2 * context_tokens) * 1e-6


def test_the_parts_of_a_split_are_whole_numbers_that_add_up():
    assert split_in_proportion(10, [1, 1, 1]) == [3, 3, 4]
    assert split_in_proportion(7, [0, 5, 0]) == [0, 7, 0]
    assert split_in_proportion(7, [0, 0]) == [0, 0]


def test_more_context_costs_more_and_fixed_parts_are_split_equally():
    # Three requests cost 150 us without any context. Client a has contexts of 10 and 20 tokens,
    # and client b has one of 60 tokens.
    clients = {"a": Decoding(2, 30), "b": Decoding(1, 60)}
    assert decode_parts(330 * US, 150 * US, clients) == {"a": 160 * US, "b": 170 * US}
    # In two steps, the contexts are 30 + 32 and 60 + 61. Reading these 183 tokens takes 366 us.
    two = decode_parts(666 * US, 300 * US, clients, steps=2)
    assert two == {"a": (200 + 124) * US, "b": (100 + 242) * US}


def test_a_prompt_pays_for_its_tokens_and_attention_and_for_its_part_of_the_rest():
    # Beyond one token, 21 tokens cost 200 us, and 11 tokens behind 50 cached ones cost 100 + 550.
    # That leaves 90 us.
    parts = step_parts(Toy(), 940 * US, [(0, 21), (50, 11)], {})
    assert parts.chunks == [245 * US, 695 * US]


def test_in_a_mixed_step_decoding_clients_read_and_share():
    # 20 more prompt tokens cost 200 us, and 60 tokens of context cost 120 us. Each of the four
    # requests bears 100 of the remaining 400 us.
    clients = {"a": Decoding(2, 20), "b": Decoding(1, 40)}
    parts = step_parts(Toy(), 720 * US, [(0, 21)], clients)
    assert parts.chunks == [300 * US]
    assert (parts.decode_ps, parts.decode_fixed_ps) == (420 * US, 300 * US)
    assert parts.clients == {"a": 240 * US, "b": 180 * US}


def test_a_model_that_predicts_more_than_the_measured_time_is_scaled():
    parts = step_parts(Toy(), 300 * US, [(0, 21), (0, 41)], {})
    assert parts.chunks == [100 * US, 200 * US]


CHUNKS = st.lists(st.tuples(st.integers(0, 30_000), st.integers(1, 8_192)), max_size=8)
CLIENTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.integers(1, 300).flatmap(
        lambda n: st.integers(n, 20_000 * n).map(lambda tokens: Decoding(n, tokens))
    ),
)


@examples(200)
@given(CHUNKS, CLIENTS, st.integers(1, 5_000))
def test_parts_add_up_to_the_time_of_a_step(chunks, clients, steps):
    requests = sum(one.requests for one in clients.values())
    context = sum(one.context_tokens for one in clients.values())
    if chunks:
        took_ps = PROFILE.step_ps(chunks, requests, context)
        parts, others, *_ = step_parts(ProfileCosts(PROFILE), took_ps, chunks, clients)
        assert sum(parts) + sum(others.values()) == took_ps
        assert min(*parts, *others.values(), took_ps) > 0
    if clients:
        growth = PROFILE.context_ps * requests * (steps * (steps - 1) // 2)
        took_ps = steps * PROFILE.decode_ps(requests, context) + growth
        fixed_ps = steps * PROFILE.decode_ps(requests, 0)
        parts = decode_parts(took_ps, fixed_ps, clients, steps)
        assert sum(parts.values()) == took_ps
        assert min(parts.values()) > 0


@pytest.mark.parametrize("steps", [2, 7, 1_000])
def test_steps_together_equal_single_steps_up_to_rounding(steps):
    clients = {"a": Decoding(3, 700), "b": Decoding(1, 5_000)}
    context, fixed_ps = 5_700, PROFILE.decode_ps(4, 0)
    alone = dict.fromkeys(clients, 0)
    took_ps = 0
    for step in range(steps):
        now = {name: Decoding(n, tokens + n * step) for name, (n, tokens) in clients.items()}
        one_ps = PROFILE.decode_ps(4, context + 4 * step)
        took_ps += one_ps
        for name, part in decode_parts(one_ps, fixed_ps, now).items():
            alone[name] += part
    together = decode_parts(took_ps, fixed_ps * steps, clients, steps)
    assert sum(together.values()) == sum(alone.values()) == took_ps
    assert abs(together["a"] - alone["a"]) <= steps
