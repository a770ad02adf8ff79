"""The catalogue of metrics, by key, and the columns of tables that show metrics.

All code that computes, shows, stores, compares or documents metrics uses this catalogue. To add a
metric, add an entry to ``metrics.entries`` or ``metrics.optional_entries``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from fairbench.errors import unknown_name
from fairbench.metrics.entries import METRICS, chosen_metric
from fairbench.metrics.metric import DIGITS, Column, Display, Metric, Needs, Shown
from fairbench.metrics.shown_percentiles import P99

# ``SOMETIMES`` lists the beginnings of the keys of metrics that many runs lack.
SOMETIMES = (
    *("weight", "goodput", "demoted", "gpu", "tree", "useful", "residency", "min_share_", "limit_"),
    *("max_turn_wait", "victim_session", "min_session"),
)
# ``SHORT`` maps the keys of metrics to the shorter names that commands print.
SHORT = {
    "min_entitlement_ratio": "min_share",
    "min_entitlement_best_ratio": "min_share_of_best",
    "tree_worst_share": "min_tree_share",
    "goodput_worst_share": "min_share_of_goodput",
}
# ``ALIASES`` maps further names of metrics, which commands accept, to the metrics' keys.
ALIASES = {short: key for key, short in SHORT.items()} | {
    "worst_share": "min_entitlement_ratio",
    "worst_share_of_best": "min_entitlement_best_ratio",
    "worst_window_share": "min_share_60s",
    "on_time": "goodput_ratio",
}
# Users may choose the percentiles of three latencies of requests: TTFT, TPOT and E2EL.
REQUEST_LATENCIES = ("ttft", "tpot", "e2el")
CHOOSABLE = frozenset(
    {Display.CLIENTS, Display.COMPARED_CLIENTS, Display.REPEATED_CLIENTS}
    | {Display.COMPARISON, Display.CONTRAST, Display.REPEATS}
)
# The notes of a summary refer to a client's metric as clients.NAME.KEY.
CLIENTS = "clients."

CATALOGUE: dict[str, Metric] = {metric.key: metric for metric in METRICS}


def metric_of(key: str) -> Metric | None:
    """Return the metric of a key, which may be clients.NAME.KEY; None for an unknown key."""
    return CATALOGUE.get(metric_name(key)) or chosen_metric(metric_name(key))


def key_of(name: str) -> str:
    """Return the summary key of the metric that a user named."""
    return ALIASES.get(name, name)


def known_key(name: str) -> str:
    """Return the summary key of the metric that a user named; raise UsageError if unknown."""
    if metric_of(key_of(name)) is None:
        raise unknown_name("metric", name, CATALOGUE)
    return key_of(name)


def short_of(key: str) -> str:
    """Return the name under which commands print a metric."""
    return SHORT.get(key, key)


def chosen_metrics(percentiles: Iterable[int]) -> list[Metric]:
    """Return the metrics of the latency percentiles that a user chose."""
    of_requests = [f"_{name}_ms" for name in REQUEST_LATENCIES]
    keys = [
        key
        for rank in percentiles
        for key in (f"victim_p{rank}_s", f"p{rank}_s", *(f"p{rank}{end}" for end in of_requests))
    ]
    return [metric for key in keys if (metric := chosen_metric(key))]


def metric_name(key: str) -> str:
    """Return a metric's key without the prefix ``clients.NAME.`` of a client's metric."""
    return key.rpartition(".")[2] if key.startswith(CLIENTS) else key


def needing(needs: Needs) -> list[str]:
    """Return the keys of the metrics that need data of the kind ``needs``."""
    return [metric.key for metric in CATALOGUE.values() if needs in metric.needs]


def columns_of(
    display: Display, tail: int = P99, percentiles: Sequence[int] = (), *, beside: int = 0
) -> list[Column]:
    """Return the columns of a table or page, from left to right.

    Args:
        display: The table or page to which the columns belong.
        tail: The tail percentile of latencies that is shown, such as 99.
        percentiles: The percentiles that the user chose; () means the default percentiles.
        beside: Another tail percentile that is shown beside ``tail``, or 0 for none.
    """
    metrics = [metric for metric in CATALOGUE.values() if metric.tail in (0, tail, beside)]
    if percentiles and display in CHOOSABLE:
        metrics = [metric for metric in metrics if not chosen_metric(metric.key)]
        metrics += chosen_metrics(percentiles)
    found = [
        (shown, metric) for metric in metrics for shown in metric.shown if shown.display is display
    ]
    return [
        _column(shown, metric) for shown, metric in sorted(found, key=lambda one: one[0].position)
    ]


def column_of(key: str, display: Display) -> Column:
    """Return a metric's column in the table ``display``. Precondition: ``key`` names a metric."""
    metric = metric_of(key)
    assert metric is not None, key
    shown = (one for one in metric.shown if one.display is display)
    return _column(next(shown, Shown(display)), metric)


def columns_with_values(columns: Iterable[Column], keys: Container[str]) -> list[Column]:
    """Keep the columns that every run has, and the optional columns whose metric is in ``keys``."""
    return [one for one in columns if one.key in keys or not one.key.startswith(SOMETIMES)]


def _column(shown: Shown, metric: Metric) -> Column:
    usual = metric.column or "\n".join(filter(None, (metric.heading, metric.unit)))
    if shown.display in (Display.REPEATS, Display.SEEDS, Display.SUMMARY):
        usual = metric.label if shown.display is not Display.SUMMARY else metric.heading
    return Column(
        metric.key,
        shown.heading or usual,
        shown.form or metric.form,
        metric.better,
        DIGITS.get(metric.form, 0) if metric.digits is None else metric.digits,
        shown.dropped,
        shown.note,
    )


def fitting(columns: list[Column]) -> Iterator[list[Column]]:
    """Yield ``columns``, then shorter and shorter lists; a caller uses the first list that fits."""
    order = sorted(one.dropped for one in columns if one.dropped is not None)
    yield columns
    for last in order:
        yield [one for one in columns if one.dropped is None or one.dropped > last]


def forget_needing(summary: dict[str, Any], needs: Needs, reason: str) -> None:
    """Set all metrics that need the data ``needs`` to null in a summary, and note the reason."""
    forget_metrics(summary, [key for key in needing(needs) if key in summary], reason)
    if needs is Needs.CACHED:
        for window in summary.get("worst_windows", ()):
            window["why"] |= {"hit_rate": None, "run_hit_rate": None}


def forget_metrics(summary: dict[str, Any], keys: Iterable[str], reason: str) -> None:
    """Set metrics to null in a summary, for the run and for each client, and note the reason."""
    for key in keys:
        summary[key] = None
        summary["notes"][key] = reason
        for client in summary["clients"]:
            if key in client:
                client[key] = None
                summary["notes"][f"clients.{client['client']}.{key}"] = reason
