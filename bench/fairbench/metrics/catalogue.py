"""The catalogue of metrics: an entry for each metric of a run, a client or a comparison.

All code that shows, stores, compares or documents metrics uses this catalogue. To add a metric,
write the function that computes it from the tables and facts of a run, and put an entry with that
function into ``metrics.entries``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from fairbench.errors import unknown_name
from fairbench.metrics.censored_latency import Percentile
from fairbench.metrics.entries import fairness, latency, some_runs
from fairbench.metrics.metric import DIGITS, Column, Display, Metric, Needs, Shown
from fairbench.metrics.shown_percentiles import P99

# Prefixes of keys that are undefined in many runs.
SOMETIMES = ("weight", "goodput", "demoted", "gpu", "tree", "useful", "residency", "min_share_")
# Short names of metrics that every command prints instead of the key.
SHORT = {
    "min_entitlement_ratio": "min_share",
    "min_entitlement_best_ratio": "min_share_of_best",
    "tree_worst_share": "min_tree_share",
    "goodput_worst_share": "min_share_of_goodput",
}
# Other names that commands accept for a metric.
ALIASES = {short: key for key, short in SHORT.items()} | {
    "worst_share": "min_entitlement_ratio",
    "worst_share_of_best": "min_entitlement_best_ratio",
    "worst_window_share": "min_share_60s",
    "on_time": "goodput_ratio",
}
REQUEST_LATENCIES = ("ttft", "tpot", "e2el")  # latencies whose percentiles a user may choose
CHOOSABLE = frozenset(
    {Display.CLIENTS, Display.COMPARED_CLIENTS, Display.REPEATED_CLIENTS}
    | {Display.COMPARISON, Display.REPEATS}
)
CLIENTS = "clients."  # inside ``clients``, keys are clients.NAME.KEY, as in ``notes``

CATALOGUE: dict[str, Metric] = {
    metric.key: metric for part in (latency, fairness, some_runs) for metric in part.METRICS
}


def metric_of(key: str) -> Metric | None:
    """Return the entry of a key, possibly inside ``clients``; None if it is not a metric."""
    return CATALOGUE.get(name_of(key)) or latency.chosen_metric(name_of(key))


def key_of(name: str) -> str:
    """Return the summary key for a user's name of a metric."""
    return ALIASES.get(name, name)


def known_key(name: str) -> str:
    """Return the summary key for a user's name of a metric. Raises UsageError if unknown."""
    if metric_of(key_of(name)) is None:
        raise unknown_name("metric", name, CATALOGUE)
    return key_of(name)


def short_of(key: str) -> str:
    """Return the name under which commands print a metric."""
    return SHORT.get(key, key)


def chosen_metrics(percentiles: Iterable[int]) -> list[Metric]:
    """Return the entries of percentiles that a user chose."""
    of_requests = [f"_{name}_ms" for name in REQUEST_LATENCIES]
    keys = [
        key
        for rank in percentiles
        for key in (f"victim_p{rank}_s", f"p{rank}_s", *(f"p{rank}{end}" for end in of_requests))
    ]
    return [metric for key in keys if (metric := latency.chosen_metric(key))]


def name_of(key: str) -> str:
    """Return the metric of a key, without the client's name."""
    return key.rpartition(".")[2] if key.startswith(CLIENTS) else key


def needing(needs: Needs) -> list[str]:
    """Return the metrics that need ``needs``, by their keys."""
    return [metric.key for metric in CATALOGUE.values() if needs in metric.needs]


def columns_of(
    display: Display, tail: int = P99, percentiles: Sequence[int] = (), *, beside: int = 0
) -> list[Column]:
    """Return the columns of a table in order, with ``tail`` and ``beside`` as percentiles.

    If ``percentiles`` are chosen, only these are shown.
    """
    metrics = [metric for metric in CATALOGUE.values() if metric.tail in (0, tail, beside)]
    if percentiles and display in CHOOSABLE:
        metrics = [metric for metric in metrics if not latency.chosen_metric(metric.key)]
        metrics += chosen_metrics(percentiles)
    found = [
        (shown, metric) for metric in metrics for shown in metric.shown if shown.display is display
    ]
    return [
        _column(shown, metric) for shown, metric in sorted(found, key=lambda one: one[0].position)
    ]


def column_of(key: str, display: Display) -> Column:
    """Return the column of a metric, as a table with ``display`` shows it.

    Precondition: the metric is known.
    """
    metric = metric_of(key)
    assert metric is not None, key
    shown = (one for one in metric.shown if one.display is display)
    return _column(next(shown, Shown(display)), metric)


def told(columns: Iterable[Column], keys: Container[str]) -> list[Column]:
    """Return the columns that apply to the ``keys`` present."""
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
    """Yield the columns, then progressively fewer columns, for tables that are too wide."""
    order = sorted(one.dropped for one in columns if one.dropped is not None)
    yield columns
    for last in order:
        yield [one for one in columns if one.dropped is None or one.dropped > last]


class Part(NamedTuple):
    """Metrics by JSON key: of the run, and of clients by index (empty if no client has any)."""

    run: Mapping[str, Any] = {}
    clients: Sequence[Mapping[str, Any]] = ()


class Notes:
    """Notes of a summary under construction, by JSON key, such as ``clients.NAME.key``.

    ``reasons`` has one entry for every value that is undefined or estimated.
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}
        self._censored: dict[str, None] = {}

    @property
    def censored(self) -> list[str]:
        """The keys of latencies that print as "> x s"."""
        return list(self._censored)

    def value(self, key: str, value: float, reason: str = "") -> float:
        """Return the value; note ``reason`` or the catalogue's reason if it is not finite."""
        if not isfinite(value):
            metric = metric_of(key)
            assert reason or metric, f"{key} is not in the catalogue"
            self.reasons[key] = reason or (metric.undefined if metric else "")
        return value

    def values(self, values: Mapping[str, float], prefix: str = "") -> Mapping[str, float]:
        """Return the values; note the catalogue's reason for each that is not finite."""
        for key, value in values.items():
            self.value(prefix + key, value)
        return values

    def remark(self, key: str, text: str) -> None:
        """Add a remark on a value; the reason for an undefined value replaces it."""
        self.reasons[key] = text

    def latency(self, key: str, percentile: Percentile, reason: str = "") -> float:
        """Return a percentile's value and note if it is undefined or a lower bound."""
        if percentile.censored and isfinite(percentile.value_s):
            self._censored[key] = None
        return self.value(key, percentile.value_s, reason)


def forget_needing(summary: dict[str, Any], needs: Needs, reason: str) -> None:
    """Replace all metrics that need unknown data by null, with the reason."""
    forget(summary, [key for key in needing(needs) if key in summary], reason)


def forget(summary: dict[str, Any], keys: Iterable[str], reason: str) -> None:
    """Replace these metrics of a summary and of its clients by null, with the reason."""
    for key in keys:
        summary[key] = None
        summary["notes"][key] = reason
        for client in summary["clients"]:
            if key in client:
                client[key] = None
                summary["notes"][f"clients.{client['client']}.{key}"] = reason
