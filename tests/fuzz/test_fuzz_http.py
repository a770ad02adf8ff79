"""Test that mutated requests get an HTTP answer and leave no error in a log."""

import asyncio

import pytest

from tests.fuzz import fuzz_bodies
from tests.fuzz.fuzz_http import attempts


@pytest.mark.slow
def test_mutated_requests_are_answered():
    ends, wrong = asyncio.run(attempts(300, seed=1))
    assert wrong == []
    assert ends["router 200"] > 10
    assert ends["worker 200"] > 10
    assert ends["router 400"] > 10


@pytest.mark.slow
def test_odd_values_in_fields_of_engines_are_refused_or_harmless():
    ends, wrong = asyncio.run(fuzz_bodies.attempts(300, seed=1))
    assert wrong == []
    assert ends[200] > 30
