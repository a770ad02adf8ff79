"""The command line application: it finds commands and groups flags in help pages.

Errors of commands become exit codes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fairbench.cli import exits
from fairbench.config.parse_flags import OTHER, PANELS
from fairbench.doors import COMMAND_GROUP, Command, registered, through
from fairbench.errors import FairbenchError, Interrupted, NotJudged, UsageError, complaint
from fairbench.version import __version__

# flags that --help shows first; all other flags follow in the order of declaration
FIRST = (
    *("preset", "scheduler", "schedulers", "workload", "workloads", "trace", "scenario"),
    *("scenarios", "dp", "prefill", "decode", "gpu", "duration", "seed", "num_runs", "settings"),
)
# commands whose --help shows the flags in titled groups ("panels")
PANELLED = ("run", "sweep", "plan", "compare")


def panel_of(param: Any) -> str:
    """Return the heading of a parameter in ``--help``, by default ``OTHER``."""
    return getattr(param, "rich_help_panel", None) or OTHER


class PanelCommand(TyperCommand):
    """A command whose ``--help`` shows the flags in titled groups (panels)."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's arguments, then each titled group that contains flags."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        groups |= {panel: [] for panel in PANELS}
        places = {name: place for place, name in enumerate(FIRST)}
        params = self.get_params(ctx)
        for param in sorted(params, key=lambda one: places.get(one.name or "", 1_000)):
            record = param.get_help_record(ctx)
            if record is not None:
                argument = param.param_type_name == "argument"
                groups["Arguments" if argument else panel_of(param)].append(record)
        for panel, records in groups.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


# headings of the command list in ``fairbench --help``, in order; an extension may add a heading
SIMULATE, STORED, LOGS = "Simulate and compare", "Stored results", "Logs and records"
SERVERS, CI, PAPERS = "Real servers", "Continuous integration", "Papers"


def _own(group: str, place: int, about: str, target: str) -> Command:
    return Command(group, about, f"fairbench.cli.{target}", place)


_OWN: Mapping[str, Command] = {
    "run": _own(
        SIMULATE, 1, "Run one experiment; print each client's service and latency.", "run:run"
    ),
    "compare": _own(
        SIMULATE,
        2,
        "Compare experiments seed by seed, with confidence intervals.",
        "compare:compare",
    ),
    "sweep": _own(
        SIMULATE,
        3,
        "Run a grid of experiments in parallel and compare their results.",
        "sweep:sweep",
    ),
    "workload": _own(
        SIMULATE,
        6,
        "Check a workload file, and compute its load on a cluster.",
        "workload:workload",
    ),
    "list": _own(
        SIMULATE, 7, "List schedulers, workloads, profiles, engines and presets.", "list:list_names"
    ),
    "show": _own(STORED, 1, "Print a stored run or the comparison of a sweep again.", "show:show"),
    "report": _own(
        STORED, 2, "Write a page for a run, sweep, plan, leaderboard or log.", "report:report"
    ),
    "recover": _own(
        STORED, 4, "Save the finished requests of a run that was killed.", "show:recover"
    ),
}
GROUPS = (SIMULATE, STORED, LOGS, SERVERS, CI, PAPERS)


def command_names() -> list[str]:
    """Return the names of all commands of fairbench.

    Raises UsageError if an extension package adds a command whose name is taken.
    """
    added = sorted(registered(COMMAND_GROUP))
    if twice := _OWN.keys() & set(added):
        raise UsageError(
            f"{COMMAND_GROUP}: an installed package adds the command {min(twice)!r}, which exists "
            "already"
        )
    return [*_OWN, *added]


def command_named(name: str) -> Command:
    """Return the command ``name`` of this package or of an extension package."""
    command: Command = _OWN.get(name) or through(COMMAND_GROUP, name)
    return command


def commands() -> Mapping[str, Command]:
    """Return every command by name, in the order of ``GROUPS`` and of places."""
    every = {}
    for name in sorted(command_names()):
        try:
            every[name] = command_named(name)
        except UsageError as error:  # The package that provides this command is not installed.
            every[name] = Command(PAPERS, str(error).partition(": ")[2], "")
    groups = list(dict.fromkeys([*GROUPS, *(command.group for command in every.values())]))
    return dict(
        sorted(every.items(), key=lambda each: (groups.index(each[1].group), each[1].place))
    )


# base class of usage errors, from click or from Typer's copy of click
WrongUsage: Any = typer.BadParameter.__base__


_BETWEEN = re.compile(r"[\s,=:]|\.\.")  # characters that separate the numbers in a flag's value
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?(ms|s|x|%|)", re.IGNORECASE)


class _Listed(TyperCommand):
    """A command in the list of ``fairbench --help``: a name and one line of help."""

    def get_short_help_str(self, limit: int = 45) -> str:
        return command_named(self.name or "").about


class _Commands(TyperGroup):
    """The group of all commands of fairbench.

    A command's module is imported only when the command is called. Errors become one line on stderr
    and an exit code.
    """

    def __init__(self, **kwargs: Any) -> None:
        listed = {name: _Listed(name, rich_markup_mode=None) for name in command_names()}
        super().__init__(**{**kwargs, "commands": listed})

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except WrongUsage as error:
            # The user named only a group, such as `fairbench trace`, without one of its commands.
            if (text := error.format_message()).startswith("Usage: "):
                typer.echo(text, err=True)
            else:
                exits.complain(_wording(error))
            code = exits.USAGE
        except FairbenchError as error:
            exits.complain(str(error), getattr(error, "__notes__", ()))
            code = exits.NOT_JUDGED if isinstance(error, NotJudged) else exits.FAILED
            if isinstance(error, UsageError):
                code = exits.USAGE
        except MemoryError:
            exits.complain("there is not enough memory")
            code = exits.FAILED
        # Input files are checked where they are opened, so an OSError here concerns an output file.
        except OSError as error:
            exits.complain(f"{exits.written_file(error)}: {error.strerror or error}")
            exits.discard_output()
            code = exits.FAILED
        sys.exit(code)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
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
                # An empty value usually comes from a shell variable that is not set.
                raise UsageError(f"{flag} '': must not be empty")
        return name, load(name) if name else None, rest


def check_digits(words: list[str]) -> None:
    """Raise UsageError for digits of a non-Latin script, which ``int`` would accept."""
    for flag, value in pairwise(["", *words]):
        name, equals, inner = value.partition("=")
        if equals and name.startswith("-"):
            flag, value = name, inner
        if not value.isascii() and any(map(_is_foreign_number, _BETWEEN.split(value))):
            shown = f"{flag} {value}" if flag.startswith("-") else value
            raise UsageError(f"{shown}: only the digits 0 to 9 are accepted in numbers")


def _is_foreign_number(word: str) -> bool:
    return not word.isascii() and _NUMBER.fullmatch(word) is not None


def load(name: str) -> Any:
    """Import a command and return it as a click object, a group if the command has subcommands.

    Raises UsageError for a command of an extension package that is not installed.
    """
    entry = command_named(name)
    module, _, attribute = entry.target.partition(":")
    found = getattr(import_module(module), attribute)
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
    """Turn exceptions that typer would ignore or print as a traceback into exit codes."""
    try:
        yield
    except Interrupted as error:
        exits.complain(str(error))
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt as error:
        raise typer.Exit(exits.interrupted(error)) from None
    except BrokenPipeError:  # The reader of standard output, such as head, has ended.
        exits.discard_output()
        raise typer.Exit(exits.FAILED) from None


def _wording(error: Any) -> str:
    """Return one line that explains an error of typer and names the flag and allowed values."""
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

    The command measures a simulated cluster, which needs no GPU, or drives real servers.
    """
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(exits.USAGE)
