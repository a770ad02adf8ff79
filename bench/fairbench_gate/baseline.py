"""A directory of baselines, with three files for each experiment.

NAME/experiment.toml   the experiment, written by hand; fairbench writes the other files
NAME/summary.json
NAME/manifest.json
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec, identity
from fairbench.config.origins import is_edited, lacks_given, with_given
from fairbench.config.resolve import read_experiment, read_spec, with_new_defaults
from fairbench.config.spec import experiment_tables, without_given
from fairbench.errors import DataError, UsageError
from fairbench.files.formats import read_toml
from fairbench.report.table import MAX_WIDTH, printed
from fairbench.results.comparison import experiment_of
from fairbench.results.experiments import CHOSEN, differences
from fairbench.results.store import EXPERIMENT, MANIFEST, SUMMARY, StoredRun, read_json, write_json
from fairbench.results.summary import values_of
from fairbench_gate.formats import changes_table
from fairbench_gate.outcome import changes

# Baselines omit the manifest keys ``NOT_KEPT``, which describe when and where a run took place.
NOT_KEPT = ("git", "host", "started", "wall_s", "cpu_s")


def read_specs(folder: Path) -> dict[str, ExperimentSpec]:
    """Return the experiments of a baseline directory by name.

    Values that the user chose come from the file, and all other values are current defaults. Raises
    UsageError for a directory without experiments or with an invalid experiment.
    """
    files = sorted(folder.glob(f"*/{EXPERIMENT}"))
    if not files:
        raise UsageError(
            f"{folder}: must be a baseline, a directory with NAME/{EXPERIMENT} for each experiment"
        )
    specs = {file.parent.name: with_new_defaults(_with_given(file), file) for file in files}
    for name, spec in specs.items():
        if spec.backend is not None:
            raise UsageError(
                f"{folder / name}: backend {spec.backend.kind} is not supported; a baseline "
                "needs the simulator"
            )
    return specs


def _with_given(file: Path) -> Mapping[str, Any]:
    """Read an experiment file, whose table ``given`` contains the values that the user chose.

    If the file has no table ``given``, the table is built from the chosen keys that the manifest
    lists.
    """
    tables, manifest = read_experiment(file), _manifest_of(file)
    chosen = manifest.get(CHOSEN)
    if not (lacks_given(tables) and isinstance(chosen, list)):
        return tables
    if manifest.get("spec_identity") != identity(read_spec(file)):
        return tables
    return with_given(tables, chosen)


def check_stored(folder: Path, specs: Iterable[str]) -> None:
    """Raise DataError if a baseline experiment has no stored results, or outdated results.

    Results are outdated if the experiment file was edited later, or if an older version of
    fairbench stored the results without a setting that exists today.
    """
    for name in specs:
        file = folder / name / EXPERIMENT
        found = (
            _unlike_results(file) if (folder / name / SUMMARY).exists() else "no results are stored"
        )
        if found:
            advice = f"to store the results: fairbench baseline update {folder}"
            raise DataError(f"{file}: {found}; {advice}")


def _unlike_results(file: Path) -> str:
    """Return why stored results do not belong to the experiment file, or "" if they do."""
    tables = read_toml(file, str(file))
    is_ours = not is_edited(tables)
    try:
        spec = read_spec(file)
    except UsageError:
        # If a default in the file no longer exists in this version of fairbench, the default is
        # ignored.
        if is_ours:
            return ""
        raise
    added = differences(experiment_tables(spec), without_given(tables))
    if added:
        return "" if is_ours else f"default added: {added[0]}"
    if _manifest_of(file).get("spec_identity") in (None, identity(spec)):
        return ""
    return "the experiment was edited after its results were stored"


def metrics_stored(folder: Path, specs: Iterable[str]) -> set[str]:
    """Return the keys of all metrics in the baseline's summaries."""
    return {key for name in specs for key in values_of(read_json(folder / name / SUMMARY))}


def _manifest_of(file: Path) -> dict[str, Any]:
    manifest = file.parent / MANIFEST
    return read_json(manifest) if manifest.exists() else {}


def difference(
    stored: Path, run: StoredRun, *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return the differences of a run from the stored baseline as text, or "" if there are none.

    Raises DataError if a summary of the baseline cannot be read.
    """
    if not (stored / SUMMARY).exists():
        return "  new\n"
    file = stored / EXPERIMENT
    spec = differences(experiment_of(run), without_given(read_toml(file, str(file))))
    text = "".join(f"  experiment: {one}\n" for one in spec)
    if found := changes(read_json(stored / SUMMARY), run.summary):
        text += printed(changes_table(found), colour=colour, width=width)
    return text


def keep(run: StoredRun, folder: Path) -> None:
    """Store a run as the baseline in ``folder``, without information about the machine."""
    shutil.copyfile(run.path / EXPERIMENT, folder / EXPERIMENT)
    write_json(folder / SUMMARY, run.summary)
    write_json(folder / MANIFEST, {k: v for k, v in run.manifest.items() if k not in NOT_KEPT})
