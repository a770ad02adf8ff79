"""Test the claims on figures 5, 11 and 12 of the VTC paper with made-up requests."""

from dataclasses import replace

import numpy as np
import pytest

from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.experiments import ARENA, RPM_LIMITS
from fairbench_studies.vtc.response import judge_limited_times, judge_response_times
from fairbench_studies.vtc.store import Results
from fairbench_studies.vtc.synthetic import judge_pauses

HOLDS, REVERSED, _, _, OFF, _ = Outcome
CLIENTS = 27


def told(parts):
    return [part.outcome for part in parts]


def trace_of(rows):
    """Return requests: client, arrival, time to first token, and latency, of 1 + 2 x 1 tokens."""
    client, *times_s = zip(*rows, strict=True)
    at_s, first_s, last_s = (np.array(column, dtype=float) for column in times_s)
    client = np.array(client)
    one = np.ones(len(client), dtype=int)
    return Trace(client, one, one, at_s, first_s, last_s)


def paused(taken_s=20.0, of_first=1, of_second=6, in_pause=0):
    """Return ten minutes in which client 0 is on in every other minute.

    At 0, 10 and 20 s of each ON phase, client 0 sends ``of_first`` requests. At 1 s, it sends
    ``in_pause`` requests that are served in the second half of the pause. Client 1 is served
    ``of_second`` requests a second all the time.
    """
    rows = []
    for on_s in range(0, 600, 120):
        rows += [(0, on_s + second, 0.0, taken_s) for second in (0, 10, 20)] * of_first
        rows += [(0, on_s + 1.0, 99.0, 109.0)] * in_pause
        rows += [(1, on_s + number / of_second, 0.0, 1.0) for number in range(120 * of_second)]
    return [Results({"vtc-on-off-less vtc": trace_of(rows)}, {}, {}, {})]


@pytest.mark.parametrize(
    ("made", "outcomes"),
    [
        (paused(), [HOLDS, HOLDS, HOLDS]),
        # the requests at 10 and 20 s of an ON phase end in the pause
        (paused(taken_s=55.0), [OFF, HOLDS, HOLDS]),
        # beside 180 requests of client 1 in the second half of a pause, 1 is 0.6% and 3 are 1.6%
        (paused(in_pause=1), [HOLDS, HOLDS, HOLDS]),
        (paused(in_pause=3), [HOLDS, OFF, HOLDS]),
        (paused(in_pause=4), [OFF, OFF, HOLDS]),
        # client 1 is served 60 requests a minute, and client 0 adds 3 or 6 in an ON phase
        (paused(of_second=1), [HOLDS, HOLDS, HOLDS]),
        (paused(of_second=1, of_first=2), [HOLDS, HOLDS, OFF]),
    ],
)
def test_a_client_below_its_share_is_served_while_it_is_on(made, outcomes):
    assert told(judge_pauses(made)) == outcomes


def test_a_lower_total_in_the_pauses_is_shown():
    assert judge_pauses(paused(of_second=1, of_first=2))[2].ours == "0.909x"


def waits(busy_s, *rest_s):
    """Return 27 clients. The last two send every two seconds, and all others every ten seconds.

    The last two clients wait ``busy_s``. The first clients wait the values of ``rest_s``, one each,
    and all further clients wait its last value.
    """
    each_s = [*rest_s, *[rest_s[-1]] * (CLIENTS - 2 - len(rest_s)), busy_s, busy_s]
    rows = [
        (client, at_s, wait_s, wait_s + 1)
        for client, wait_s in enumerate(each_s)
        for at_s in np.arange(0.0, 600.0, 2.0 if client >= CLIENTS - 2 else 10.0)
    ]
    return trace_of(rows)


@pytest.mark.parametrize(
    ("vtc", "fcfs", "outcomes"),
    [
        ((60, 5), (70, 70), [HOLDS, HOLDS, HOLDS]),
        ((60, 5), (70, 20), [REVERSED, HOLDS, REVERSED]),
        # client 0 sends a 35th of all requests, and waits as long as the clients over their share
        ((60, 60, 5), (70, 70), [HOLDS, REVERSED, HOLDS]),
        ((60, 15), (70, 70), [HOLDS, HOLDS, REVERSED]),
        ((20, 5), (70, 70), [HOLDS, REVERSED, HOLDS]),
    ],
)
def test_whose_times_rise_is_judged_for_fcfs_and_vtc(vtc, fcfs, outcomes):
    made = {f"{ARENA} vtc": waits(*vtc), f"{ARENA} fcfs": waits(*fcfs)}
    assert told(judge_response_times([Results(made, {}, {}, {})])) == outcomes


def limited(*waits_s, uneven=1.0, output=(224, 450, 500)):
    """Return runs by limit in which all clients wait equally long. Under FCFS, they wait 70 s.

    At the lowest limit, the last two clients wait ``uneven`` times as long as the others. The runs
    at 5 and at 20 requests a minute and under VTC have the given rates of output tokens.
    """
    named = {
        f"{ARENA} rpm {limit}": waits(wait_s, wait_s)
        for limit, wait_s in zip(RPM_LIMITS, waits_s, strict=True)
    }
    named[f"{ARENA} rpm 5"] = waits(uneven * waits_s[0], waits_s[0])
    named |= {f"{ARENA} vtc": waits(9, 9), f"{ARENA} fcfs": waits(70, 70)}
    for run, rate in zip(("rpm 5", "rpm 20", "vtc"), output, strict=True):
        trace = named[f"{ARENA} {run}"]
        tokens = np.full(len(trace), round(rate * trace.duration_s / len(trace)))
        named[f"{ARENA} {run}"] = replace(trace, output_tokens=tokens)
    return [Results(named, {}, {}, {})]


@pytest.mark.parametrize(
    ("made", "outcomes"),
    [
        (limited(1, 2, 3, 4, 20), [HOLDS] * 6),
        (limited(1, 2, 3, 4, 20, uneven=2.1), [OFF, *[HOLDS] * 5]),
        # at 20 requests a minute, the clients wait less than at 15
        (limited(1, 2, 4, 3, 20), [HOLDS, REVERSED, REVERSED, *[HOLDS] * 3]),
        # at 30 requests a minute, the clients wait much longer than under FCFS
        (limited(1, 2, 3, 4, 200), [HOLDS, HOLDS, REVERSED, *[HOLDS] * 3]),
        (limited(1, 2, 3, 4, 20, output=(250, 400, 560)), [*[HOLDS] * 3, *[OFF] * 3]),
    ],
)
def test_times_under_rate_limits_are_judged(made, outcomes):
    assert told(judge_limited_times(made)) == outcomes


def test_times_under_rate_limits_are_shown_for_each_limit():
    _, means, distances, lowest, *_ = judge_limited_times(limited(1, 2, 3, 4, 20))
    assert means.ours == "1.0, 2.0, 3.0, 4.0, 20.0 s"
    assert distances.ours == "69.0, 68.0, 67.0, 66.0, 50.0 s apart"
    assert lowest.ours == "224"
