"""Command line options made from flags, and other code that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from fairbench.config.flags import (
    HEADER,
    RAY_ADDRESS,
    READY,
    RUN,
    SERVED_MODEL,
    SERVER_PYTHON,
    SETTINGS,
    UNTESTED,
)
from fairbench.config.parse_flags import OUTPUT, Flag, flags_of
from fairbench.errors import UsageError
from fairbench.execute.executors import EXECUTORS
from fairbench.workloads.traces import AUTO

if TYPE_CHECKING:
    from fairbench.config.flags import LogFlags, TraceFlags
    from fairbench.workloads.traces.read import TraceParams

DEFAULT_RESULT_DIR = Path("results/runs")


def option(panel: str | None, about: str, *names: str, **rest: Any) -> Any:
    """Declare an option of a command; ``panel`` is the option's heading in ``--help``."""
    return Option(*names, help=about, rich_help_panel=panel, **rest)


def option_of(one: Flag, help: str = "", **changes: Any) -> Any:
    """Return the typer option for the flag ``one``; ``help`` replaces the flag's help text."""
    one = one.but(help, **changes)
    names = (one.option,) if one.option else ()
    limits = {"min": one.least, "max": one.most}
    return option(one.panel, one.text, *names, metavar=one.metavar, **limits)


Settings = Annotated[list[str] | None, option_of(SETTINGS)]
Weights = Annotated[str | None, option_of(RUN["weights"], default="")]
ResultDir = Annotated[
    Path, option(OUTPUT, "Parent directory; each call makes a new directory with results in it.")
]
ServerPython = Annotated[str | None, option_of(SERVER_PYTHON)]
AllowUntested = Annotated[bool, option_of(UNTESTED)]
ReadyTimeout = Annotated[float, option_of(READY)]
ServerUrl = Annotated[
    str, option_of(RUN["base_url"], "URL of the server, http://HOST:PORT.", metavar="URL")
]
Headers = Annotated[list[str] | None, option_of(HEADER)]
ServedModel = Annotated[str | None, option_of(SERVED_MODEL)]
RayAddress = Annotated[str | None, option_of(RAY_ADDRESS)]
NoProgress = Annotated[bool, option(OUTPUT, "Do not show live progress.", "--disable-tqdm")]
Explain = Annotated[
    bool,
    option(
        OUTPUT,
        "Print, below the summary, sentences that say what each number means for this run.",
        "--explain",
    ),
]
ExecutorName = Annotated[
    str,
    Option(
        "--executor",
        metavar="|".join(EXECUTORS),
        help="Machines that run the simulations: this machine alone, or a Ray cluster.",
    ),
]


def json_option(what: str = "", panel: str | None = OUTPUT) -> Any:
    """Declare the option ``--json`` of a command.

    ``what`` names the output in the help text, such as "the diagnosis". If ``panel`` is None, the
    option stands under its default heading in ``--help``.
    """
    about = f"{what} as " if what else ""
    return option(panel, f"Print {about}one JSON object, and nothing else.", "--json")


def takes(table: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command an option for each flag in ``table``, a TypedDict.

    The decorated command declares ``**flags: Unpack[TABLE]`` after its own parameters. ``flags``
    contains only the flags that the user gave.
    """
    declared = flags_of(table)

    def with_flags(command: Callable[..., None]) -> Callable[..., None]:
        *own, _ = inspect.signature(command, eval_str=True).parameters.values()

        def called(**values: Any) -> None:
            given = {}
            for name, one in declared.items():
                value = values.pop(name)
                if not (value is None or value is False or value == []):
                    given[name] = value if one.read is None else one.read(one.option, value)
            command(**values, **given)

        rest = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        parameters = [*map(_parameter, declared.values()), *rest]
        # Typer reads the options of a command from the signature of its function.
        called.__dict__["__signature__"] = inspect.Signature(parameters)
        called.__annotations__ = {one.name: one.annotation for one in parameters}
        called.__name__, called.__doc__ = command.__name__, command.__doc__
        return called

    return with_flags


def _parameter(one: Flag) -> inspect.Parameter:
    text = list[str] if one.repeats else str
    kind = text if one.read else one.type
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[kind if kind is bool else kind | None, option_of(one)],
    )


def log_params(file: str, flags: LogFlags) -> TraceParams:
    """Convert the flags of a command to parameters for reading a log. Raises UsageError."""
    from fairbench.workloads.traces.read import TraceParams, check_params, joined_columns

    columns = dict(flags.get("trace_map") or {})
    if (client := flags.get("clients_from")) is not None:
        columns["client"] = client
    params = TraceParams(
        file,
        flags.get("trace_format") or AUTO,
        columns=joined_columns(columns),
        line=flags.get("trace_line") or 0,
        block_size=cast("TraceFlags", flags).get("trace_block_size") or 0,
        time_unit=flags.get("time_unit") or "",
    )
    check_params(params)
    return params


def only_resumed(resume: Path, what: str, but: str = "no other setting can") -> UsageError:
    """Return the error for a setting given with ``--resume``, which keeps all stored settings."""
    return UsageError(
        f"--resume {resume} continues the {what} with its stored settings; {but} be given with it"
    )


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave; all other options are None."""
    return {key: value for key, value in options.items() if value is not None}


def parse_headers(texts: list[str] | None, flag: str = "--header") -> dict[str, str]:
    """Parse headers of the form ``NAME=VALUE``.

    Error messages do not show headers, because a header may contain a secret.
    """
    pairs = [text.partition("=") for text in texts or ()]
    for name, equals, _ in pairs:
        if not (equals and name.strip()):
            raise UsageError(f"{flag}: write NAME=VALUE, such as Authorization='Bearer KEY'")
    return {name.strip(): value for name, _, value in pairs}


def with_key(headers: dict[str, str], file: Path | None) -> dict[str, str]:
    """Return the headers with the API key in ``file`` added, or unchanged if ``file`` is None.

    Raises UsageError if the headers already contain an API key.
    """
    if file is None:
        return headers
    if any(name.lower() == "authorization" for name in headers):
        raise UsageError(
            "--api-key-file and --header Authorization both set the key: give only one of them"
        )
    from fairbench.files.reader import read_key

    return {**headers, "Authorization": f"Bearer {read_key(file, str(file))}"}


def above_0(flag: str, value: float | None) -> float | None:
    """Return a flag's value; raise UsageError unless it is None or a finite number above 0."""
    if value is not None and not 0 < value < float("inf"):
        raise UsageError(f"{flag} {value:g}: must be above 0 and finite")
    return value
