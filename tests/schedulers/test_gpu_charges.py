"""Test by examples the GPU time charged for prompts that are computed in chunks."""

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.schedulers.charging.engine import GPUCharges


class Costs:
    """Costs: a prompt takes 1 s per uncached token."""

    def prefill_s(self, cached_tokens, new_tokens):
        return float(new_tokens)

    def decode_step_s(self, requests, context_tokens):
        return 1.0


def request(tokens):
    return Request(0, "a", 0, 0, (Segment("p", tokens),), 1, 1)


def charged(charges, one, *parts):
    return [charges.computed(one, s * PS_PER_S, complete) / PS_PER_S for s, complete in parts]


def test_the_prepayment_of_a_prompt_covers_its_chunks_until_it_is_used_up():
    charges, one = GPUCharges(Costs()), request(100)
    assert charges.admission_charge(one, 100) == 100 * PS_PER_S
    # 40 and 30 s of 100 s are paid. The last chunk takes 50 s, 20 s more than remain.
    assert charged(charges, one, (40, False), (30, False), (50, True)) == [0, 0, 20]
    assert charges.refund_rest(one) == 0


def test_a_chunk_beyond_the_prepayment_is_charged_and_a_rest_is_returned():
    charges, one = GPUCharges(Costs()), request(100)
    charges.admission_charge(one, 30)
    assert charged(charges, one, (50, False), (10, False)) == [20, 10]
    other = request(100)
    charges.admission_charge(other, 100)
    assert charged(charges, other, (40, False), (10, True)) == [0, -50]


def test_a_request_that_leaves_between_chunks_gets_the_rest_back():
    charges, one = GPUCharges(Costs()), request(100)
    charges.admission_charge(one, 100)
    charged(charges, one, (40, False))
    assert charges.refund_rest(one) == -60 * PS_PER_S
