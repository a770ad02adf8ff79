"""Test the soak and the kills on a small scale: 2,000 requests, five faults, three kills."""

import asyncio
import random

import pytest

from tests.soak.kills import POINTS, kills
from tests.soak.names import SLACK_MIB, rows_of
from tests.soak.soak import LOCAL, soak
from tests.soak.soak_faults import Saboteur

FAULTS = 5


class Idle(Saboteur):
    """A saboteur without harm. ``seen`` has the requests sent at the end of each fault."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sent, self.seen = 0, []

    async def _set(self, url, kind):
        self.seen += [] if kind else [self.sent]

    async def _signal(self, url, number):
        return 0


@pytest.mark.parametrize(("total", "faults"), [(400, 30), (40, 3), (7, 0)])
def test_requests_that_take_no_time_wait_for_every_fault(total, faults, monkeypatch):
    monkeypatch.setattr("os.kill", lambda *_: None)

    async def requests(saboteur):
        for number in range(total):
            await saboteur.turn(number)
            saboteur.sent += 1
            await saboteur.answered(number + 1)

    async def both():
        saboteur = Idle(None, list("abcd"), random.Random(1), faults, (0.001, 0.003), total)
        async with asyncio.TaskGroup() as group:
            group.create_task(saboteur.work())
            group.create_task(requests(saboteur))
        return saboteur

    saboteur = asyncio.run(both())
    assert (saboteur.left, len(saboteur.done)) == (0, faults)
    assert all(sent <= total * (faults + 0.5) / (faults + 1) + 1 for sent in saboteur.seen)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("router", LOCAL)
def test_no_request_is_lost_under_any_fault(router):
    told = soak(2_000, FAULTS, seed=1, last_s=(1.0, 3.0), router=router)
    assert told["wrong"] == []
    assert sum(told["requests"].values()) == 2_000
    assert told["requests"]["ok"] > 1_700
    assert sum(told["faults"].values()) == FAULTS
    assert (told["recounts of all credits"] > 1) is (router == "d2lpm")


@pytest.mark.slow
def test_a_router_stays_small_when_many_names_each_send_one_request():
    rows = asyncio.run(rows_of(6_000, ("--scheduler", "d2lpm", "--gateway", "vtc"), print))
    assert rows[-1][1] < rows[4][1] + SLACK_MIB


@pytest.mark.slow
def test_a_killed_sweep_continues_without_loss():
    told = kills(3, seed=1)
    assert told["wrong"] == []
    assert (sum(told["kills"].values()), told["points"]) == (3, POINTS * told["sweeps"])
