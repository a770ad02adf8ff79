"""Timing profiles as tables of a TOML file (``--gpu``), and of the derived bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairbench.errors import DataError, UsageError, of_file, validated
from fairbench.files.reader import digest as digest_of
from fairbench.files.toml_text import read_toml
from fairbench.hardware.timing import FitDomain, Frontend, KVPool, TimingProfile

SUFFIX = ".toml"
FILE = "file:"
"""Beginning of the source, the last part of the id, for profiles that were read from a file."""

_DIGEST_LETTERS = 12
_ONLY_KNOWN = ConfigDict(extra="forbid", frozen=True)

Text = Annotated[str, Field(min_length=1)]
Amount = Annotated[float, Field(ge=0, lt=1e12)]


class _Coefficients(BaseModel):
    """The coefficients of ``TimingProfile``; a file's keys are the symbols of the formula there."""

    model_config = _ONLY_KNOWN

    c0: Amount
    c_w: Amount
    c_T: Amount  # noqa: N815 - users' profile files have this key, so it cannot change
    p: Annotated[float, Field(ge=1, lt=1e12)]
    c_A: Amount  # noqa: N815 - users' profile files have this key, so it cannot change
    c_K: Amount  # noqa: N815 - users' profile files have this key, so it cannot change
    c_npf: Amount
    c_nd: Amount
    c_pf: Amount | None = None
    c_l: Amount | None = None
    c_lp: Amount | None = None
    c_tail: Amount | None = None
    c_e: Amount | None = None
    q_e: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.c_e is None) != (self.q_e is None):
            raise ValueError("c_e and q_e must be given together")
        return self


class _File(BaseModel):
    model_config = _ONLY_KNOWN

    profile: Text
    grade: Text
    source: str = ""
    host_ms: Amount = 0.0
    coefficients_ms: _Coefficients
    pool: KVPool
    frontend_ms: Frontend = Frontend()
    fit_domain: FitDomain | None = None
    heldout_error_pct: dict[str, float] = {}


_KNOWN = (*_File.model_fields, *(f"coefficients_ms.{name}" for name in _Coefficients.model_fields))


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
    profile = profile_of_table(data, path)
    place = profile.profile_id.split("/")
    if len(place) != 4 or not place[2].removeprefix("tp").isdigit():
        raise DataError(f"{path}: profile = {profile.profile_id!r}: must be GPU/MODEL/tpN/SOURCE")
    return replace(profile, profile_id="/".join([*place[:3], f"{FILE}{path}@{found}"]))


def profile_of_table(data: Mapping[str, Any], where: str) -> TimingProfile:
    """Return the profile that a table describes. Raises DataError naming the key."""
    with of_file(where, _KNOWN):
        found = validated(_File, data)
    return TimingProfile(
        profile_id=found.profile,
        coefficients_ms=found.coefficients_ms.model_dump(exclude_none=True),
        host_ms=found.host_ms,
        grade=found.grade,
        pool=found.pool,
        frontend=found.frontend_ms,
        fit_domain=found.fit_domain,
    )


def table_of(profile: TimingProfile, source: str, error_pct: Mapping[str, float]) -> dict[str, Any]:
    """Return the table that ``profile_of_table`` reads, with six significant digits."""
    table: dict[str, Any] = {
        "profile": profile.profile_id,
        "grade": profile.grade,
        "source": source,
        "host_ms": _rounded(profile.host_ms),
        "coefficients_ms": {k: _rounded(v) for k, v in profile.coefficients_ms.items()},
        "pool": {k: _rounded(v) for k, v in asdict(profile.pool).items()},
    }
    if profile.frontend != Frontend():
        table["frontend_ms"] = {k: _rounded(v) for k, v in asdict(profile.frontend).items()}
    if profile.fit_domain is not None:
        domain = asdict(profile.fit_domain)
        table["fit_domain"] = {k: v for k, v in domain.items() if v is not None}
    if error_pct:
        table["heldout_error_pct"] = dict(error_pct)
    return table


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")
