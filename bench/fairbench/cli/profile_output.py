"""Options and the output file of the commands of ``fairbench profile``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from fairbench.errors import UsageError

SUFFIX = ".toml"  # by which --gpu knows a file


class Dtype(StrEnum):
    """The number formats of weights for which profiles exist."""

    FP16 = "fp16"
    FP8 = "fp8"
    INT4 = "int4"


class Tables(StrEnum):
    """The engines whose kernels the operator tables have."""

    SGLANG = "sglang"
    VLLM = "vllm"


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
    from fairbench.config.toml import dumps
    from fairbench.results.store import write_text

    write_text(path, dumps(table))
    typer.echo(f"fairbench: written to {path}: use it with --gpu {path}", err=True)
