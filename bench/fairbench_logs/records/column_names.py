"""Usual names of columns in users' files, and hints about unrecognised columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any, NamedTuple

from fairbench.errors import DataError, UsageError, printable, shortened, unknown_name
from fairbench.files.formats import parsed
from fairbench.files.times import FIRST_DATE_S, UNITS, number_of
from fairbench.workloads.traces import MAPPED
from fairbench_logs.records import cells

OWN = "="
"""The first character of the names of fields that fairbench itself adds to records."""

MOMENTS = ("start", "first_token", "end", "admitted")
"""The fields of a request record that are points in time."""
LENGTHS = ("ttft", "latency", "delay")
"""The fields of a request record that are durations."""
COUNTS = (
    *("input_tokens", "output_tokens", "cached_tokens", "written_tokens", "max_tokens"),
    *("reasoning_tokens", "total_tokens", "block_size"),
)
LABELS = ("client", "session", "request_id")
FIRST = ("first_token", "ttft")  # fields that state when the first token arrived
LAST = ("end", "latency", "itls")  # fields that state when the last token arrived

# ``NAMES`` lists each field's usual column names, the preferred name first. The names are lower
# case and contain no separators, as ``plain`` returns them.
NAMES: Mapping[str, tuple[str, ...]] = {
    "start": (
        # A log may state the start beside the time at which the line was written.
        *("start", "arrival", "arrivaltime", "arrivaltimestamp", "arrivedat", "starttime"),
        *("starttimestamp", "requeststart", "requeststarttime", "requeststartedat", "requestedat"),
        *("submit", "submittime", "submittedat", "startedat", "time", "timestamp", "t", "ts"),
        *("requesttime", "requesttimestamp", "reqtime", "requestcreatedat", "createdat"),
        *("createdtime", "created", "datetime", "date", "eventtime", "tstamp"),
    ),
    "client": (
        *("client", "tenant", "user", "clientid", "tenantid", "userid", "clientname", "username"),
        *("enduser", "enduserid", "customer", "customerid", "organization", "organizationid"),
        *("org", "orgid", "team", "teamid", "account", "accountid", "apikeyid", "tenantname"),
        *("teamname", "accountname", "customername", "organizationname", "orgname"),
        *("requestuserid", "externaluser", "remoteuser", "xuserid", "xclientid", "xtenantid"),
    ),
    "input_tokens": (
        *("inputtokens", "prompttokens", "inputlength", "inputlen", "promptlen", "promptlength"),
        *("contexttokens", "requesttokens", "numprompttokens", "numinputtokens", "isl"),
        *("inputsequencelength", "inputtokencount", "prompttokencount", "tokensin", "tokensprompt"),
        *("numprefilltokens", "nativetokensprompt", "numberinputtokens", "tokencountprompt"),
        *("inputtokenscount", "prompttokenscount", "tokensinput", "inputtoken", "requnits"),
        *("llminputtoken", "llminputtokens", "genaitokensinput"),
    ),
    "output_tokens": (
        *("outputtokens", "completiontokens", "outputlength", "outputlen", "generatedtokens"),
        *("responsetokens", "completionlength", "numoutputtokens", "numcompletiontokens", "osl"),
        *("generationtokens", "responselength", "outputsequencelength", "outputtokencount"),
        *("completiontokencount", "candidatestokencount", "tokensout", "tokenscompletion"),
        *("numdecodetokens", "nativetokenscompletion", "numbergeneratedtokens"),
        *("tokencountcompletion", "outputtokenscount", "completiontokenscount", "tokensoutput"),
        *("numgeneratedtokens", "numgenerationtokens", "numberoutputtokens", "outputtoken"),
        *("llmoutputtoken", "llmoutputtokens", "genaitokensoutput", "resunits"),
    ),
    "cached_tokens": (
        *("cachedtokens", "cachedprompttokens", "cachedinputtokens", "numcachedtokens"),
        *("cachereadtokens", "cachereadinputtokens", "cachehittokens", "promptcachehittokens"),
        *("cachereadinputtokencount", "cachereadinputtokenscount", "promptcachereadtokens"),
        *("nativetokenscached", "cachedcontenttokencount", "inputcachedtokens"),
    ),
    "written_tokens": (
        *("cachecreationinputtokens", "cachewriteinputtokens", "cachewriteinputtokencount"),
        *("cachewriteinputtokenscount", "cachecreationtokens", "cachewritetokens"),
        "promptcachewritetokens",
    ),
    "reasoning_tokens": (
        *("reasoningtokens", "thoughtstokencount", "outputreasoningtokens", "thinkingtokens"),
        *("nativetokensreasoning", "tokensreasoning"),
    ),
    "total_tokens": ("totaltokens", "totaltokencount", "tokenstotal"),
    "max_tokens": ("maxtokens", "maxnewtokens", "maxoutputtokens", "maxcompletiontokens"),
    "session": (
        *("session", "sessionid", "program", "conversation", "conversationid", "chatid"),
        *("programid", "threadid", "conversationhash"),
    ),
    "request_id": (
        *("id", "requestid", "rid", "reqid", "xrequestid", "callid", "generationid", "messageid"),
    ),
    "end": (
        *("end", "endtime", "endtimestamp", "finish", "finishtime", "finishedat", "completedat"),
        *("endedat", "finishedtime", "responsecreatedat", "completiontime", "completedtime"),
    ),
    "delay": ("delay",),
    "latency": (
        *("latency", "e2elatency", "requestlatency", "duration", "e2el", "requestduration"),
        *("responsetime", "totallatency", "totalduration", "elapsed", "elapsedtime", "totaltime"),
        *("endtoendlatency", "e2etime", "durationtotal", "generationtime"),
    ),
    "first_token": (
        *("firsttoken", "firsttokentime", "completionstarttime", "firsttokenat"),
        *("firsttokentimestamp", "completionstart", "completionstartedat"),
    ),
    "ttft": ("ttft", "timetofirsttoken", "firsttokenlatency", "timetofirsttokenlatency"),
    "itls": (
        *("itls", "itl", "intertokenlatencies", "intertokenlatency", "tokengaps"),
        *("intertokentimes", "intertokengaps"),
    ),
    "gaps": ("gaps",),
    "admitted": ("admitted",),
    "worker": ("worker",),
    "status": ("status",),
    "error": ("error",),
    "hash_ids": ("hashids", "blocks", "blockids", "blockhashes"),
    "block_size": ("blocksize", "blocktokens"),
    "text": ("prompt", "messages", "prompttext", "inputtext"),
    "branch": ("branch",),
    "synthetic": ("synthetic",),
    "span_kind": (
        *("genaioperationname", "openinferencespankind", "traceloopspankind", "runtype"),
        *("observationtype", "spankind"),
    ),
    "span_id": ("spanid", "contextspanid"),
    "parent_id": ("parentspanid", "parentobservationid", "parentrunid", "parentid"),
}
FLAT = (
    *("delay", "gaps", "admitted", "worker", "status", "error", "hash_ids", "text", "block_size"),
    *("branch", "synthetic"),
)
"""Fields that are read only at the top level, because nested names often mean other things."""

SYNONYMS = {"time": "start", "program": "session", "id": "request_id"}
"""Synonyms that ``--map`` accepts for names of fields."""
TIMES = (*MOMENTS, *LENGTHS, "itls", "gaps")

LONGEST = 200
_NAMED_UNITS = {**{unit: unit for unit in UNITS}, "sec": "s", "secs": "s", "seconds": "s"}
_NAMED_UNITS |= {"millis": "ms", "msec": "ms", "milliseconds": "ms", "microseconds": "us"}
_NAMED_UNITS |= {"micros": "us", "nanoseconds": "ns", "nanos": "ns", "nano": "ns"}
_NAMED_UNITS |= {"minutes": "min", "minute": "min", "mins": "min", "hours": "h", "hour": "h"}
_MARKS = re.compile(r"[^A-Za-z0-9]")
_HUMP = re.compile(r"(?<=[^\WA-Z_])(?=[A-Z])", re.ASCII)
# A column whose name ends in a word of ``_NO_TIME`` contains neither times nor durations.
_NO_TIME = {"id", "ids", "idx", "index", "reason", "type", "name", "count", "number", "no", "model"}
_NO_TIME |= {"tokens", "status", "code", "version", "url", "path", "size", "bytes", "cost"}
_NO_TIME |= {"min", "max", "mean", "avg", "median", "p50", "p90", "p95", "p99"}


# Objects whose nested columns have other meanings, such as ``limits.input_tokens``.
_OTHER = {"limit", "limits", "quota", "quotas", "ratelimit", "ratelimits", "budget", "budgets"}
_OTHER |= {"slo", "slos", "sla", "slas", "target", "targets", "threshold", "thresholds"}
_SETTINGS = {"config", "configuration", "settings", "network"}
_OWNERS = {"user", "model", "key", "apikey", "org", "organization", "account", "customer"}
_OWNERS |= {"tenant", "team", "project", "consumer", "subscription", "deployment"}
_FACTS = {"info", "data", "details", "profile", "meta", "metadata"}  # as in ``user_info``


class FieldColumn(NamedTuple):
    """The column that holds a field: its name, and the unit of time that its name contains."""

    name: str
    unit: str | None = None


def split_unit(name: str) -> tuple[str, str | None]:
    """Split ``ttft_ms`` into ``ttft`` and ``ms``; the unit is None if the name contains none."""
    words = _words_of(name)
    last = words[-1].lower()
    # In a column's name, the word ``min`` means a minimum, not minutes.
    unit = _NAMED_UNITS.get(last) if len(words) > 1 and last != "min" else None
    return (name, None) if unit is None else (" ".join(words[:-1]), unit)


def _words_of(name: str) -> list[str]:
    """Return the words of a name, such as ``time``, ``To``, ``First`` for ``timeToFirst``."""
    if len(name) > LONGEST:
        return [name]
    return _MARKS.sub(" ", _HUMP.sub(" ", name)).split() or [name]


def plain(name: str) -> str:
    """Return a column's name in lower case, without spaces and punctuation."""
    return "" if len(name) > LONGEST else _MARKS.sub("", name).lower()


_ANSWERS = {"response", "resp", "http", "request", "req", "result", "meta", "metainfo", "upstream"}
_VAGUE = {"status", "error", "code", "state", "result", "outcome"}


def sign_name(name: str) -> str:
    """Return a column's name as ``plain`` does, without the objects that describe an answer.

    For example, ``http.response.status_code`` becomes ``statuscode``, and ``finish_reason.type``
    becomes ``finishreason``. A vague word keeps the word ``response``, so that ``result.status``
    becomes ``responsestatus``.
    """
    parts = (name.removesuffix(".type") if plain(name).endswith("reasontype") else name).split(".")
    outer = next(
        (n for n, one in enumerate(parts[:-1]) if plain(one) not in _ANSWERS), len(parts) - 1
    )
    text = plain(".".join(parts[outer:]))
    return f"response{text}" if outer and text in _VAGUE else text


def can_hold(field: str, value: Any) -> bool:
    """Return whether a field can contain a value of this type and magnitude."""
    if field in MOMENTS:
        return cells.is_moment(value)
    if field in LENGTHS:
        number = number_of(value)
        return cells.duration_s(value) is not None or (number is not None and number >= -1)
    if field in COUNTS:
        number = number_of(value)
        return number is not None and 0 <= number < 2**53 and number % 1 == 0
    if field in ("itls", "gaps", "hash_ids"):
        return isinstance(value, list | str)
    return field == "text" or not isinstance(value, list | dict)


def means_other(field: str, name: str) -> bool:
    """Return whether the objects around a nested column exclude that the column holds a field.

    For example, ``limits.input_tokens`` counts no tokens, and ``user.created_at`` is no start.
    """
    outer = ([word.lower() for word in _words_of(one)] for one in name.split(".")[:-1])
    around = {next((w for w in words[::-1] if w not in _FACTS), "") for words in outer}
    wrong = _OTHER if field in LABELS else _OTHER | _SETTINGS
    if field in MOMENTS:
        wrong = wrong | _OWNERS
    return field != "max_tokens" and not wrong.isdisjoint(around)


def recognised(
    field: str, names: Iterable[str], values: Mapping[str, list[Any]]
) -> list[FieldColumn]:
    """Return the columns whose names are known for a field, in order of preference.

    Args:
        field: The field to look for, a key of ``NAMES``.
        names: The names of the file's columns.
        values: Some values of each column. Columns whose values do not fit ``field`` are left out,
            unless all columns would be left out.
    """
    rank = {name: place for place, name in enumerate(NAMES[field])}
    found: list[tuple[int, FieldColumn]] = []
    for name in names:
        text, unit = split_unit(name)
        if plain(name) in rank:
            found.append((rank[plain(name)], FieldColumn(name)))
        elif unit and plain(text) in rank and (field in TIMES):
            found.append((rank[plain(text)], FieldColumn(name, unit)))
    columns = [column for _, column in sorted(found, key=lambda one: one[0])]
    if field == "start":
        columns = _without_durations(columns, names, values)
    right = [one for one in columns if _mostly_fit(field, values.get(one.name, []), empty=True)]
    return right if right or field in (*LABELS, "itls", "gaps") else columns


def _without_durations(
    columns: list[FieldColumn], names: Iterable[str], values: Mapping[str, list[Any]]
) -> list[FieldColumn]:
    """Drop columns of durations, such as ``request_time``, if another column has dates."""
    seen = (value for name in names for value in values.get(name, [])[:1])
    texts = any(
        isinstance(one, str) and cells.is_calendar(one) and cells.is_moment(one) for one in seen
    )
    dates = any(
        len(set(map(str, values.get(one.name, ())))) > 1
        for one in columns
        if _is_dated(one, values)
    )
    beside = {"requesttime": texts or dates, "reqtime": texts or dates, "time": dates}
    return [one for one in columns if not beside.get(plain(one.name)) or _is_dated(one, values)]


def starts_run(name: str, values: Iterable[Any]) -> bool:
    """Return whether a column such as ``start_time`` states the start of the whole run.

    Such a column has at least two known values, which are all equal.
    """
    if plain(split_unit(name)[0]) in ("start", "time", "timestamp", "t", "ts"):
        return False
    known = (str(one) for one in values if not cells.is_missing(one))
    first, second = next(known, None), next(known, None)
    return first is not None and first == second and all(one == first for one in known)


def _is_dated(column: FieldColumn, values: Mapping[str, list[Any]]) -> bool:
    first = next(iter(values.get(column.name, ())), "")
    number = number_of(first)
    return cells.is_moment(first) if number is None else number >= FIRST_DATE_S


def _mostly_fit(field: str, values: list[Any], *, empty: bool = False) -> bool:
    """Return whether at least half of the values fit a field; without values, return ``empty``."""
    right = sum(can_hold(field, value) for value in values)
    return 2 * right >= len(values) if values else empty


def nearest(field: str, values: Mapping[str, list[Any]], taken: Iterable[str]) -> str:
    """Return the column whose name is closest to a field's usual names; "" if none is close.

    Args:
        field: The field to look for, a key of ``NAMES``.
        values: Some values of each column, by dotted name. Columns whose values do not fit
            ``field`` are skipped.
        taken: Columns that already hold other fields.
    """
    timed = field in TIMES
    by_plain: dict[str, str] = {}
    for name in sorted(set(values).difference(taken)):
        words = [one.lower() for one in _words_of(name.rpartition(".")[2])]
        wrong = words[-1] in _NO_TIME if timed else field in COUNTS and words[-1] in _NAMED_UNITS
        wrong = wrong or name.startswith(OWN) or means_other(field, name)
        if not wrong and _mostly_fit(field, values[name]):
            by_plain.setdefault(plain(name), name)
            by_plain.setdefault("".join(words), name)
    near = [
        one
        for name in NAMES.get(field, ())
        for one in get_close_matches(name, by_plain, 1, 0.7 if len(name) > 3 else 0.99)
    ]
    return printable(by_plain[near[0]]) if near else ""


def parse_map(texts: Iterable[str], needed: Iterable[str] = ()) -> dict[str, str]:
    """Parse the texts ``FIELD=COLUMN`` of ``--map``.

    Raises UsageError for an unknown field, or for a text that is not ``FIELD=COLUMN``. ``FIELD=``
    without a column states that the file lacks the field, which is an error for ``needed`` fields.
    """
    names = {}
    for text in texts:
        field, equals, column = text.partition("=")
        if not (field and equals):
            raise UsageError(f"--map {text}: write FIELD=COLUMN, such as client=user_id")
        base = next(iter(mapped({field: column})))
        if not column and base in {SYNONYMS.get(one, one) for one in needed}:
            raise UsageError(f"--map {text}: write a column after =, because {field} is needed")
        names[field] = column
    return names


def mapped(names: Mapping[str, str]) -> dict[str, FieldColumn]:
    """Return the columns that ``--map`` names, by field. Raises UsageError for an unknown field."""
    found = {}
    for field, column in names.items():
        base, _, unit_name = field.rpartition("_")
        unit = _NAMED_UNITS.get(unit_name)
        base, unit = (field, None) if field in MAPPED else (base, unit)
        if base not in MAPPED or (unit and SYNONYMS.get(base, base) not in TIMES):
            raise unknown_name("field in --map", field, [*MAPPED, "time_ms", "latency_ms"])
        found[SYNONYMS.get(base, base)] = FieldColumn(column, unit or split_unit(column)[1])
    return found


def no_column(
    field: str, values: Mapping[str, list[Any]], taken: Iterable[str], where: str
) -> DataError:
    """Return an error for a field without a recognised column; it suggests a similar column.

    Columns in ``taken`` belong to other fields and are not suggested.
    """
    near = nearest(field, values, taken)
    called = next((name for name, one in SYNONYMS.items() if one == field), field)
    hint = f" Did you mean {called}={near}?" if near else ""
    return DataError(
        f"{where}: no column for {called} (has {first_columns(values)}): name it with "
        f"--map {called}=COLUMN.{hint}"
    )


def no_client(values: Mapping[str, list[Any]], taken: Iterable[str]) -> str:
    """Return a remark to the user that no column names the client."""
    near = nearest("client", values, taken) or "COLUMN"
    return f"no column for client (has {first_columns(values)}): name it with --clients-from {near}"


def first_columns(names: Iterable[str]) -> str:
    """Return the names of a file's first columns as a text for messages."""
    known = (printable(str(one)) for one in names if not str(one).startswith(OWN))
    return shortened(", ".join(islice(known, 12)))


def no_such_column(name: str, record: Mapping[str, Any], where: str) -> DataError:
    """Return the error for a column that the user named and that the file does not have.

    The error message lists the columns of the file. If ``name`` is ``a.b`` and the column ``a``
    holds an object, the message lists the keys of this object instead of the columns.
    """
    outer = name.partition(".")[0]
    inside = outer != name and isinstance(record.get(outer), Mapping)
    known = leaves(record[outer], f"{outer}.") if inside else map(str, record)
    missing = unknown_name("column", name, (one for one in known if not one.startswith(OWN)))
    return DataError(f"{where}: {printable(str(missing))}")


MAX_LEAVES = 500


def leaves(value: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the dotted names of the values in a nested object, up to ``MAX_LEAVES`` names."""
    yield from islice(_leaves(value, before), MAX_LEAVES)


def _leaves(value: Mapping[str, Any], before: str) -> Iterator[str]:
    for key, one in value.items():
        if isinstance(one, Mapping) and one:
            yield from _leaves(one, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def cell_of(record: Mapping[str, Any], name: str) -> Any:
    """Return the value under ``name`` in a record.

    The name ``a.b`` stands for ``b`` in a nested object ``a``. In a name with several dots, each
    dot is tried as the separator.
    """
    if name in record or "." not in name:
        return record.get(name)
    at = name.find(".")
    while at >= 0:
        inside = object_of(record.get(name[:at]))
        if isinstance(inside, Mapping) and (found := cell_of(inside, name[at + 1 :])) is not None:
            return found
        at = name.find(".", at + 1)
    return None


def object_of(value: Any) -> Any:
    """Parse a text that contains a JSON object or list, and return other values unchanged.

    CSV files store nested objects as JSON texts. Invalid JSON is returned as None.
    """
    if isinstance(value, str) and value.startswith(("{", "[{")):
        try:
            return parsed(value.encode(), "")
        except (DataError, UnicodeEncodeError):
            return None
    return value


def given(value: Any) -> Any:
    """Return ``value`` unchanged, or None if ``value`` is missing, such as null or ``n/a``."""
    return None if cells.is_missing(value) else value
