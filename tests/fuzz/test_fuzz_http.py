"""Mutated requests get an answer in HTTP, and leave no trouble in a log."""

import asyncio

import pytest
from fuzz_http import attempts


@pytest.mark.slow
def test_mutated_requests_are_answered():
    ends, wrong = asyncio.run(attempts(300, seed=1))
    assert wrong == []
    assert ends["router 200"] > 10
    assert ends["worker 200"] > 10
    assert ends["router 400"] > 10
