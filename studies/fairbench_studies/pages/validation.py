"""Tables of the simulator compared with measured runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairbench_studies.kit.rows import ROOT, Row, read_rows
from fairbench_studies.kit.table_text import as_markdown
from fairbench_studies.validation.report import LONG_TTFT_S, UNRESOLVED


def measured(fitted: str) -> str:
    """Return the validation's runs by row, with errors now and before the last refit."""
    now, before = (_validation(name, fitted) for name in ("validation", "before"))
    header = (
        "run",
        "throughput",
        "largest client rate",
        "Jain, simulated / measured",
        "TTFT P50",
        "TTFT P99",
        "least TTFT",
        "refused",
    )
    return as_markdown(header, (_validated(run, of, before[run]) for run, of in now.items()))


def _validation(name: str, fitted: str) -> dict[str, dict[str, Row]]:
    """Return run -> number -> row of ``results/validation/NAME.csv``."""
    found: dict[str, dict[str, Row]] = {}
    for row in read_rows(ROOT / "results" / "validation" / f"{name}.csv"):
        if row["fitted"] == fitted:
            found.setdefault(row["run"], {})[row["number"]] = row
    return found


def _validated(run: str, now: Mapping[str, Row], before: Mapping[str, Row]) -> tuple[str, ...]:
    """Return a run's row with its present and former errors."""

    def worst(start: str) -> str:
        sides = []
        for of in (before, now):
            names = (name for name in of if name.startswith(start) and "slice" not in name)
            errors = [float(of[name]["error_pct"]) for name in names]
            sides.append(f"{max(errors, key=abs):+.1f}%")
        return ", ".join(sides)

    least, refused = now["least TTFT"], now["refused"]
    return (
        re.sub(r"^LShare/rpm(\d+)/real$", r"RPM \1", run).replace("/", " "),
        worst("throughput"),
        worst("service rate of"),
        " / ".join(f"{float(now['Jain'][side]):.3f}" for side in ("simulated", "measured")),
        worst("TTFT P50"),
        worst("TTFT P99"),
        worst("least TTFT") if float(least["measured"]) < 0.15 else "-",
        f"{float(refused['simulated']):.0f} / {float(refused['measured']):.0f}",
    )


def serving(fitted: str) -> str:
    """Return runs of real engines, with errors under the measured profile.

    Runs on an A100 also have the error under the operator profile.
    """
    return _engine_runs("serving/validation", fitted, "serving/operator-profile")


def serving_h100(fitted: str) -> str:
    """Return the runs of SGLang on an H100, with errors under the measured profile."""
    return _engine_runs("gpu/validation", fitted).replace("sglang-h100-", "")


def _engine_runs(file: str, fitted: str, other: str | None = None) -> str:
    """Return the runs of ``results/FILE.csv``, with the errors of another file in parentheses.

    A time to first token that is too short for a target has no error.
    """
    columns: dict[tuple[str | None, str, str], Row] = {}
    for name in filter(None, (file, other)):
        for row in read_rows(ROOT / "results" / f"{name}.csv"):
            columns[name, row["run"], row["number"].split("/")[0]] = row
    body = []
    runs = {row["run"]: row["fitted"] for row in columns.values()}
    for run in (run for run in runs if runs[run] == fitted):
        cells = []
        for number in ("throughput_tok_s", "tpot_p50_ms", "ttft_p50_s", "ttft_p99_s"):
            new, old = columns[file, run, number], columns.get((other, run, number))
            before = f" ({float(old['error_pct']):+.0f})" if old else ""
            measured = float(new["measured"])
            text = f"{measured:,.0f}" if measured >= 100 else f"{measured:.3g}"
            resolved = not number.startswith("ttft") or measured > LONG_TTFT_S
            cells += [text, f"{float(new['error_pct']):+.0f}%{before}" if resolved else UNRESOLVED]
        body.append((run, *cells))
    header = ("run", "tok/s", "error", "TPOT P50, ms", "error", "TTFT P50, s", "error",
              "TTFT P99, s", "error")  # fmt: skip
    return as_markdown(header, body)
