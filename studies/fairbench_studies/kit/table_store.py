"""The CSV files from which the documentation's tables are made (results/tables/*.csv)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fairbench_studies.kit.rows import TABLES, Row, read_rows, write_rows

# Table rows are sorted in the order of ``WORKLOADS`` and ``SCHEDULERS``. The columns ``IDENTITY``
# identify a run, and the columns ``NUMBERS`` hold the run's metrics.
WORKLOADS = ("tot", "judge", "long-qa", "chat")
SCHEDULERS = ("fcfs", "lpm", "vtc", "preble", "dlpm", "d2lpm", "preble-dlpm", "fair-finish")
IDENTITY = ("workload", "scenario", "scheduler", "dp", "seed")
NUMBERS = (
    "service_rate_tok_s",
    "output_rate_tok_s",
    "jain_index",
    "jain_index_actual",
    "jain_index_maxmin",
    "min_entitlement_ratio",
    "victim_n",
    "victim_p50_s",
    "victim_p95_s",
    "victim_p99_s",
    "cache_hit_rate",
    "num_requests",
    "max_service_gap",
    "service_gap_bound",
    "queue_empty_share",
    "demand_limited",
)
SWEEP_NUMBERS = ("sharing_incentive_p95", "service_rate_tok_s", "jain_index_actual")


def kept(summary: Mapping[str, object], of: str) -> dict[str, str]:
    """Return a run as a table row; the label ``of`` distinguishes runs with the same scheduler."""
    censored = summary["censored"]
    assert isinstance(censored, list)
    return {
        "of": of,
        **{name: str(summary[name]) for name in IDENTITY},
        "profile": str(summary["timing_profile"]),
        **{name: "" if summary[name] is None else repr(summary[name]) for name in NUMBERS},
        "at_least": " ".join(name for name in NUMBERS if name in censored),
    }


def collect(runs: Iterable[str]) -> list[dict[str, str]]:
    """Return sorted table rows of stored runs, each given as ``RUN_DIR`` or ``LABEL::RUN_DIR``."""
    rows = []
    for run in runs:
        label, _, folder = run.rpartition("::")
        summary = Path(folder) / "summary.json"
        rows.append(kept(json.loads(summary.read_text(encoding="utf-8")), label))
    return sorted(rows, key=_place)


def collect_sweep(folder: Path) -> list[dict[str, str]]:
    """Return the table rows of a stored sweep, with each metric's mean over seeds."""
    cells = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["cells"]
    rows = []
    for cell in cells:
        numbers = {name: cell.get(name) or {"mean": None} for name in SWEEP_NUMBERS}
        rows.append(
            {
                **{name: str(cell[name]) for name in ("workload", "scenario", "scheduler", "dp")},
                **{
                    name: "" if number["mean"] is None else repr(number["mean"])
                    for name, number in numbers.items()
                },
                "at_least": " ".join(
                    name for name, number in numbers.items() if number.get("lower_bound")
                ),
            }
        )
    return sorted(rows, key=lambda row: (*_place(row), int(row["dp"])))


def _place(row: Row) -> tuple[int, str, int]:
    return (WORKLOADS.index(row["workload"]), row["scenario"], SCHEDULERS.index(row["scheduler"]))


def write(name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Write ``results/tables/NAME.csv``."""
    TABLES.mkdir(parents=True, exist_ok=True)
    write_rows(TABLES / f"{name}.csv", rows)


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of ``results/tables/NAME.csv``."""
    return read_rows(TABLES / f"{name}.csv")
