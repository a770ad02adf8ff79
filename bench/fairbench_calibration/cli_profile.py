"""The command ``fairbench profile``, which makes a timing profile of a model or a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from fairbench import figures, files, hardware, results
from fairbench.cli import options
from fairbench.cli.output import print_json
from fairbench.config.flags import PICTURE, RUN
from fairbench.doors import STUDY_GROUP, through
from fairbench.errors import UsageError
from fairbench_calibration import profiling
from fairbench_calibration.profiling.gpus import GPU, Interconnect, find_gpu, read_gpu
from fairbench_load.processes.environment import require_live_extra
from fairbench_logs import scoring

if TYPE_CHECKING:
    from fairbench.hardware.timing import TimingProfile
    from fairbench_calibration.profiling.derived_profile import Derived
    from fairbench_calibration.profiling.figure import Points

# The options --gpu and --engine of this command accept other values than those of ``run``.
GPU_OPTION = RUN["gpu"].but(default="")
ENGINE = RUN["engine"].but(default="", metavar=None)
SUFFIX = ".toml"  # suffix of the timing profile files that --gpu accepts


class Dtype(StrEnum):
    """Data types of model weights."""

    FP16 = "fp16"
    FP8 = "fp8"
    INT4 = "int4"


class KVDtype(StrEnum):
    """Data types of a KV cache."""

    FP16 = "fp16"
    FP8 = "fp8"


class TableEngine(StrEnum):
    """The engines for which NVIDIA's operator tables have kernel times."""

    SGLANG = "sglang"
    VLLM = "vllm"


TensorParallel = Annotated[
    int, Option(min=1, help="Number of GPUs that share the model (tensor parallelism).")
]
GPUName = Annotated[
    str | None,
    options.option_of(
        GPU_OPTION,
        "GPU: a10g, l4, rtx4090, rtx5090, a40, l40s, rtxpro6000, a100, h100, gh200, h200, b200, "
        "mi300x or b300.",
    ),
]
GPUFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="TOML or JSON file that describes a GPU; it replaces --gpu."),
]
GPUPath = Annotated[
    Interconnect | None,
    Option(
        help="Connection between the GPUs. With pcie, the GPUs read each other's memory "
        "directly; with pcie-host, all data passes through the host. "
        "[default: nvlink or pcie-host, depending on the GPU]"
    ),
]
FromDataSheet = Annotated[
    bool,
    Option(
        "--roofline",
        help="Estimate times from the data sheet of the GPU, not from measured kernel times.",
    ),
]
KVFormat = Annotated[KVDtype, Option(help="Data type of the KV cache.")]
WeightFormat = Annotated[
    Dtype | None,
    Option(help="Data type of the weights. [default: the data type of the published weights]"),
]
Output = Annotated[
    Path | None,
    Option(
        "--output-file", "-o", metavar="FILE.toml", help="File to which the profile is written."
    ),
]


def check_output(output: Path | None) -> None:
    """Raise UsageError for a file name that ``--gpu`` would not accept."""
    if output is not None and output.suffix != SUFFIX:
        raise UsageError(f"--output-file {output}: must end in {SUFFIX}")


def _gpu_of(gpu: str | None, spec: Path | None, interconnect: Interconnect | None = None) -> GPU:
    if (gpu is None) == (spec is None):
        raise UsageError("give either --gpu NAME or --gpu-spec FILE")
    card = read_gpu(spec) if spec is not None else find_gpu(gpu or "")
    return card if interconnect is None else card.with_link(interconnect)


def show_profile(
    profile: TimingProfile,
    source: str,
    output: Path | None,
    *,
    as_json: bool,
    note: str = "",
    error_pct: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Print a profile with its source, as text or JSON, and write it to the file ``output``."""
    table = hardware.table_of(profile, source, error_pct)
    if as_json:
        print_json(table)
    else:
        typer.echo("\n".join(profiling.described(profile, source, note, error_pct)))
    if output is not None:
        write_profile(output, table)


def write_profile(path: Path, table: Mapping[str, Any]) -> None:
    """Write a profile as TOML, and print the file's name."""
    results.write_text(path, files.dumps(table))
    typer.echo(f"fairbench: written to {path}: use it with --gpu {path}", err=True)


def probe(
    base_url: options.ServerUrl,
    gpu: GPUName = None,
    gpu_spec: GPUFile = None,
    model: Annotated[
        str | None,
        options.option_of(
            RUN["model"],
            "Model of the server, with the names of `profile MODEL`.",
            default="the name that the server reports",
        ),
    ] = None,
    served_model_name: options.ServedModel = None,
    tp: TensorParallel = 1,
    dtype: WeightFormat = None,
    engine: Annotated[
        TableEngine, options.option_of(ENGINE, "Engine of the server.")
    ] = TableEngine.SGLANG,
    chunked_prefill_size: Annotated[
        int | None,
        options.option_of(
            RUN["chunked_prefill_size"],
            "Limit on prompt tokens in one iteration.",
            default="SGLang's for the GPU",
            least=64,
        ),
    ] = None,
    header: options.Headers = None,
    output: Output = None,
    as_json: Annotated[bool, options.json_option("the profile", panel=None)] = False,
) -> None:
    """Measure a live server, and fit a profile to it.

    The server must be OpenAI-compatible, and idle apart from the requests of the probe. The probe
    sends single prompts of four lengths, and later batches of 1 to 64 requests; all prompts are
    random tokens. On an A100, the probe should take half a minute. The fit starts from the profile
    that `profile MODEL --gpu GPU` derives.
    """
    require_live_extra()
    check_output(output)
    weights, card = dtype and dtype.value, _gpu_of(gpu, gpu_spec)

    async def measured() -> tuple[TimingProfile, str]:
        async with profiling.session_of(base_url, options.parse_headers(header)) as session:
            served = served_model_name or await profiling.served_model(session, base_url)
            start = profiling.derive(
                model or served, card, tp=tp, dtype=weights, engine=engine.value
            ).profile
            chunk = chunked_prefill_size or start.pool.chunked_prefill_size
            pool = await profiling.pool_tokens(session, base_url)
            probed = await profiling.ProbedServer(session, base_url, served).measure(chunk, _say)
            return profiling.fit_probe(probed, start, pool), served

    found, served = asyncio.run(measured())
    show_profile(found, f"probe of {base_url}, model {served}", output, as_json=as_json)


def _say(step: str) -> None:
    typer.echo(f"fairbench: {step}", err=True)


DERIVE = "derive"


class _DeriveByDefault(TyperGroup):
    """A group of commands in which ``profile MODEL`` means ``profile derive MODEL``."""

    default = DERIVE

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


profile = typer.Typer(
    cls=_DeriveByDefault,
    help="Make a timing profile of a model on a GPU or a live server.\n\n"
    "`fairbench profile MODEL --gpu GPU` is short for `fairbench profile derive MODEL --gpu GPU`.",
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
    gpu: GPUName = None,
    gpu_spec: GPUFile = None,
    tp: TensorParallel = 1,
    interconnect: GPUPath = None,
    dtype: WeightFormat = None,
    kv_dtype: KVFormat = KVDtype.FP16,
    engine: Annotated[
        TableEngine, options.option_of(ENGINE, "Engine whose kernels the estimate assumes.")
    ] = TableEngine.SGLANG,
    roofline: FromDataSheet = False,
    output: Output = None,
    plot: Annotated[
        Path | None,
        options.option_of(
            PICTURE,
            "File to which a picture of the fit is drawn. Needs the extra `plot`.",
            metavar="FILE",
        ),
    ] = None,
    as_json: Annotated[bool, options.json_option("the profile", panel=None)] = False,
) -> None:
    """Derive a profile from a model's config and a GPU's name.

    Nothing is measured on your machine. Operator times come from NVIDIA's measurements (with the
    extra `profile`), or otherwise from a roofline model. The profile's `grade` names the source of
    the operator times. `fairbench run --gpu FILE.toml` simulates with the new profile.
    """
    check_output(output)
    if plot is not None:
        figures.check_plot(plot)
    card = _gpu_of(gpu, gpu_spec, interconnect)
    found = profiling.derive(
        *(model, card), tp=tp, dtype=dtype and dtype.value, engine=engine.value,
        roofline=roofline, kv_dtype=kv_dtype.value,
    )  # fmt: skip
    show_profile(
        *(found.profile, found.source, output), as_json=as_json, note=found.note,
        error_pct=found.error_pct,
    )  # fmt: skip
    if plot is not None:
        profiling.draw_profile(
            _fit_points(found), plot, f"{found.profile.profile_id}: iterations held out"
        )


@profile.command()
def calibrate(
    bench: Annotated[
        Path,
        typer.Argument(
            metavar="BENCH.json",
            help="File written by one benchmark (vLLM or SGLang with per-request details, AIPerf, "
            "GuideLLM), or a log of requests that `score` can read.",
        ),
    ],
    model: Annotated[
        str,
        options.option_of(
            RUN["model"].but(default=""), "Model of the server, with the names of `profile MODEL`."
        ),
    ],
    gpu: GPUName = None,
    gpu_spec: GPUFile = None,
    tp: TensorParallel = 1,
    interconnect: GPUPath = None,
    dtype: WeightFormat = None,
    kv_dtype: KVFormat = KVDtype.FP16,
    engine: Annotated[
        TableEngine, options.option_of(ENGINE, "Engine of the server.")
    ] = TableEngine.SGLANG,
    roofline: FromDataSheet = False,
    output: Output = None,
    as_json: Annotated[bool, options.json_option("the profile", panel=None)] = False,
) -> None:
    """Calibrate a derived profile with the output of one benchmark.

    The measured times per output token determine three costs: memory reads, the time that each
    sequence adds to a step, and the launch of a step. The profile's `grade` lists the calibrated
    costs. The benchmark changes no other coefficient of `profile MODEL --gpu GPU`.
    """
    check_output(output)
    card = _gpu_of(gpu, gpu_spec, interconnect)
    start = profiling.derive(
        *(model, card), tp=tp, dtype=dtype and dtype.value, engine=engine.value,
        roofline=roofline, kv_dtype=kv_dtype.value,
    )  # fmt: skip
    measured = profiling.decoded(*scoring.read_answers(bench))
    found = profiling.calibrated(measured, start.profile, mixed=engine is TableEngine.VLLM)
    source = f"{start.source}; calibrated with {bench.name}"
    show_profile(found, source, output, as_json=as_json)


@profile.command()
def fit(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS.jsonl",
            help="File of runs that were measured on real servers, one JSON object per line.",
        ),
    ],
    as_json: Annotated[bool, options.json_option(panel=None)] = False,
) -> None:
    """Refit the measured timing profiles to runs.

    The result is printed after about four minutes. The command `validate --fit` does the same as
    `profile fit`.
    """
    through(STUDY_GROUP, "validation", f"profile fit {file}").print_fit(file, as_json=as_json)


def _fit_points(found: Derived) -> list[Points]:
    it, ours = found.held, profiling.predicted_ms(found.profile.coefficients_ms, found.held)
    kinds = {
        "prefill": (it.prefills > 0) & (it.decodes == 0),
        "decode": it.prefills == 0,
        "both": (it.prefills > 0) & (it.decodes > 0),
    }
    return [
        profiling.Points(name, it.tokens[rows], found.times_ms[rows], ours[rows])
        for name, rows in kinds.items()
    ]
