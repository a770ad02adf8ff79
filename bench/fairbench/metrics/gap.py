"""The largest difference in service between two clients that were backlogged together.

It is what [DLPM] Theorems 4.1 and 5.1 and [VTC] Theorem 4.4 bound. Service is as charged at
admission, recomputation left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.backlog import Backlog
from fairbench.metrics.gap_cells import divided
from fairbench.metrics.gap_inside import Inside
from fairbench.metrics.records import Facts, Floats, Requests
from fairbench.metrics.service import View
from fairbench.metrics.service_log import ServiceLog
from fairbench.metrics.waiting import backlogs


class Gap(NamedTuple):
    """``tokens`` of normalised service between two clients (indices), and the backlog of it."""

    tokens: float
    first: int
    second: int
    start_s: float
    end_s: float


def max_service_gap(requests: Requests, log: ServiceLog, facts: Facts) -> Gap | None:
    """The range of W_f/w_f - W_g/w_g, at its largest over pairs and maximal joint backlogs.

    w is the client's weight. The range over an interval is the largest
    |W_f(t1, t2)/w_f - W_g(t1, t2)/w_g| inside it. A backlog
    [a, e) sees what iterations book by ending in (a, e] and by starting in [a, e), since at one
    instant an iteration ends, then requests arrive, then a pass admits. The view is the bound's
    (``client`` or, also without a bound, as charged). None if no two clients had
    a waiting request on every worker, at every instant of some interval.
    """
    backlog = Backlog.of(backlogs(requests, facts))
    if not backlog.shared:
        return None
    view = View.CLIENT if facts.bound and facts.bound.view == "client" else View.CHARGED
    return _largest(backlog, log, view, facts)


def _largest(backlog: Backlog, log: ServiceLog, view: View, facts: Facts) -> Gap:
    """The gap, found by branch and bound: the pairs that may differ most are looked at first.

    A client is ``ahead`` of, or ``behind``, what all get on average. The gap of a pair is at most
    the sum of both at some instant, and that of one joint backlog at most what its cells allow.
    """
    cells = divided(log, view, backlog, facts)
    inside = Inside(log, view, cells, facts)
    ahead, behind = cells.ahead(), cells.behind()
    reach, furthest = (ahead + behind.max(axis=0)).max(axis=1), behind.max(axis=1)
    best = Gap(-1.0, 0, 0, 0.0, 0.0)
    for first in np.argsort(-reach, kind="stable").tolist():
        if reach[first] <= best.tokens:
            break
        rivals = furthest + ahead[first].max() > best.tokens
        rivals[first] = False
        rivals[rivals] = (ahead[first] + behind[rivals]).max(axis=1) > best.tokens
        joint, bound = cells.bounded(first, backlog.joint(first, rivals), best.tokens)
        best = _closest_look(inside, first, joint, bound, best)
    return best


def _closest_look(inside: Inside, first: int, joint: Backlog, bound: Floats, best: Gap) -> Gap:
    """The better one of ``best`` and the gap of a client in joint backlogs with bounds."""
    most = np.full(joint.client.max(initial=-1) + 1, -np.inf)
    np.maximum.at(most, joint.client, bound)
    for second in np.argsort(-most, kind="stable").tolist():
        if most[second] <= best.tokens:
            break
        of_pair = joint.of_rows((joint.client == second) & (bound > best.tokens))
        ranges = inside.ranges(first, second, of_pair, best.tokens)
        at = int(np.argmax(ranges))
        if ranges[at] > best.tokens:
            start_s, end_s = float(of_pair.start[at]), float(of_pair.end[at])
            pair = sorted((first, second))
            best = Gap(float(ranges[at]), pair[0], pair[1], start_s, end_s)
    return best
