"""Timing profiles as tables of a TOML file (``--gpu``), and of the derived bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.reader import digest as digest_of
from fairbench.files.toml_text import read_toml
from fairbench.hardware.timing import FitDomain, Frontend, KVPool, TimingProfile

SUFFIX = ".toml"
FILE = "file:"
"""Beginning of the source, the last part of an id, of a profile that was read from a file."""

COEFFICIENTS = ("c0", "c_w", "c_T", "p", "c_A", "c_K", "c_npf", "c_nd")
OPTIONAL = ("c_pf", "c_e", "q_e")
_TABLES = {"coefficients_ms", "pool", "frontend_ms", "fit_domain", "heldout_error_pct"}
_KEYS = _TABLES | {"profile", "grade", "source", "host_ms"}
_DIGEST_LETTERS = 12


def read_profile(gpu: str) -> TimingProfile:
    """Return the profile of a TOML file, given its path or the stored id of such a profile.

    The id ends in the file's path and digest, so that an experiment notices a changed file.
    Raises DataError naming file and key, and UsageError where the file has changed.
    """
    path, _, digest = gpu.rpartition(f"/{FILE}")[2].partition("@")
    data = read_toml(Path(path), path)
    found = digest_of(Path(path), path)[:_DIGEST_LETTERS]
    if digest and digest != found:
        raise UsageError(
            f"gpu {path}: the file has changed since the experiment was stored (digest "
            f"{digest}, now {found}); give --gpu {path} to use the changed file"
        )
    profile_id = _text(data, "profile", path)
    place = profile_id.split("/")[:3]
    if len(profile_id.split("/")) != 4 or not place[2].removeprefix("tp").isdigit():
        raise DataError(f"{path}: profile = {profile_id!r}: must be GPU/MODEL/tpN/SOURCE")
    return profile_of_table(data, "/".join([*place, f"{FILE}{path}@{found}"]), path)


def profile_of_table(data: Mapping[str, Any], profile_id: str, where: str) -> TimingProfile:
    """Return the profile that a table describes. Raises DataError naming the key."""
    for key in data:
        if key not in _KEYS:
            raise DataError(f"{where}: {unknown_name('key', key, _KEYS)}")
    costs = _numbers(data, "coefficients_ms", where, COEFFICIENTS, OPTIONAL)
    if not costs["p"] >= 1:
        raise DataError(f"{where}: coefficients_ms.p = {costs['p']}: must be at least 1")
    if ("c_e" in costs) != ("q_e" in costs) or costs.get("q_e", 0) > 1:
        raise DataError(
            f"{where}: coefficients_ms.q_e must be at most 1, and needs coefficients_ms.c_e"
        )
    names = tuple(field.name for field in fields(KVPool))
    pool = _numbers(data, "pool", where, names[:-1], names[-1:])
    chunk_tokens = int(pool.pop("chunked_prefill_size"))
    frontend = tuple(field.name for field in fields(Frontend))
    domain = _numbers(data, "fit_domain", where, (), ("decode_batch", "context_tokens"))
    return TimingProfile(
        profile_id=profile_id,
        coefficients_ms=costs,
        host_ms=_number(data.get("host_ms", 0.0), "host_ms", where),
        grade=_text(data, "grade", where),
        pool=KVPool(chunked_prefill_size=chunk_tokens, **pool),
        frontend=Frontend(**_numbers(data, "frontend_ms", where, (), frontend)),
        fit_domain=_domain(domain),
    )


def table_of(profile: TimingProfile, source: str, error_pct: Mapping[str, float]) -> dict[str, Any]:
    """Return the table that ``profile_of_table`` reads, with six significant digits."""
    pool, frontend, domain = profile.pool, profile.frontend, profile.fit_domain
    table: dict[str, Any] = {
        "profile": profile.profile_id,
        "grade": profile.grade,
        "source": source,
        "host_ms": _rounded(profile.host_ms),
        "coefficients_ms": {k: _rounded(v) for k, v in profile.coefficients_ms.items()},
        "pool": {field.name: _rounded(getattr(pool, field.name)) for field in fields(KVPool)},
    }
    if frontend != Frontend():
        names = (field.name for field in fields(Frontend))
        table["frontend_ms"] = {name: _rounded(getattr(frontend, name)) for name in names}
    if domain is not None:
        table["fit_domain"] = {"decode_batch": domain.decode_batch}
        if domain.context_tokens is not None:
            table["fit_domain"]["context_tokens"] = domain.context_tokens
    if error_pct:
        table["heldout_error_pct"] = dict(error_pct)
    return table


def _domain(numbers: Mapping[str, float]) -> FitDomain | None:
    if "decode_batch" not in numbers:
        return None
    context = numbers.get("context_tokens")
    return FitDomain(int(numbers["decode_batch"]), None if context is None else int(context))


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise DataError(f"{where}: {key}: must be a text")
    return value


def _numbers(
    data: Mapping[str, Any],
    table: str,
    where: str,
    required: tuple[str, ...],
    optional: tuple[str, ...],
) -> dict[str, float]:
    """Return the numbers of a table of the file, none of them negative."""
    values = data.get(table, {})
    if not isinstance(values, Mapping):
        raise DataError(f"{where}: {table}: must be a table")
    for key in required:
        if key not in values:
            raise DataError(f"{where}: {table}.{key}: missing")
    for key in values:
        if key not in required + optional:
            wrong = unknown_name("key", f"{table}.{key}", [f"{table}.{k}" for k in required])
            raise DataError(f"{where}: {wrong}")
    return {key: _number(value, f"{table}.{key}", where) for key, value in values.items()}


def _number(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise DataError(f"{where}: {key} = {value!r}: must be a number of at least 0")
    return value
