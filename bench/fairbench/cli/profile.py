"""``fairbench profile``: make a timing profile of any model on any GPU, or of a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from fairbench.cli.flags import json_option, parse_headers
from fairbench.errors import UsageError

if TYPE_CHECKING:
    from fairbench.figures.profile_fit import Points
    from fairbench.hardware.timing import TimingProfile
    from fairbench.profiling.derived_profile import Derived

SUFFIX = ".toml"  # suffix by which --gpu recognises a file


class Dtype(StrEnum):
    """The number formats of weights for which profiles exist."""

    FP16 = "fp16"
    FP8 = "fp8"
    INT4 = "int4"


class Tables(StrEnum):
    """The engines whose kernels the operator tables contain."""

    SGLANG = "sglang"
    VLLM = "vllm"


TensorParallel = Annotated[
    int, Option(min=1, help="Number of GPUs that share the model (tensor parallelism).")
]
WeightFormat = Annotated[
    Dtype | None, Option(help="Number format of the weights. [default: the published format]")
]
Output = Annotated[
    Path | None,
    Option(
        "--output-file", "-o", metavar="FILE.toml", help="File to which the profile is written."
    ),
]


def check_output(output: Path | None) -> None:
    """Raise UsageError unless ``--gpu`` would accept the file's name."""
    if output is not None and output.suffix != SUFFIX:
        raise UsageError(f"--output-file {output}: must end in {SUFFIX}")


def write_profile(path: Path, table: Mapping[str, Any]) -> None:
    """Write a profile as TOML, and report the file."""
    from fairbench.files.toml_text import dumps
    from fairbench.results.store import write_text

    write_text(path, dumps(table))
    typer.echo(f"fairbench: written to {path}: use it with --gpu {path}", err=True)


def probe(
    base_url: Annotated[str, Option(metavar="URL", help="URL of the server, http://HOST:PORT.")],
    gpu: Annotated[
        str, Option(help="GPU of the server, such as h100; `profile MODEL` takes the same names.")
    ],
    model: Annotated[
        str | None,
        Option(
            help="Model of the server, with the names of `profile MODEL`. [default: the name that "
            "the server reports]"
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        Option(help="Name of the model in requests. [default: the name that the server lists]"),
    ] = None,
    tp: TensorParallel = 1,
    dtype: WeightFormat = None,
    engine: Annotated[Tables, Option(help="Engine of the server.")] = Tables.SGLANG,
    chunked_prefill_size: Annotated[
        int | None,
        Option(
            min=64, help="Limit on prompt tokens in one iteration. [default: SGLang's for the GPU]"
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Header sent with every request, such as an API key; may be repeated.",
        ),
    ] = None,
    output: Output = None,
    as_json: Annotated[bool, json_option("the profile", panel=None)] = False,
) -> None:
    """Measure a live OpenAI-compatible server for about two minutes, and fit a profile to it.

    The server must be idle otherwise. The probe sends random tokens: single prompts of four
    lengths, then batches of 1 to 64 requests. The fit starts from the profile of `profile MODEL
    --gpu GPU`.
    """
    from fairbench.cli.output import print_json
    from fairbench.hardware.profile_file import table_of
    from fairbench.live.requirements import require_live_extra
    from fairbench.profiling.derived_profile import derive, described
    from fairbench.profiling.probe import Server, fit_probe, pool_tokens, served_model, session_of

    require_live_extra()
    check_output(output)
    weights = dtype and dtype.value

    async def measured() -> tuple[TimingProfile, str]:
        async with session_of(base_url, parse_headers(header)) as session:
            served = served_model_name or await served_model(session, base_url)
            start = derive(model or served, gpu, tp=tp, dtype=weights, engine=engine.value).profile
            chunk = chunked_prefill_size or start.pool.chunked_prefill_size
            pool = await pool_tokens(session, base_url)
            probed = await Server(session, base_url, served).measure(chunk, _say)
            return fit_probe(probed, start, pool), served

    found, served = asyncio.run(measured())
    source = f"probe of {base_url}, model {served}"
    table = table_of(found, source, {})
    if as_json:
        print_json(table)
    else:
        typer.echo("\n".join(described(found, source, "", {})))
    if output is not None:
        write_profile(output, table)


def _say(step: str) -> None:
    typer.echo(f"fairbench: {step}", err=True)


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
    help="Make a timing profile of a model on a GPU or a live server.",
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
    from fairbench.figures.profile_fit import Points
    from fairbench.profiling.fit import predicted_ms

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
