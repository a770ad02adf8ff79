"""The command line application. Only here do errors become exit codes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fairbench.cli.commands import (
    PANELLED,
    PanelCommand,
    command_named,
    command_names,
    commands,
)
from fairbench.cli.exits import (
    FAILED,
    NOT_JUDGED,
    USAGE,
    complain,
    discard_output,
    interrupted,
    written_file,
)
from fairbench.doors import Command
from fairbench.errors import FairbenchError, NotJudged, UsageError, complaint
from fairbench.execute.interruption import Interrupted
from fairbench.version import __version__

# Typer's own errors, which derive from click's class or from Typer's copy of it.
WrongUsage: Any = typer.BadParameter.__base__


_BETWEEN = re.compile(r"[\s,=:]|\.\.")  # between the numbers of a value
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?(ms|s|x|%|)", re.IGNORECASE)


def _code_of(error: FairbenchError) -> int:
    if isinstance(error, UsageError):
        return USAGE
    return NOT_JUDGED if isinstance(error, NotJudged) else FAILED


class _Listed(TyperCommand):
    """A command of the list, whose line of help is looked up when it is shown."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the whole line, whatever the limit."""
        return command_named(self.name or "").about


class _Commands(TyperGroup):
    """The commands; an error ends as a line on stderr and an exit code, never a traceback.

    Listed commands have only a name; the used command is loaded.
    """

    def __init__(self, **kwargs: Any) -> None:
        listed = {name: _Listed(name, rich_markup_mode=None) for name in command_names()}
        super().__init__(**{**kwargs, "commands": listed})

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except WrongUsage as error:
            if (text := error.format_message()).startswith("Usage: "):  # a group without a command
                typer.echo(text, err=True)
            else:
                complain(_wording(error))
            code = USAGE
        except FairbenchError as error:
            complain(str(error), getattr(error, "__notes__", ()))
            code = _code_of(error)
        except MemoryError:
            complain("there is not enough memory")
            code = FAILED
        except OSError as error:  # files that users name are checked where they are opened
            complain(f"{written_file(error)}: {error.strerror or error}")
            discard_output()
            code = FAILED
        sys.exit(code)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one line a command, under the heading of its group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, command_names()))
        for name, entry in commands().items():
            groups.setdefault(entry.group, []).append((name.ljust(width), entry.about))
        for group, lines in groups.items():
            with formatter.section(group):
                formatter.write_dl(lines)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _before_typer():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _before_typer():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        check_digits(rest)
        for flag, value in pairwise([] if ctx.resilient_parsing else [*rest, "-"]):
            flag, equals, inner = flag.partition("=")
            if flag.startswith("--") and (not inner if equals else not value):
                # Most likely a variable of a script that was never set.
                raise UsageError(f"{flag} '': must not be empty")
        return name, load(name) if name else None, rest


def check_digits(words: list[str]) -> None:
    """Raise UsageError for a number in digits of another script, which Python would read."""
    for flag, value in pairwise(["", *words]):
        name, equals, inner = value.partition("=")
        if equals and name.startswith("-"):
            flag, value = name, inner
        if not value.isascii() and any(map(_is_foreign_number, _BETWEEN.split(value))):
            shown = f"{flag} {value}" if flag.startswith("-") else value
            raise UsageError(f"{shown}: write numbers with the digits 0 to 9")


def _is_foreign_number(word: str) -> bool:
    return not word.isascii() and _NUMBER.fullmatch(word) is not None


def _home(module: str, entry: Command, name: str) -> Any:
    if not entry.studies:
        return import_module(module)
    from fairbench.studies import study

    return study(module, name)


def load(name: str) -> Any:
    """Return a command as click's object, from its function or its group of commands.

    Raises UsageError for a command of the studies if the studies are not installed.
    """
    entry = command_named(name)
    module, _, attribute = entry.target.partition(":")
    found = getattr(_home(module, entry, name), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        alone.command(name, cls=PanelCommand if name in PANELLED else None)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


@contextmanager
def _before_typer() -> Iterator[None]:
    """Handle exceptions that typer would end silently or with a traceback."""
    try:
        yield
    except Interrupted as error:
        complain(str(error))
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as error:
        raise typer.Exit(interrupted(error)) from None
    except BrokenPipeError:  # the reader of our output has closed it, as with `| head`
        discard_output()
        raise typer.Exit(FAILED) from None


def _wording(error: Any) -> str:
    """Word typer's error message: the flag, and the allowed values for a wrong value."""
    details = getattr(error.__cause__, "errors", None)
    if details is not None:
        first = details()[0]
        value = first["input"]
        return f"{error.param.opts[0]} {value}: {complaint(first).removeprefix(f'{value!r} ')}"
    where = f" (see {error.ctx.command_path} --help)" if error.ctx else ""
    return f"{error.format_message().rstrip('.')}{where}"


app = typer.Typer(
    cls=_Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairbench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Measure which share of an LLM cluster each client gets under a scheduler, and at what cost.

    Runs on a simulated cluster, which needs no GPU, or drives real servers.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(USAGE)
