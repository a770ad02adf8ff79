"""The ``fairbench`` command. Here, and only here, errors become exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairbench import __version__
from fairbench.cli.list import list_names
from fairbench.cli.run import run
from fairbench.cli.show import show
from fairbench.cli.validate import validate
from fairbench.errors import FairbenchError, UsageError

FAILED, USAGE, INTERRUPTED = 1, 2, 130


class _Commands(TyperGroup):
    """The commands, with the one catch: a line on stderr and an exit code, never a traceback.

    Wrong flags are typer's own errors, which exit with 2 as well.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FairbenchError as error:
            typer.echo(f"fairbench: {error}", err=True)
            raise typer.Exit(USAGE if isinstance(error, UsageError) else FAILED) from None
        except KeyboardInterrupt:
            typer.echo("fairbench: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has gone, as with `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairbench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Who gets what share of an LLM cluster under which scheduler, and at what cost.

    Runs on a simulated cluster: no GPU is needed.
    """


app.command("run")(run)
app.command("list")(list_names)
app.command("show")(show)
app.command("validate")(validate)


def main() -> None:
    """Run the command line; exits 0 fine, 1 a run failed, 2 wrong usage, 130 interrupted."""
    app()
