"""The metrics of a comparison as flat tables: a row per run, and per run and client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.results.comparison import SchedulerResults

NESTED = (
    "evictions", "clients", "notes", "errors", "goodput_classes", "tenants", "worst_windows",
)  # fmt: skip
BOUNDS = ("censored", "upper_bounds")


def write_metrics(folder: Path, cells: Sequence[SchedulerResults]) -> None:
    """Write ``metrics`` and ``clients``, each as .csv and .parquet, into ``folder``.

    Every row begins with the run's directory and the labels of its cell. Bounds are in the columns
    ``censored`` and ``upper_bounds``, keys separated by spaces.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    for name, rows in (("metrics", metric_rows(cells)), ("clients", client_rows(cells))):
        listed = list(rows)
        # Live runs have more keys than others.
        nothing = dict.fromkeys(key for row in listed for key in row)
        table = pa.Table.from_pylist([{**nothing, **row} for row in listed])
        with (folder / f"{name}.csv").open("wb") as file:
            pa.csv.write_csv(table, file)
        with (folder / f"{name}.parquet").open("wb") as file:
            pq.write_table(table, file, compression="zstd")


def metric_rows(cells: Sequence[SchedulerResults]) -> Iterator[dict[str, Any]]:
    """Yield the summary of each run without its clients."""
    for labels, summary in _runs(cells):
        flat = {key: value for key, value in summary.items() if key not in NESTED}
        yield {**labels, **flat, **{key: " ".join(summary[key]) for key in BOUNDS}}


def client_rows(cells: Sequence[SchedulerResults]) -> Iterator[dict[str, Any]]:
    """Yield the clients of each run."""
    for labels, summary in _runs(cells):
        for client in summary["clients"]:
            prefix = f"clients.{client['client']}."
            bounds = {
                key: " ".join(k.removeprefix(prefix) for k in summary[key] if k.startswith(prefix))
                for key in BOUNDS
            }
            yield {**labels, **client, **bounds}


def _runs(cells: Sequence[SchedulerResults]) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    for cell in cells:
        for one in cell.runs:
            labels = {
                "run": one.run.path.name,
                "place": cell.place,
                "cell": cell.scheduler,
                "seed": one.summary["seed"],
            }
            yield labels, one.summary
