"""Measure the errors of derived profiles on all measured runs.

    python tests/hardware/measure_profiles.py [PART_OF_A_FILE'S_NAME...]

prints a table by engine, GPU and model, and writes ``derived_errors.json``, from which derived
profiles state their error. Every profile is a roofline, which all GPUs have.
"""

import gzip
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from fairbench.errors import DataError, UsageError
from fairbench.files.formats import dumps
from fairbench.hardware.catalogue import table_of
from fairbench_calibration.profiling.derived_profile import derive
from fairbench_calibration.profiling.gpus import find_gpu
from fairbench_studies.validation.serving.command import validate_serving

ROOT = Path(__file__).parents[2]
ERRORS = ROOT / "bench/fairbench/hardware/profiles/derived_errors.json"
DATA = ROOT.parent / "shared" / "data"
FILES = (
    *sorted((DATA / "other_gpus").glob("*.jsonl.gz")),
    DATA / "residency_runs.jsonl.gz",
    DATA / "serving_measured_runs.jsonl.gz",
    DATA / "serving_vllm_mixed.jsonl.gz",
)
METRICS = {"throughput": "throughput_tok_s", "time_per_token": "tpot_p50_ms"}


def runs_by_server(files):
    """Return the lines of the files by engine, GPU, model and tensor parallelism."""
    found = {}
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                run = json.loads(line)
                if not {"engine", "gpu", "model"} <= run.keys() or "columns" not in run:
                    continue
                try:
                    gpu = find_gpu(run["gpu"]).name
                except UsageError:
                    continue
                key = (run["engine"], gpu, run["model"], run.get("tp", 1))
                found.setdefault(key, []).append(line)
    return found


def errors_of(key, lines, folder):
    """Return the errors in percent of a derived profile on the runs of one server."""
    engine, gpu, model, tp = key
    found = derive(model, gpu, tp=tp, engine=engine, roofline=True)
    profile, file = folder / "profile.toml", folder / "runs.jsonl"
    profile.write_text(dumps(table_of(found.profile, found.source, {})), encoding="utf-8")
    file.write_text("".join(lines), encoding="utf-8")
    report = validate_serving(file, str(profile), None).as_dict()
    runs = [*report["runs"], *report.get("tenants", [])]
    return {name: [run[metric]["error_pct"] for run in runs] for name, metric in METRICS.items()}


def row_of(key, errors):
    """Return a line of the table: runs within 10%, and the largest error."""
    row = dict(zip(("engine", "gpu", "model", "tp"), key, strict=True))
    row["runs"] = len(errors["throughput"])
    for name, values in errors.items():
        row[f"{name}_within_10"] = sum(abs(value) <= 10 for value in values)
        row[f"{name}_worst_pct"] = round(max(values, key=abs), 1)
    return row


def measured(files=FILES):
    """Yield the lines of the table."""
    with TemporaryDirectory() as folder:
        for key, lines in sorted(runs_by_server(files).items()):
            try:
                errors = errors_of(key, lines, Path(folder))
            except (UsageError, DataError) as error:
                print(f"left out: {key}: {error}", file=sys.stderr)
                continue
            if errors["throughput"]:
                yield row_of(key, errors)


def main():
    parts = sys.argv[1:]
    rows = []
    for row in measured([f for f in FILES if not parts or any(p in f.name for p in parts)]):
        print(row, flush=True)
        rows.append(row)
    if not parts:
        ERRORS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
