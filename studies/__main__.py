"""Run a script of the studies from a source checkout: ``python studies NAME [ARGUMENT ...]``."""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import signature

SCRIPTS = {
    "attacks": "attacks.table",
    "attacks-reserve": "attacks.reserve",
    "central": "dlpm.central_table",
    "client-limits": "attacks.client_limits",
    "deadlines": "deadlines.table",
    "disaggregation": "disaggregation.table",
    "disaggregation-fair": "disaggregation.fair",
    "disaggregation-order": "disaggregation.order",
    "disaggregation-waits": "disaggregation.waits",
    "fairness": "pages.fairness",
    "frontier-robustness": "frontier.robustness",
    "frontier-tuning": "frontier.tuning",
    "hero": "pages.hero",
    "knees": "preble.knees",
    "leaderboard": "leaderboard.table",
    "limit": "limit.table",
    "loads": "assumptions.loads",
    "memory-attacks": "attacks.memory",
    "memory-share": "memory.table",
    "newcomers": "dlpm.newcomers",
    "profile-error": "assumptions.profile_error",
    "references": "pages.references",
    "report-picture": "pages.report",
    "routers": "routers.table",
    "routers-d2lpm": "routers.d2lpm",
    "seeds": "dlpm.seeds",
    "sessions": "memory.sessions",
    "session-gates": "session_gates.table",
    "session-gates-bound": "session_gates.bound",
    "session-gates-ceiling": "session_gates.ceiling",
    "sharing": "sharing.table",
    "tables": "pages.tables",
    "stalls": "stalls.table",
    "traces": "traces.table",
    "traces-every": "traces.every",
    "traces-seeds": "traces.seeds",
    "upstream": "dlpm.upstream_table",
    "vtc-trace": "vtc.real_trace",
}


def main(arguments: list[str]) -> None:
    """Run the script that the first argument names, with the other arguments."""
    if not arguments or arguments[0] not in SCRIPTS:
        raise SystemExit(
            f"usage: python studies NAME [ARGUMENT ...], where NAME is one of {', '.join(SCRIPTS)}"
        )
    script = import_module(f"fairbench_studies.{SCRIPTS[arguments[0]]}")
    try:
        signature(script.main).bind(*arguments[1:])
    except TypeError:
        raise SystemExit(script.__doc__) from None
    script.main(*arguments[1:])


main(sys.argv[1:])
