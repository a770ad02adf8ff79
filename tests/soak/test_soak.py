"""The soak and the kills, in small: 2,000 requests and five faults, three kills."""

import pytest
from kills import POINTS, kills

from soak import soak

FAULTS = 5


@pytest.mark.slow
@pytest.mark.alone
def test_no_request_is_lost_whatever_fails():
    told = soak(2_000, FAULTS, seed=1, last_s=(1.0, 3.0))
    assert told["wrong"] == []
    assert sum(told["requests"].values()) == 2_000
    assert told["requests"]["ok"] > 1_700
    assert sum(told["faults"].values()) == FAULTS
    assert told["recounts of all credits"] > 1


@pytest.mark.slow
@pytest.mark.alone
def test_a_sweep_that_is_killed_goes_on_without_loss():
    told = kills(3, seed=1)
    assert told["wrong"] == []
    assert (sum(told["kills"].values()), told["points"]) == (3, POINTS * told["sweeps"])
