"""Columns of users' files, recognised by common names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from fairbench.errors import printable
from fairbench.files.times import UNITS

# Names in the form that ``plain`` returns, best first: a file may hold several.
NAMES: Mapping[str, tuple[str, ...]] = {
    "time": (
        *("time", "timestamp", "t", "ts", "arrival", "arrivaltime", "arrivaltimestamp"),
        *("arrivedat", "start", "starttime", "requesttime", "reqtime", "submit", "submittime"),
        *("createdat", "created", "datetime", "date"),
    ),
    "client": (
        *("client", "tenant", "user", "clientid", "tenantid", "userid", "clientname", "username"),
        *("enduser", "customer", "customerid", "organization", "organizationid", "org", "orgid"),
        *("team", "teamid", "account", "accountid", "apikeyid", "tenantname", "teamname"),
        *("accountname", "customername", "organizationname", "orgname"),
    ),
    "input_tokens": (
        *("inputtokens", "prompttokens", "inputlength", "inputlen", "promptlen", "promptlength"),
        *("contexttokens", "requesttokens", "numprompttokens", "numinputtokens", "isl"),
        "inputsequencelength",
    ),
    "output_tokens": (
        *("outputtokens", "completiontokens", "outputlength", "outputlen", "generatedtokens"),
        *("responsetokens", "completionlength", "numoutputtokens", "numcompletiontokens", "osl"),
        *("generationtokens", "responselength", "outputsequencelength"),
    ),
    "cached_tokens": (
        *("cachedtokens", "cachedprompttokens", "cachedinputtokens", "numcachedtokens"),
        *("cachereadtokens", "cachereadinputtokens", "cachehittokens", "promptcachehittokens"),
    ),
    "max_tokens": ("maxtokens", "maxnewtokens", "maxoutputtokens", "maxcompletiontokens"),
    "session": ("session", "sessionid", "conversation", "conversationid", "chatid", "programid"),
    "request_id": ("id", "requestid", "rid", "reqid", "xrequestid", "callid"),
    "end": ("end", "endtime", "finish", "finishtime", "finishedat", "completedat"),
    "delay": ("delay",),
    "latency": ("latency", "e2elatency", "requestlatency", "duration", "e2el"),
    "first_token": ("firsttoken", "firsttokentime", "completionstarttime"),
    "ttft": ("ttft", "timetofirsttoken", "firsttokenlatency"),
    "itls": (
        *("itls", "itl", "intertokenlatencies", "intertokenlatency", "tokengaps"),
        *("intertokentimes", "intertokengaps"),
    ),
    "hash_ids": ("hashids", "blocks", "blockids", "blockhashes"),
    "block_size": ("blocksize", "blocktokens"),
    "text": ("prompt", "messages", "prompttext", "inputtext"),
}

# Columns of measured runs, by field: of VTC-artifact's ``run_exp.py`` (Ying1123/VTC-artifact at
# 192c2e2), and of ``vllm bench serve --save-result --save-detailed`` (vllm/benchmarks/serve.py).
# sglang.bench_serving has the names of the latter, but no times.
VTC = {"client": "client", "time": "req_time", "ttft": "first_token_latency"}
VTC |= {"latency": "request_latency", "input_tokens": "prompt_len", "output_tokens": "output_len"}
VLLM = {"time": "start_times", "input_tokens": "input_lens", "output_tokens": "output_lens"}
VLLM |= {"ttft": "ttfts", "itls": "itls", "cached_tokens": "cached_tokens", "error": "errors"}

_SUFFIX = re.compile(r"[\s_(\[.-]+(ns|us|ms|s|sec|seconds)[\s)\]]*$", re.IGNORECASE)
_UNITS = {**{unit: unit for unit in UNITS}, "sec": "s", "seconds": "s"}


class Column(NamedTuple):
    """The column of a field, and the unit of its times if the name contains one."""

    name: str
    unit: str | None


def recognised(names: Iterable[str], fields: Iterable[str] = NAMES) -> dict[str, Column]:
    """Return the columns that hold the fields, by common names; absent ones are left out."""
    known: dict[str, Column] = {}
    for name in names:
        text, unit = split_unit(name)
        known.setdefault(plain(name), Column(name, None))
        known.setdefault(plain(text), Column(name, unit))
    found = {field: next((one for one in NAMES[field] if one in known), None) for field in fields}
    return {field: known[one] for field, one in found.items() if one is not None}


def split_unit(name: str) -> tuple[str, str | None]:
    """Split ``ttft_ms`` into ``ttft`` and ``ms``; the unit is None if the name has none."""
    found = _SUFFIX.search(name)
    if found is None:
        return name, None
    return name[: found.start()], _UNITS[found[1].lower()]


def plain(name: str) -> str:
    """Strip case, spaces and punctuation, so ``Request tokens`` equals ``request_tokens``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def nearest(field: str, record: Mapping[str, Any], taken: Iterable[str]) -> str:
    """Return the column of single values closest to a common name of a field, or "".

    Args:
        field: Field of ``NAMES``.
        record: Record with the columns.
        taken: Columns that hold other fields.
    """
    values = {str(name) for name, value in record.items() if not isinstance(value, list | dict)}
    by_plain = {plain(name): name for name in sorted(values.difference(taken))}
    near = [
        one for name in NAMES.get(field, ()) for one in get_close_matches(name, by_plain, 1, 0.7)
    ]
    return printable(by_plain[near[0]]) if near else ""
