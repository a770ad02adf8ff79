"""``fairbench profile``: make a timing profile of any model on any GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from fairbench.cli.flags import json_option
from fairbench.cli.profile_probe import (
    Output,
    Tables,
    TensorParallel,
    WeightFormat,
    check_output,
    probe,
    write_profile,
)

if TYPE_CHECKING:
    from fairbench.figures.profile_fit import Points
    from fairbench.profiling.derived_profile import Derived

DERIVE = "derive"


class _DeriveByDefault(TyperGroup):
    """A group in which ``profile MODEL`` means ``profile derive MODEL``."""

    default = DERIVE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


profile = typer.Typer(
    cls=_DeriveByDefault,
    help="Make a timing profile of any model on any GPU, or of a live server.",
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
profile.command("probe")(probe)


@profile.command(DERIVE)
def derive_profile(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Name of a bundled model, path of a config.json, or name on the Hugging Face "
            "hub (owner/name).",
        ),
    ],
    gpu: Annotated[str, Option(help="GPU: h100, a100, h200, b200, l40s, l4 or a10g.")],
    tp: TensorParallel = 1,
    dtype: WeightFormat = None,
    engine: Annotated[
        Tables, Option(help="Engine whose kernels the estimate assumes.")
    ] = Tables.SGLANG,
    roofline: Annotated[
        bool,
        Option(
            "--roofline",
            help="Compute times from the data sheet of the GPU instead of the operator tables.",
        ),
    ] = False,
    output: Output = None,
    plot: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="File to which a picture of the fit is drawn. Needs the extra `plot`.",
        ),
    ] = None,
    as_json: Annotated[bool, json_option("the profile", panel=None)] = False,
) -> None:
    """Derive a profile from a model's config and the name of a GPU; nothing is measured.

    Operator times come from NVIDIA's measurements (needs the extra `profile`), or else from a
    roofline model; the profile's grade says which. `fairbench run --gpu FILE.toml` simulates with
    the profile.
    """
    from fairbench.cli.output import print_json
    from fairbench.figures.profile_fit import draw_profile
    from fairbench.figures.style import check_plot
    from fairbench.hardware.profile_file import table_of
    from fairbench.profiling.derived_profile import derive, described

    check_output(output)
    if plot is not None:
        check_plot(plot)
    found = derive(
        model, gpu, tp=tp, dtype=dtype and dtype.value, engine=engine.value, roofline=roofline
    )
    table = table_of(found.profile, found.source, found.error_pct)
    if as_json:
        print_json(table)
    else:
        lines = described(found.profile, found.source, found.note, found.error_pct)
        typer.echo("\n".join(lines))
    if output is not None:
        write_profile(output, table)
    if plot is not None:
        draw_profile(_points(found), plot, f"{found.profile.profile_id}: iterations held out")


@profile.command()
def fit(
    file: Annotated[
        Path,
        typer.Argument(metavar="RUNS.jsonl", help="File of measured runs, one JSON object a line."),
    ],
    as_json: Annotated[bool, json_option(panel=None)] = False,
) -> None:
    """Fit the measured profiles to runs again, and print the fit (takes 4 minutes).

    `validate --fit` does the same.
    """
    from fairbench.studies import study

    study("validation.command", f"profile fit {file}").print_fit(file, as_json=as_json)


def _points(found: Derived) -> list[Points]:
    """Return the held-out iterations by kind, for the figure."""
    from fairbench.figures.profile_fit import Points
    from fairbench.profiling.form import predicted_ms

    it, ours = found.held, predicted_ms(found.profile.coefficients_ms, found.held)
    kinds = {
        "prefill": (it.prefills > 0) & (it.decodes == 0),
        "decode": it.prefills == 0,
        "both": (it.prefills > 0) & (it.decodes > 0),
    }
    return [
        Points(name, it.tokens[rows], found.times_ms[rows], ours[rows])
        for name, rows in kinds.items()
    ]
