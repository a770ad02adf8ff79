"""``fairbench validate`` for runs of real serving engines (SGLang and vLLM)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairbench.errors import DataError, UsageError
from fairbench.hardware.catalogue import named_profile
from fairbench.hardware.timing import TimingProfile
from fairbench_studies.validation.report import NotReplayed, Report, each
from fairbench_studies.validation.serving.profiles import FORK_HOST_MS, profile_of, with_host_cost

if TYPE_CHECKING:
    from fairbench_studies.validation.serving.compare import ServingComparison
    from fairbench_studies.validation.serving.measured import ServingRun
    from fairbench_studies.validation.tenants.compare import TenantComparison


def validate_serving(file: Path, profile: str | None, output_dir: Path | None) -> Report:
    """Replay and compare the runs of a file, and write files if requested."""
    from fairbench_studies.validation.serving.compare import ServingComparison
    from fairbench_studies.validation.serving.files import (
        as_json_object,
        read_serving,
        write_comparison,
    )
    from fairbench_studies.validation.serving.table import serving_text
    from fairbench_studies.validation.tenants.compare import TenantComparison
    from fairbench_studies.validation.tenants.table import tenants_text

    read, unread = read_serving(file)
    found, failed = each(
        lambda run: _replayed(run, profile), read, lambda run: run.name, replayed=True
    )
    runs = [one for one in found if isinstance(one, ServingComparison)]
    tenants = [one for one in found if isinstance(one, TenantComparison)]
    described = [run.as_dict() for run in tenants]
    if output_dir is not None:
        write_comparison(output_dir, runs, described)
        typer.echo(f"fairbench: written to {output_dir}", err=True)
    texts = [serving_text(runs)] if runs else []
    texts += [tenants_text(tenants)] if tenants else []
    return Report(as_json_object(runs, described), "\n".join(texts), [*unread, *failed])


def predict_serving(file: Path, profile: str | None, out: Path) -> list[NotReplayed]:
    """Write predictions for the runs of a file, without reading the measured results.

    Returns the runs that cannot be predicted, with reasons, and also lists them in ``out``. Raises
    UsageError if the file ``out`` exists, or if no run can be predicted.
    """
    from fairbench.results.store import write_json
    from fairbench_studies.validation.serving.files import read_serving
    from fairbench_studies.validation.serving.predict import MEANING, predict

    if out.exists():
        raise UsageError(
            f"--predict {out}: this file exists already, and predictions are not overwritten; "
            "give the path of a new file"
        )
    read, unread = read_serving(file, predict=True)
    found, failed = each(
        lambda run: predict(run, _profile(run, profile)), read, lambda run: run.name, replayed=True
    )
    report = Report({"intervals": MEANING, "predictions": found}, "", [*unread, *failed])
    write_json(out, report.as_dict())
    typer.echo(
        f"fairbench: {len(found)} of {len(found) + len(report.not_replayed)} runs predicted, "
        f"written to {out}",
        err=True,
    )
    typer.echo(report.as_text(), nl=False)
    return report.not_replayed


def print_serving_fit(file: Path, *, as_json: bool) -> None:
    """Repeat the fit of the measured timing profile, and print each step."""
    from fairbench.cli.output import print_json
    from fairbench_studies.validation.serving.calibrate import fit
    from fairbench_studies.validation.serving.files import load_serving

    runs = [run for run in load_serving(file) if run.fitted and run.engine == "sglang"]
    if not runs:
        raise DataError(
            f"{file}: holds no run to which a profile can be fitted, such as sglang-a100-fixed-*"
        )
    if len(gpus := sorted({run.gpu for run in runs})) > 1:
        raise DataError(
            f"{file}: must hold runs of a single GPU, but has runs of {', '.join(gpus)}"
        )
    for found in fit(runs):
        if not as_json:
            typer.echo(f"error {found.error:.4f}: {_numbers(found.values)}")
    if as_json:
        print_json({"best": {"values": found.values, "error": found.error}})


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


def _replayed(run: ServingRun, profile: str | None) -> ServingComparison | TenantComparison:
    """Compare a run with its replay; if the run used no gateway, compare tenant by tenant."""
    from fairbench_studies.validation.serving.compare import check_steady, compare_serving
    from fairbench_studies.validation.serving.replay import replay
    from fairbench_studies.validation.serving.unanswered import with_unanswered
    from fairbench_studies.validation.tenants.compare import compare_tenants

    check_steady(run)
    used = _profile(run, profile)
    fitted = run.fitted and (profile is None or run.policy in FORK_HOST_MS)
    if not run.direct:
        return compare_serving(run, replay(run, used), used.profile_id, fitted=fitted)
    sent, recorded = with_unanswered(run)
    replayed = replay(sent, used)
    return compare_tenants(run, replayed, recorded, used.profile_id, fitted=fitted)


def _profile(run: ServingRun, profile: str | None) -> TimingProfile:
    if profile is None:
        used = profile_of(run.gpu, run.model, run.tp, run.engine)
    else:
        used = named_profile(profile)
    return with_host_cost(used, run.policy)
