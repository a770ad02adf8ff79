"""Measured runs of the DLPM authors' judge benchmark, read from their command lines and results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, printable
from fairbench.hardware.catalogue import canonical_model, model_names, profile_ids
from fairbench_studies.validation.records import name_of, records_of
from fairbench_studies.validation.report import NotReplayed, each, unique
from fairbench_studies.validation.serving.profiles import gpu_name

# ``_OPTIONS`` are command-line options of server and client. A command line may shorten an option
# to any unique prefix, as Python's argparse allows.
_OPTIONS = (
    "schedule-policy", "load-balance-method", "Q", "max-total-tokens", "max-prefill-tokens",
    "mem-fraction-static", "intervals", "branches", "initial-delay", "dp",
)  # fmt: skip
_PROGRAMS = re.compile(r"(\d{1,9}) programs? a user")
_TOKENS = re.compile(r"average (\d[\d,]{0,11}(?:\.\d+)?) tokens")
# In the log, an article has 13,222 characters without the system text and 13,386 with the system
# text. ``SYSTEM_TOKENS`` is the difference in tokens of 5 characters. Each user must have a
# separate system text: in the first LPM run, users 1 and 2 finish no request before user 0 is done.
# With a common system text, LPM would interleave the users' requests.
SYSTEM_TOKENS = 33
LEAST_PROMPT_TOKENS = SYSTEM_TOKENS + 1  # the system text and one token of an article


@dataclass(frozen=True, slots=True, eq=False)
class ProgramRun:
    """A measured run: the settings of server and client, and the measurements.

    ``policy`` is the scheduler on the server's command line. User i sends ``programs`` programs
    with ``branches[i]`` judgements each, one program every ``intervals_s[i]`` seconds. All users
    except the first start ``initial_delay_s`` seconds after the first user. ``prompt_tokens`` is
    the mean number of tokens in system text plus article. ``latencies_s`` holds the latencies of
    each user's programs in seconds, in any order.
    """

    name: str
    policy: str
    quantum: int
    gpu: str
    model: str
    dp: int
    pool_tokens: int
    max_prefill_tokens: int
    programs: int
    branches: tuple[int, ...]
    intervals_s: tuple[float, ...]
    initial_delay_s: float
    prompt_tokens: float
    makespan_s: float
    service_tok_s: float
    service_all_active_tok_s: float
    jain: float
    latencies_s: Mapping[str, tuple[float, ...]]


def read_programs(path: Path) -> tuple[list[ProgramRun], list[NotReplayed]]:
    """Read all valid runs of a file. Return the valid runs, and the invalid runs with reasons.

    Raises:
        DataError: the file is not JSON, or no run can be read.
    """
    read, failed = each(
        lambda place: program_run(place.value, place.where),
        records_of(path),
        lambda place: name_of(place.value),
    )
    runs, repeated = unique(read, lambda run: run.name)
    return runs, [*failed, *repeated]


def program_run(record: Any, where: str) -> ProgramRun:
    """Read one run.

    Raises:
        DataError: a field is missing or wrong; the message names ``where``, the run and the field.
    """
    name = record.get("run_id") if isinstance(record, dict) else None
    if not isinstance(name, str) or not name:
        raise DataError(f"{where}: missing field 'run_id'")
    name = printable(name)
    where = f"{where}, run {name}"
    server, client = _text(record, "server", where), _text(record, "client", where)
    options = _options(f"{server} {client} {_text(record, 'flags', where)}", where)
    branches = _counts(options, "branches", where)
    intervals = _numbers(options, "intervals", where)
    latencies = _latencies(record.get("program_latencies_s"), where)
    if not len(branches) == len(intervals) == len(latencies):
        raise DataError(
            f"{where}: field 'client': --branches and --intervals must have one value for "
            f"each of the {len(latencies)} users of field 'program_latencies_s'"
        )
    programs = int(_found(_PROGRAMS, client, "N programs a user", where))
    for user, times in latencies.items():
        if len(times) > programs:
            raise DataError(
                f"{where}: field 'program_latencies_s': {user!r} has {len(times)} latencies, "
                f"but only {programs} programs"
            )
    return ProgramRun(
        name=name,
        policy=_one(options, "schedule-policy", where),
        quantum=int(_numbers(options, "Q", where, "0")[0]),
        gpu=_gpu(server, where),
        model=_model(server, where),
        dp=_counts(options, "dp", where, "1")[0],
        pool_tokens=_counts(options, "max-total-tokens", where)[0],
        max_prefill_tokens=_counts(options, "max-prefill-tokens", where)[0],
        programs=programs,
        branches=tuple(branches),
        intervals_s=tuple(intervals),
        initial_delay_s=_numbers(options, "initial-delay", where, "0")[0],
        prompt_tokens=_found(_TOKENS, client, "average N tokens", where, LEAST_PROMPT_TOKENS),
        latencies_s=latencies,
        makespan_s=_measured(record, "makespan_s", where),
        service_tok_s=_measured(record, "service_tok_s", where),
        service_all_active_tok_s=_measured(record, "service_tok_s_all_active", where),
        jain=_measured(record, "jain_service", where, 1.0),
    )


def _text(record: Mapping[str, Any], field: str, where: str) -> str:
    value = record.get(field)
    if not isinstance(value, str):
        raise DataError(f"{where}: missing field {field!r}")
    return value


def _options(text: str, where: str) -> dict[str, list[str]]:
    """Return the values of a command line's known options. An option's last occurrence counts."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    try:
        words = shlex.split(text.replace("'", " "))
    except ValueError:
        raise DataError(
            f"{where}: fields 'server', 'client' and 'flags' must hold command lines"
        ) from None
    for word in words:
        if word.startswith("--"):
            known = [name for name in _OPTIONS if name.startswith(word[2:].rstrip(","))]
            values = found.setdefault(known[0], []) if len(known) == 1 else []
            values.clear()
        else:
            values.append(word.rstrip(","))
            if word.endswith(","):  # words after a comma do not belong to the option
                values = []
    return found


def _one(options: Mapping[str, list[str]], name: str, where: str, default: str = "") -> str:
    value = (options.get(name) or [default])[0]
    if not value:
        raise DataError(f"{where}: the command lines must contain the option --{name}")
    return value


def _numbers(
    options: Mapping[str, list[str]], name: str, where: str, default: str = ""
) -> list[float]:
    _one(options, name, where, default)
    try:
        numbers = [float(value) for value in options.get(name) or [default]]
    except ValueError:
        numbers = [-1.0]
    if not all(isfinite(value) and 0 <= value <= 1e9 for value in numbers):
        raise DataError(f"{where}: option --{name}: its values must be numbers from 0 to 1e9")
    return numbers


def _counts(
    options: Mapping[str, list[str]], name: str, where: str, default: str = ""
) -> list[int]:
    numbers = _numbers(options, name, where, default)
    if not all(value >= 1 and value.is_integer() for value in numbers):
        raise DataError(f"{where}: option --{name}: its values must be whole numbers of at least 1")
    return [int(value) for value in numbers]


def _found(pattern: re.Pattern[str], text: str, form: str, where: str, least: float = 1) -> float:
    match = pattern.search(text)
    if match is None or (value := float(match[1].replace(",", ""))) < least:
        raise DataError(f"{where}: field 'client' must contain {form!r}, with N at least {least:g}")
    return value


def _gpu(text: str, where: str) -> str:
    known = {one.split("/")[0] for one in profile_ids()}
    for part in text.split(","):
        if (name := gpu_name(part)) in known:
            return name
    raise DataError(
        f"{where}: field 'server' must be a comma-separated list with the name of the GPU: "
        f"choose from {', '.join(sorted(known))}"
    )


def _model(text: str, where: str) -> str:
    models = model_names()
    for part in text.split(","):
        if (name := canonical_model(part, models)) in models:
            return name
    raise DataError(
        f"{where}: field 'server' must be a comma-separated list with the name of the LLM: "
        f"choose from {', '.join(models)}"
    )


def _latencies(values: Any, where: str) -> dict[str, tuple[float, ...]]:
    users = values if isinstance(values, dict) else {}
    for user, times in users.items():
        if not isinstance(times, list) or not times or not all(map(_positive, times)):
            raise DataError(
                f"{where}: field 'program_latencies_s': {user!r} must be a list of seconds"
            )
    if not users:
        raise DataError(
            f"{where}: field 'program_latencies_s' must be a non-empty object that maps each user "
            "to a list of seconds"
        )
    return {
        printable(user): tuple(map(float, users[user])) for user in sorted(users, key=_by_number)
    }


def _by_number(user: str) -> tuple[int, str]:
    """Return a sort key that puts user10 after user9, as in the order of ``branches``."""
    number = re.search(r"\d{1,9}$", user)
    return int(number[0]) if number else -1, user


def _measured(record: Mapping[str, Any], field: str, where: str, most: float = inf) -> float:
    value: Any = record.get(field)
    if not _positive(value) or value > most:
        limit = "" if most == inf else f" of at most {most:g}"
        raise DataError(f"{where}: field {field!r} = {value!r}: must be a positive number{limit}")
    return float(value)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e10
