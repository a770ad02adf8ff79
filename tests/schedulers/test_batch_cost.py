"""Test the cost of a batch, the expected outputs, and the load cap."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.core import Request, Segment
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.load_cap import (
    CAP_UNITS,
    BatchCost,
    LoadCap,
    StepUnits,
    load_cap,
    step_units,
)
from fairbench.schedulers.output_lengths import (
    MAX_CLIENTS,
    PRIOR_OUTPUT_TOKENS,
    RECENT,
    OutputLengths,
)

A100 = "a100-80gb/llama-3.1-8b/tp1/sglang-0.5.10"


class Linear:
    """Costs: a decode step takes 10 ms plus 0.1 ms per request and 1 us per token of context."""

    def prefill_s(self, cached_tokens, new_tokens):
        return 0.0

    def decode_step_s(self, requests, context_tokens):
        return 0.010 + 1e-4 * requests + 1e-6 * context_tokens


def request(number, client="a", tokens=100, max_new=4096):
    return Request(number, client, 0, 0, (Segment(f"p{number}", tokens),), tokens, max_new)


class TestUnits:
    def test_costs_of_a_linear_engine_equal_hand_computed_values(self):
        assert step_units(Linear()) == pytest.approx((10_000, 100, 1e-6))

    def test_units_of_an_a100_follow_from_its_coefficients(self):
        """Units are (c0 + host + c_w) / c_K, and (c_T + c_nd) / c_K = 520 tokens."""
        units = step_units(ProfileCosts(load_profile(A100)))
        assert units.unit_tokens == pytest.approx((8.42533 + 0.5 + 3.39611) / 0.000118897, rel=1e-6)
        assert units.request_tokens == pytest.approx(520, abs=1)

    def test_units_are_unknown_while_costs_are_unknown(self):
        class Nothing(Linear):
            def decode_step_s(self, requests, context_tokens):
                return 0.0

        assert step_units(None) is None
        assert step_units(Nothing()) is None

    @pytest.mark.parametrize("units", [1, 4, CAP_UNITS])
    def test_a_batch_of_n_units_takes_n_empty_steps_more_than_an_empty_one(self, units):
        found, requests = step_units(Linear()), 20
        context = round(units * found.unit_tokens - requests * found.request_tokens)
        assert Linear().decode_step_s(requests, context) == pytest.approx((units + 1) * 0.010)


class TestExpectedOutputs:
    def test_unknown_outputs_start_at_the_default(self):
        assert OutputLengths().expected("a") == PRIOR_OUTPUT_TOKENS
        assert BatchCost().expected_context(request(0, max_new=9)) == 100 + PRIOR_OUTPUT_TOKENS / 2

    def test_the_mean_of_a_client_is_used_before_that_of_all_clients(self):
        lengths = OutputLengths()
        for tokens in (10, 20, 60):
            lengths.learn("a", tokens)
        lengths.learn("b", 90)
        assert lengths.expected("a") == 30
        assert lengths.expected("b") == 90
        assert lengths.expected("c") == 45

    def test_old_service_counts_little(self):
        lengths = OutputLengths()
        for tokens in [1000] * RECENT + [10] * 20 * RECENT:
            lengths.learn("a", tokens)
        assert lengths.expected("a") == pytest.approx(10, abs=0.01)

    def test_forgotten_names_take_no_memory(self):
        lengths = OutputLengths()
        for number in range(MAX_CLIENTS + 5):
            lengths.learn(f"c{number}", 7)
            lengths.learn("kept", 1)
        assert lengths.expected("kept") == 1
        assert len(lengths._of_client) == MAX_CLIENTS


def units(request_tokens) -> StepUnits:
    return StepUnits(1_000, request_tokens, 1e-6)


def test_a_cap_equals_a_hand_computation():
    """Requests cost 100 + 128 / 2 + 36 = 200 each until b, with short outputs, has finished."""
    cap = LoadCap(450, units(36))
    first, second, third, short = (request(n, c) for n, c in enumerate("aabb"))
    for one in (first, second):
        assert cap.has_room(one)
        cap.enter(one)
    assert cap.tokens == 400
    assert not cap.has_room(third)
    cap.leave(first)  # retracted, so no length is learned
    cap.enter(third)
    # 8 tokens are expected of b, and also of a, none of whose requests has finished
    cap.finish(third, 8)
    assert cap.tokens == 200
    assert cap.has_room(short)
    cap.enter(short)
    assert cap.tokens == 200 + 100 + 4 + 36
    cap.finish(first, 0)  # aborted while it waited
    assert cap.tokens == 340


def test_a_request_heavier_than_the_cap_runs_alone():
    cap = LoadCap(10)
    assert cap.has_room(request(0))
    cap.enter(request(0))
    assert not cap.has_room(request(1, tokens=1))


events = st.lists(
    st.tuples(st.sampled_from("eelf"), st.integers(0, 30), st.integers(1, 900)), max_size=60
)


@given(events=events, most=st.integers(1, 3000))
def test_a_cap_is_exceeded_only_by_a_lone_request_and_the_sum_returns_to_zero(events, most):
    """The oracle recomputes the cost from the state at each admission."""
    cap, lengths, running = LoadCap(most, units(17)), OutputLengths(), {}
    for number, (kind, which, tokens) in enumerate(events):
        if kind == "e":
            one = request(number, "abc"[which % 3], tokens)
            cost = round(one.input_tokens + lengths.expected(one.client) / 2)
            fits = not running or sum(running.values()) + 17 * (len(running) + 1) + cost <= most
            assert cap.has_room(one) == fits
            if fits:
                cap.enter(one)
                running[one] = cost
        elif running:
            one = list(running)[which % len(running)]
            del running[one]
            if kind == "f":
                cap.finish(one, tokens)
                lengths.learn(one.client, tokens)
            else:
                cap.leave(one)
        assert cap.tokens == sum(running.values()) + 17 * len(running)
        assert cap.tokens <= most or len(running) == 1
    for one in running:
        cap.leave(one)
    assert cap.tokens == 0


def test_settings_of_the_cap_are_checked():
    assert load_cap(None, Linear()).most_tokens == load_cap("none", Linear()).most_tokens == inf
    assert load_cap(777, Linear()).most_tokens == 777
    assert load_cap("auto", Linear()).most_tokens == pytest.approx(5 * 10_000)

    class Nothing(Linear):
        def decode_step_s(self, requests, context_tokens):
            return 0.0

    with pytest.raises(UsageError, match="load_cap = 'auto': needs a timing profile, because the"):
        load_cap("auto", Nothing())


def test_a_real_server_learns_the_duration_of_steps():
    """Two requests of 100 + 64 tokens cost 36 more once steps are timed, and the cap is 400."""
    auto, given = LoadCap("auto"), LoadCap(400)
    for cap in (auto, given):
        cap.learn(None)
        cap.enter(request(0))
        cap.enter(request(1))
        assert cap.tokens == 328
    assert auto.has_room(request(2, tokens=10**6))
    assert not given.has_room(request(2))
    for cap in (auto, given):
        cap.learn(StepUnits(80, 36, 1e-6))
        assert cap.tokens == cap.most_tokens == 400
        assert not cap.has_room(request(2, tokens=1))
