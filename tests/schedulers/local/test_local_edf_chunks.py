"""Test chunk sizes chosen by the promised pace of running requests."""

import pytest

from fairbench.schedulers.base import Setup
from fairbench.schedulers.parts.slack import LEAST_TOKENS, MOST_TOKENS
from fairbench_rivals.local.niyama import Niyama
from tests.schedulers.local.test_local_edf_rescue import Costs, edf, home_with, request


def niyama(chunks):
    scheduler = Niyama(Niyama.Params(chunks=chunks))
    scheduler.prepare(Setup(costs=Costs()))
    return scheduler


@pytest.mark.parametrize("scheduler_of", [edf, niyama])
@pytest.mark.parametrize(
    ("ends", "prompt_tokens"),
    [
        # One second has passed and ten tokens are due; a step takes a second, a prefill one second
        # and 0.01 s per token.
        ((31.0,), 100),  # 3 s each
        ((31.0, 28.5, 41.0), 75),  # the tightest pace counts
        ((16.0,), LEAST_TOKENS),  # 1.5 s: not even one fits, but prompts must progress
        ((10.0,), MOST_TOKENS - 1),  # this request cannot keep its pace in any case
        ((10.0, 31.0), 100),
    ],
)
def test_a_step_is_as_long_as_the_tightest_pace_allows(ends, prompt_tokens, scheduler_of):
    running = [request(i, new=11, end=end) for i, end in enumerate(ends)]
    home = home_with(running, scheduler_of(chunks=True), tokens=1000)
    assert home.scheduler.step_tokens is not None
    home.step()
    assert home.scheduler.step_tokens(home, home.now_s) == len(ends) + prompt_tokens


def test_without_the_option_the_engine_decides():
    assert edf().step_tokens is None
    assert niyama(chunks=False).step_tokens is None
