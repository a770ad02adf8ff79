"""The heading of a run's summary: the experiment and its hardware."""

from __future__ import annotations

from fairbench.results.header import cluster_name, scheduler_name
from fairbench.results.store import Summary


def cluster_line(summary: Summary) -> str:
    """Return the experiment and its hardware, beginning with whether it was simulated."""
    called = scheduler_name(summary)
    return f"{basis(summary)}, {cluster_name(summary)}, scheduler {called}, seed {summary['seed']}"


def basis(summary: Summary) -> str:
    """Return whether the numbers are simulated, emulated or measured, and on what hardware."""
    if summary.get("emulated"):
        return f"emulated on {summary['timing_profile'] or summary.get('served')}"
    if not summary["simulated"]:
        return f"measured on {summary.get('served', 'real servers')}"
    error = f" +-{summary['timing_error_pct']:g}%" if summary.get("timing_error_pct") else ""
    engine = f", engine {summary['engine']}" if "engine" in summary else ""
    return f"simulated on {summary['timing_profile']}{error}{engine}"


NOBODY_NAMED = (
    "every client counts as well-behaved, because --misbehaving names none; "
    "`fairbench diagnose` finds heavy clients"
)


def is_nobody_named(summary: Summary) -> bool:
    """Return whether recorded traffic of several clients was played and none is a heavy one."""
    clients = summary.get("clients", ())
    heavy = any(one["misbehaving"] for one in clients)
    return bool(summary.get("trace")) and len(clients) > 1 and not heavy


def trace_lines(summary: Summary) -> list[str]:
    """Return the recorded traffic that was played, and which parts are synthetic."""
    lines = [f"trace {summary['trace']}"] if summary.get("trace") else []
    return lines + ([f"SYNTHETIC: {summary['synthetic']}"] if summary.get("synthetic") else [])


def details_line(summary: Summary) -> str:
    """Return the details of a run in one line."""
    before = f"admission {summary['admission']}, " if "admission" in summary else ""
    if "gateway" in summary:
        before += f"gateway {summary['gateway']} (saturation {summary['saturation']}), "
    text = (
        f"{before}router {summary['router']}, local {summary['local']}, "
        f"workload {summary['workload']}, scenario {summary['scenario']}"
    )
    if summary.get("pool_tokens") is None:
        return text
    fraction = summary.get("mem_fraction_static")
    source = f"set by {summary.get('pool_flag', '--max-total-tokens')}"
    if fraction is not None:
        source = f"mem_fraction_static {fraction}"
    return f"{text}, KV pool {summary['pool_tokens']:,} tokens per replica ({source})"
