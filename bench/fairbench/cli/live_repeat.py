"""``fairbench run --backend B --num-runs N``: several seeds, one after another, on one cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairbench.cli.bench_file import OnSaved
    from fairbench.config import ExperimentSpec
    from fairbench.live.backends.base import LiveOptions


def run_live_repeatedly(
    spec: ExperimentSpec,
    options: LiveOptions,
    num_runs: int,
    result_dir: Path,
    on_saved: OnSaved,
    *,
    as_json: bool,
    show: bool,
) -> None:
    """Run seeds ``spec.seed`` and up, each saved as usual, inside one fresh directory.

    Workers are started once, and their caches emptied between runs. That directory also gets their
    logs and ``intervals.json``. On Ctrl-C, what was begun is kept as it stands.
    """
    from fairbench.cli.progress import live_progress
    from fairbench.cli.repeat import conclude
    from fairbench.execute.interruption import interruptible
    from fairbench.execute.live_run import as_progress_line, run_and_save, shared_cluster
    from fairbench.results.directories import check_writable, fresh_directory
    from fairbench.results.store import run_name

    check_writable(result_dir)
    parent = fresh_directory(result_dir, f"{run_name(spec)}-x{num_runs}")
    summaries = []
    with (
        interruptible() as interrupted,
        live_progress(show, as_progress_line) as on_progress,
        shared_cluster(spec, options, parent, on_progress, interrupted) as cluster,
    ):
        for seed in range(spec.seed, spec.seed + num_runs):
            if interrupted():
                break
            one = spec.model_copy(update={"seed": seed})
            result, _ = run_and_save(one, options, parent, on_progress, interrupted, cluster)
            summaries.append(result.summary)
    conclude(summaries, parent, on_saved, interrupted, as_json=as_json)
