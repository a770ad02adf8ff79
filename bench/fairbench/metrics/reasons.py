"""Reasons why a metric may have no value."""

from __future__ import annotations

LATENCIES = {
    "ttft": "no request completed",
    "tpot": "no completed request has two tokens",
    "e2el": "no request completed",
    "itl": "the records hold each request's first and last token, not the ones between",
}
"""Latencies of single requests, and why one may be undefined."""
STATISTICS = ("mean", "median", "std", "p50", "p99")

EMPTY_WINDOW = "the run ended before its window began"
NO_TIME = "the run lasted no time"
NO_SERVICE = "no client was served in the window"
NO_DEMAND = "no client was entitled to any service in the window"
NOT_CONTENDED = "not contended: no client was short of service"
TOO_FEW_REQUESTS = "no client that was entitled to four requests or more was kept waiting"
QUEUE_ESTIMATED = "estimated from the times to first token: the server reported no admissions"
NOT_ALL_ACTIVE = "the clients were never all active together"
NO_COHORT = "no request arrived in the window"
NO_VICTIM = "there is no well-behaved client"
NO_BOUND = "no theorem bounds the difference"
NO_TENANTS = "no client has a tenant, or no one was short of service"
NOT_SENT = "no request was sent"
NOT_ALONE_IN_MEMORY = "no run of the client alone was simulated, or its hit rate there was 0"
NOT_ALONE = "the client alone was not simulated"
