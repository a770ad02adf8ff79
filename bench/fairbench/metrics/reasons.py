"""Values of metrics, with the reason for each missing value."""

from __future__ import annotations

from typing import NamedTuple

LATENCIES = {
    "ttft": "no request completed",
    "tpot": "no completed request has two tokens",
    "e2el": "no request completed",
    "itl": "the records hold each request's first and last token, not the ones between",
}
"""Reasons why the latency metrics of single requests may be undefined, by metric."""

EMPTY_WINDOW = "the run ended before its window began"
NO_TIME = "the run lasted no time"
NO_SERVICE = "no client was served in the window"
NO_DEMAND = "no client was entitled to any service in the window"
NOT_CONTENDED = "not contended: no client was short of service"
TOO_FEW_REQUESTS = "no client that was entitled to four requests or more had to wait"
TOO_FEW_CALLS = "no session that was entitled to enough calls had to wait for long enough"
QUEUE_ESTIMATED = "estimated from the times to first token: the server reported no admissions"
NOT_ALL_ACTIVE = "the clients were never all active together"
NO_COHORT = "no request arrived in the window"
NO_VICTIM = "there is no well-behaved client"
NO_BOUND = "no theorem bounds the difference"
NO_TENANTS = "no client has a tenant, or no one was short of service"
NOT_SENT = "no request was sent"
NOT_ALONE_IN_MEMORY = "no run of the client alone was simulated, or its hit rate there was 0"
NOT_ALONE = "the client alone was not simulated"
ALL_FIT = "the KV memory holds all distinct prefixes"
NO_LIMIT = "the cluster is disaggregated, or the window is empty"
NO_GAPS = "the records hold no gaps between tokens"
NONE_MET = "no request kept its targets"

NAN = float("nan")


class Noted(NamedTuple):
    """The value of a metric, with notes for the reader.

    - ``value`` is NaN if the metric is not defined.
    - ``reason`` says why the value is not finite; the default is ``Metric.undefined``.
    - ``bound`` is ">" for a lower bound, which prints as "> x", "<" for an upper bound, and "" for
      an exact value.
    - ``remark`` says how a finite value was found, for example by an estimate.
    """

    value: float
    reason: str = ""
    bound: str = ""
    remark: str = ""
