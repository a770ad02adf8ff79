"""A run's summary for people: at most ``MAX_WIDTH`` columns, made from the summary alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.numbers import UNDEFINED, index, more_than, number, percent, whole

MAX_WIDTH = 100
NAME_WIDTH = 16  # of a client; longer names are cut in the table, never in the files
ENOUGH_FOR_P99 = 300

Summary = Mapping[str, Any]


def as_text(summary: Summary, *, path: Path, complete: bool = True, colour: bool = False) -> str:
    """``render`` as lines of text, with ANSI colours or without."""
    console = Console(
        width=MAX_WIDTH, force_terminal=colour, color_system="standard" if colour else None
    )
    with console.capture() as capture:
        console.print(render(summary, path=path, complete=complete))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def render(summary: Summary, *, path: Path, complete: bool = True) -> RenderableType:
    """The summary as rich renderables: cluster, clients, then the numbers over all of them.

    An undefined number shows as ``-``; why is among the notes at the end. A percentile that falls
    among unfinished programs shows as ``> x``.
    """
    blocks: list[RenderableType] = [
        Text(cluster_line(summary), style="bold"),
        Text(_details(summary)),
    ]
    if not complete:
        blocks.append(Text("INCOMPLETE: the run was interrupted", style="bold red"))
    blocks += [Text(), _clients(summary), Text(), _pairs(_results(summary))]
    blocks += [Text(), _pairs([*_notes(summary), ("files", str(path))])]
    return Group(*blocks)


def cluster_line(summary: Summary) -> str:
    """What was run on what, beginning with whether it was simulated."""
    kind = "simulated" if summary["simulated"] else "measured"
    error = f" +-{summary['timing_error_pct']:g}%" if summary.get("timing_error_pct") else ""
    return (
        f"{kind} on {summary['timing_profile']}{error}, dp {summary['dp']}, "
        f"scheduler {summary['scheduler']}, seed {summary['seed']}"
    )


def _details(summary: Summary) -> str:
    text = (
        f"router {summary['router']}, local {summary['local']}, "
        f"workload {summary['workload']}, scenario {summary['scenario']}"
    )
    if "pool_tokens" in summary:
        text += f", KV pool {summary['pool_tokens']:,} tokens per replica"
    if "mem_fraction_static" in summary:
        text += f" (mem_fraction_static {summary['mem_fraction_static']})"
    return text


def _clients(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("client", max_width=NAME_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("behaviour", no_wrap=True)
    for heading in (
        "programs",
        "service\ntok/s",
        "actual\ntok/s",
        "of fair\nshare",
        "P50\ns",
        "P99\ns",
        "n",
        "cache\nhit",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    censored = set(summary.get("censored", ()))
    for client in summary["clients"]:
        table.add_row(*_client_row(client, censored))
    return table


def _client_row(client: Summary, censored: set[str]) -> Iterator[Text]:
    prefix = f"clients.{client['client']}."
    yield Text(str(client["client"]))
    yield Text("misbehaves", "yellow") if client["misbehaving"] else Text("well")
    yield Text(number(client["programs"]))
    yield Text(number(client["service_rate_tok_s"]))
    yield Text(number(client["actual_service_tok_s"]))
    yield Text(percent(client["entitlement_ratio"]))
    yield Text(_latency(client, "p50_s", censored, prefix))
    yield Text(_latency(client, "p99_s", censored, prefix))
    yield Text(number(client.get("latency_n")))
    yield Text(percent(client["cache_hit_rate"]))


def _results(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "throughput", _throughput(summary)
    yield (
        "Jain index",
        f"{index(summary['jain_index'])} of service "
        f"(max-min fair: {index(summary['jain_index_maxmin'])}), "
        f"{index(summary['jain_index_actual'])} of actual service, "
        f"{index(summary['jain_index_entitlement'])} per entitlement",
    )
    if summary.get("jain_index_paper_window") is not None:
        start, end = summary["paper_window_start_s"], summary["paper_window_end_s"]
        yield (
            "",
            f"{index(summary['jain_index_paper_window'])} of service while all clients were "
            f"active ({whole(start)} to {whole(end)} s)",
        )
    worst = percent(summary["min_entitlement_ratio"])
    yield "worst client", f"{worst} of its max-min fair share"
    yield "well-behaved", _victims(summary)
    yield "service gap", _gap(summary)
    if "time_to_50pct_s" in summary:
        times = [number(summary[f"time_to_{done}pct_s"]) for done in (50, 90, 100)]
        yield (
            "finished",
            f"50 / 90 / 100% of the programs of warm-up and window by {' / '.join(times)} s",
        )
    yield (
        "requests",
        f"{number(summary['num_requests'])} of {number(summary['num_programs'])} programs: "
        f"{number(summary['completed'])} completed, {number(summary['failed'])} unfinished, "
        f"{number(summary['refused'])} refused",
    )


def _throughput(summary: Summary) -> str:
    text = (
        f"{number(summary['service_rate_tok_s'])} tok/s of service, "
        f"{number(summary.get('output_rate_tok_s', summary['output_throughput']))} of output, "
        f"{number(summary.get('extend_rate_tok_s'))} of computed input"
    )
    if "window_start_s" in summary:
        start, end = summary["window_start_s"], summary["window_end_s"]
        text += f", from {whole(start)} to {whole(end)} s"
    return text + (" (limited by demand)" if summary.get("demand_limited") else "")


def _victims(summary: Summary) -> str:
    """Latency of the clients that did nothing wrong, and how far to trust its P99."""
    censored, n = set(summary.get("censored", ())), summary.get("victim_n")
    parts = [
        f"P{rank} {_latency(summary, f'victim_p{rank}_s', censored)} s"
        for rank in (50, 95, 99)
        if f"victim_p{rank}_s" in summary
    ]
    kind = {"ttft": " to the first token", "program": " for a program"}
    text = ", ".join(parts) + kind.get(summary.get("latency", ""), "")
    if n is not None and n < ENOUGH_FOR_P99:
        text += f" (n = {n}; a P99 needs about {ENOUGH_FOR_P99})"
    return text


def _latency(row: Summary, key: str, censored: set[str], prefix: str = "") -> str:
    value = row[key]
    if value is not None and prefix + key in censored:
        return more_than(float(value))
    return number(None if value is None else float(value))


def _gap(summary: Summary) -> str:
    """Tokens, and how many seconds the whole cluster works for them."""
    gap, bound = summary["max_service_gap"], summary["service_gap_bound"]
    bound_s = summary.get("service_gap_bound_s")
    texts = []
    for tokens in (gap, bound):
        time_s = tokens * bound_s / bound if tokens is not None and bound and bound_s else None
        texts.append(
            UNDEFINED
            if tokens is None
            else f"{tokens:,.0f} tokens" + ("" if time_s is None else f" = {number(time_s)} s")
        )
    source = summary.get("bound_source")
    return f"largest {texts[0]}; bound {texts[1]}" + (f" ({source})" if source else "")


def _notes(summary: Summary) -> Iterator[tuple[str, str]]:
    """Why something has no value; what has none for the same reason shares a line.

    Keys in ms are not in the table, so their notes are only in the JSON.
    """
    by_reason: dict[str, list[str]] = {}
    for key, reason in summary.get("notes", {}).items():
        if not key.endswith("_ms"):
            by_reason.setdefault(reason, []).append(key.removeprefix("clients."))
    label = "notes"
    if summary.get("token_count_method"):
        yield label, f"tokens of the real input: {summary['token_count_method']}"
        label = ""
    for reason, keys in by_reason.items():
        yield label, f"{', '.join(keys)}: {reason}"
        label = ""


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label, style="dim"), Text(text))
    return table
