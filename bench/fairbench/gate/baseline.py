"""A directory of baselines: spec, summary and manifest of each experiment.

NAME/experiment.toml   what is run; put there by hand, the rest follows
NAME/summary.json
NAME/manifest.json
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from fairbench.config import ExperimentSpec, identity
from fairbench.config.resolve import read_spec
from fairbench.config.spec import experiment_tables
from fairbench.errors import DataError, UsageError
from fairbench.files.toml_text import read_toml
from fairbench.gate.formats import changes_table
from fairbench.gate.outcome import changes
from fairbench.report.table import MAX_WIDTH, printed
from fairbench.results.comparison import experiment_of
from fairbench.results.grid import differences
from fairbench.results.store import EXPERIMENT, MANIFEST, SUMMARY, StoredRun, read_json, write_json
from fairbench.results.values import values_of

# Keys that identify a run but do not affect its results: a rerun elsewhere must not change them.
NOT_KEPT = ("git", "host", "started", "wall_s", "cpu_s")


def read_specs(folder: Path) -> dict[str, ExperimentSpec]:
    """Return the experiments of a baseline directory, by name.

    Raises UsageError if there are none, or if an experiment cannot be simulated.
    """
    files = sorted(folder.glob(f"*/{EXPERIMENT}"))
    if not files:
        raise UsageError(
            f"{folder}: must be a baseline, a directory with NAME/{EXPERIMENT} for each experiment"
        )
    specs = {file.parent.name: read_spec(file) for file in files}
    for name, spec in specs.items():
        if spec.backend is not None:
            raise UsageError(
                f"{folder / name}: backend {spec.backend.kind} is not supported; a baseline "
                "needs the simulator"
            )
    return specs


def check_stored(folder: Path, specs: Mapping[str, ExperimentSpec]) -> None:
    """Raise DataError if a baseline has no results, or those of another experiment.

    The results differ in experiment if a setting was added later, or if the file was edited.
    """
    for name, spec in specs.items():
        file = folder / name / EXPERIMENT
        found = [
            f"default added: {one}"
            for one in differences(experiment_tables(spec), read_toml(file, str(file)))
        ]
        if not (folder / name / SUMMARY).exists():
            found = ["no results are stored"]
        elif not found and _identity_of(folder / name) not in (None, identity(spec)):
            found = ["the experiment was edited after its results were stored"]
        if found:
            advice = f"to store the results: fairbench baseline update {folder}"
            raise DataError(f"{file}: {found[0]}; {advice}")


def metrics_stored(folder: Path, specs: Mapping[str, ExperimentSpec]) -> set[str]:
    """Return the keys of all metrics in a baseline's summaries."""
    return {key for name in specs for key in values_of(read_json(folder / name / SUMMARY))}


def _identity_of(stored: Path) -> str | None:
    """Return the identity of the experiment whose results are stored; None if unknown."""
    manifest = stored / MANIFEST
    found = read_json(manifest).get("spec_identity") if manifest.exists() else None
    return None if found is None else str(found)


def difference(
    stored: Path, run: StoredRun, *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return the lines that describe how a run differs from the stored baseline; "" if equal.

    Raises DataError if the baseline's summary cannot be read.
    """
    if not (stored / SUMMARY).exists():
        return "  new\n"
    file = stored / EXPERIMENT
    spec = differences(experiment_of(run), read_toml(file, str(file)))
    text = "".join(f"  experiment: {one}\n" for one in spec)
    if found := changes(read_json(stored / SUMMARY), run.summary):
        text += printed(changes_table(found), colour=colour, width=width)
    return text


def keep(run: StoredRun, folder: Path) -> None:
    """Store a run as the baseline in ``folder``, without facts about the machine."""
    shutil.copyfile(run.path / EXPERIMENT, folder / EXPERIMENT)
    write_json(folder / SUMMARY, run.summary)
    write_json(folder / MANIFEST, {k: v for k, v in run.manifest.items() if k not in NOT_KEPT})
