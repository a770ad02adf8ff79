"""Tables that compare the simulator with measured runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairbench_studies.kit.rows import ROOT, Row, read_rows
from fairbench_studies.kit.table_text import as_markdown
from fairbench_studies.validation.report import LONG_TTFT_S, UNRESOLVED


def measured() -> str:
    """Return a table of simulation errors (%) for measured runs that were not used for a fit."""
    runs: dict[str, dict[str, Row]] = {}
    for row in read_rows(ROOT / "results" / "validation" / "validation.csv"):
        if row["fitted"] == "no":
            runs.setdefault(row["run"], {})[row["number"]] = row
    header = (
        *("run", "throughput", "largest client rate", "Jain, simulated / measured"),
        *("TTFT P50", "TTFT P99", "refused"),
    )
    return as_markdown(header, (_validated(run, numbers) for run, numbers in runs.items()))


def _validated(run: str, numbers: Mapping[str, Row]) -> tuple[str, ...]:
    """Return a run's row of the table: the largest error among clients and client groups."""

    def worst(start: str) -> str:
        names = (name for name in numbers if name.startswith(start) and "slice" not in name)
        return f"{max((float(numbers[name]['error_pct']) for name in names), key=abs):+.1f}%"

    return (
        re.sub(r"^LShare/rpm(\d+)/real$", r"RPM \1", run).replace("/", " "),
        worst("throughput"),
        worst("service rate of"),
        " / ".join(f"{float(numbers['Jain'][side]):.3f}" for side in ("simulated", "measured")),
        worst("TTFT P50"),
        worst("TTFT P99"),
        " / ".join(f"{float(numbers['refused'][side]):.0f}" for side in ("simulated", "measured")),
    )


def serving() -> str:
    """Return the simulator's errors for runs of real engines that were not used for a fit.

    Runs on an A100 are simulated with the measured profile and with a profile from operator tables.
    """
    return _engine_runs("serving/validation", "serving/operator-profile")


def serving_h100() -> str:
    """Return the simulator's errors for SGLang's H100 runs, which were not used for a fit."""
    return _engine_runs("gpu/validation").replace("sglang-h100-", "")


def _engine_runs(file: str, other: str | None = None) -> str:
    """Return a table of the runs in ``results/FILE.csv`` that were not used for a fit.

    A row has measured values, each with the simulator's error in parentheses. If ``other`` is not
    None, a cell also has the error of a second simulation (``results/OTHER.csv``). Short times to
    first token have no accuracy target, so no error is shown for them.
    """
    columns: dict[tuple[str | None, str, str], Row] = {}
    for name in filter(None, (file, other)):
        for row in read_rows(ROOT / "results" / f"{name}.csv"):
            columns[name, row["run"], row["number"].split("/")[0]] = row
    body = []
    runs = {row["run"]: row["fitted"] for row in columns.values()}
    for run in (run for run in runs if runs[run] == "false"):
        cells = []
        for number in ("throughput_tok_s", "tpot_p50_ms", "ttft_p50_s", "ttft_p99_s"):
            new, old = columns[file, run, number], columns.get((other, run, number))
            errors = [f"{float(row['error_pct']):+.0f}%" for row in (new, old) if row]
            measured = float(new["measured"])
            text = f"{measured:,.0f}" if measured >= 100 else f"{measured:.3g}"
            resolved = not number.startswith("ttft") or measured > LONG_TTFT_S
            cells.append(f"{text} ({', '.join(errors) if resolved else UNRESOLVED})")
        body.append((run, *cells))
    header = ("run", "throughput, tok/s", "TPOT P50, ms", "TTFT P50, s", "TTFT P99, s")
    return as_markdown(header, body)
