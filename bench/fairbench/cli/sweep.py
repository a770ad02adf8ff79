"""``fairbench sweep``: a grid of experiments in parallel processes, compared place by place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fairbench.cli.run import DEFAULT_RESULT_DIR

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairbench.config.sweep import Sweep


def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE.toml", help="Bundled sweep, such as fig7, or a file."),
    ] = None,
    schedulers: Annotated[
        str | None, Option(metavar="A,B", help="Pairs to compare, see `list schedulers`.")
    ] = None,
    workloads: Annotated[
        str | None, Option(metavar="A,B", help="Workloads, by name or path.")
    ] = None,
    scenarios: Annotated[str | None, Option(metavar="A,B", help="Scenarios: none, s1, s2.")] = None,
    dp: Annotated[str | None, Option(metavar="1,2", help="Numbers of replicas.")] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME.PARAM=V,W",
            help="Values of any parameter of a scheduler, the engine or the workload; may be "
            "repeated.",
        ),
    ] = None,
    gpu: Annotated[str | None, Option(help="Timing profile id or a unique prefix.")] = None,
    model: Annotated[str | None, Option(help="Model served.")] = None,
    backend: Annotated[
        str | None,
        Option(
            metavar="sim|emulator|sglang",
            help="Simulate all points, or run them on real servers one after another; a file says "
            "how in a table [base.backend]. [default: sim]",
        ),
    ] = None,
    num_programs: Annotated[
        int | None, Option(help="Programs each well-behaved client sends.")
    ] = None,
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    seed: Annotated[int | None, Option(help="The first seed.")] = None,
    num_runs: Annotated[
        int | None, Option(help="Seeds of each point; metrics get 95% bootstrap intervals.")
    ] = None,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="40 well-behaved programs a point and three seeds, unless other flags say.",
        ),
    ] = False,
    name: Annotated[
        str | None, Option(help="What to call the sweep and its directory. [default: the file's]")
    ] = None,
    result_dir: Annotated[
        Path, Option(help="The sweep makes one fresh directory in here.")
    ] = DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None, Option(metavar="DIR", help="Go on with the sweep in this directory.")
    ] = None,
    flush_cache: Annotated[
        bool,
        Option(
            "--flush-cache",
            help="Empty the caches of servers between the runs that share them (as in SGLang). "
            "Always done.",
        ),
    ] = True,
    server_python: Annotated[
        str | None,
        Option(help="Python that has SGLang. [default: $FAIRBENCH_SGLANG_PYTHON, or this one]"),
    ] = None,
    ready_check_timeout_sec: Annotated[
        float, Option(min=1, help="Seconds within which servers have to be ready.")
    ] = 600.0,
    dry_run: Annotated[bool, Option("--dry-run", help="Only list the points.")] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the comparison as one JSON object, and nothing else.")
    ] = False,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Run a grid of experiments and compare them.

    The grid is every combination of schedulers, workloads and settings. It comes from a file, from
    flags, or from both: flags replace what the file says.
    """
    from fairbench.cli.live_flags import given
    from fairbench.cli.sweep_run import list_points, run_sweep
    from fairbench.config import identity
    from fairbench.config.sweep_points import points
    from fairbench.errors import UsageError
    from fairbench.execute.sweep_live import check_live_points
    from fairbench.live.backends.base import LiveOptions
    from fairbench.live.run_folder import run_folder
    from fairbench.results.sweep_store import SweepStore

    single = {
        "gpu": gpu,
        "model": model,
        "backend": backend,
        "num_programs": num_programs,
        "duration_s": duration,
        "seed": seed,
    }
    axes = {
        **_axis("--schedulers", "scheduler", schedulers, str),
        **_axis("--workloads", "workload", workloads, str),
        **_axis("--scenarios", "scenario", scenarios, str),
        **_axis("--dp", "dp", dp, int),
        **_settings(settings or []),
        **given(single),
    }
    if resume is not None:
        if file or axes or num_runs or quick or name:
            raise UsageError(f"--resume {resume}: goes on with that sweep as it is, so no other")
        store = SweepStore(resume)
        specs = points(store.sweep(), file=str(store.file))
        finished = set(store.finished())
    else:
        swept = _sweep(file, axes, num_runs, name, quick=quick)
        specs = points(swept, file=file)
        finished = set()
    if dry_run:
        list_points([one for one in specs if identity(one) not in finished], as_json=as_json)
        return
    options = LiveOptions(server_python, ready_check_timeout_sec)
    check_live_points(specs, options)
    if resume is None:
        store = SweepStore.create(result_dir, swept, specs)
    with run_folder(store.path, "alone"):  # two at once would do the same work
        run_sweep(store, specs, options, as_json=as_json, show=not disable_tqdm)


def _sweep(
    file: str | None, axes: dict[str, Any], num_runs: int | None, name: str | None, *, quick: bool
) -> Sweep:
    """The sweep of a file, of flags, or of both. Raises UsageError if there is neither."""
    from fairbench.cli.live_flags import given
    from fairbench.config.sweep import make_sweep, overridden, quickened, read_sweep, sweep_names
    from fairbench.errors import UsageError

    if not file and not axes:
        names = ", ".join(sweep_names())
        raise UsageError(f"nothing to sweep: name a FILE.toml, one of {names}, or --schedulers A,B")
    swept = read_sweep(file) if file else make_sweep({"name": "sweep", "grid": {}})
    fields = given({"num_runs": num_runs, "name": name})
    return overridden(quickened(swept) if quick else swept, axes, **fields)


def _axis(flag: str, key: str, text: str | None, read: Callable[[str], Any]) -> dict[str, Any]:
    """The values between the commas, under the key of the grid; nothing if there is no text."""
    from fairbench.cli.commas import split_commas
    from fairbench.errors import UsageError

    if text is None:
        return {}
    try:
        return {key: [read(word) for word in split_commas(flag, text)]}
    except ValueError:
        raise UsageError(f"{flag} {text}: must be whole numbers with commas between") from None


def _settings(texts: list[str]) -> dict[str, Any]:
    from fairbench.config.sweep import parse_axis

    return dict(parse_axis(text) for text in texts)
