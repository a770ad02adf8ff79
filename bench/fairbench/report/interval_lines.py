"""Lines of text on several runs of one experiment, combined by ``results.intervals``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from fairbench.metrics.catalogue import columns_of, columns_with_values
from fairbench.metrics.metric import Display
from fairbench.metrics.shown_percentiles import P99, chosen_percentiles
from fairbench.report.client_table import shown_clients
from fairbench.report.numbers import bound_of, less_than, more_than
from fairbench.report.table import MAX_WIDTH
from fairbench.report.verdict import repeats_verdict
from fairbench.results.intervals import METHOD
from fairbench.results.store import Summary
from fairbench.results.summary import basis, cluster_name, scheduler_name

SHARE_DIGITS = 1
MAX_LABEL = 48  # limit on the characters of a label


def repeat_lines(combined: Summary, tail: int = P99) -> Iterator[str]:
    """Yield the combined summary in lines of at most 100 characters, with percentile ``tail``."""
    seeds = combined["seeds"]
    yield from (*wrap(repeats_verdict(combined), MAX_WIDTH), "")
    yield f"{basis(combined)}, {cluster_name(combined)}, scheduler {scheduler_name(combined)}"
    yield f"workload {combined['workload']}, scenario {combined['scenario']}, " + (
        f"{len(seeds)} runs, seeds {seeds[0]} to {seeds[-1]}: {METHOD}"
    )
    if not combined["complete"]:
        yield "INCOMPLETE: some runs ended early, so their values are not of the whole run"
    results = list(results_of(combined, tail))
    clients, which = shown_clients(combined)
    rates = [(_of_client(one), show(one["service_rate_tok_s"], 0)) for one in clients]
    width = min(MAX_LABEL, max(len(label) for label, _ in results + rates))
    lines = [f"  {label:{width}.{width}}  {text}" for label, text in results + rates]
    yield from lines[: len(results)]
    if which:
        yield f"  clients: {which}"
    yield from lines[len(results) :]


def _of_client(client: Mapping[str, Any]) -> str:
    behaviour = "heavy" if client["misbehaving"] else "well-behaved"
    return f"{client['client']}, {behaviour}, tok/s"


def results_of(combined: Summary, tail: int = P99) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each metric over all clients."""
    for column in columns_with_values(
        columns_of(Display.REPEATS, tail, chosen_percentiles(combined)), combined
    ):
        interval = combined[column.key]
        some = interval is not None and interval["runs"] < combined["num_runs"]
        of_runs = f" ({interval['runs']} of {combined['num_runs']} runs)" if some else ""
        share = column.form.is_share
        shown = show(interval, SHARE_DIGITS if share else column.digits, share=share)
        yield column.heading, f"{shown}{of_runs}"


def show(interval: Summary | None, digits: int, *, share: bool = False) -> str:
    """Return ``mean [low, high]``, with > or < for bounds, or - if no run defines it.

    A single run has no interval.
    """
    if interval is None:
        return "-"
    factor, unit = (100, "%") if share else (1, "")
    bound = {">": more_than, "<": less_than}.get(bound_of(interval))
    value = factor * interval["mean"]
    mean = bound(value, digits) if bound else f"{value:,.{digits}f}"
    if interval["low"] is None:
        return f"{mean}{unit}"
    low, high = (f"{factor * interval[end]:,.{digits}f}{unit}" for end in ("low", "high"))
    return f"{mean}{unit} [{low}, {high}]"
