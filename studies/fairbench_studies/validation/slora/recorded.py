"""The dates of VTC-artifact's measured runs, which reveal the version of its charging code.

The records of VTC-artifact have no dates. This module lists the date of the last commit, up to
192c2e2, that changed each record file. If a record has the field ``recorded``, the date in this
field is used instead of the commit's date.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from fairbench.errors import DataError, unknown_name
from fairbench_studies.validation.slora.forms import ArtifactForm, EarlyArtifactForm

Recorded: TypeAlias = Literal["2023-12", "2024-04", "2024-06"]
RECORDED: tuple[Recorded, ...] = get_args(Recorded)

# ``_EARLIER`` lists, by scheduler, the scenarios that were measured before VTC-artifact was revised
# in June 2024. Runs that are not in ``_EARLIER`` were measured for the revision of VTC-artifact in
# June 2024.
_EARLIER: dict[Recorded, dict[str, tuple[str, ...]]] = {
    "2023-12": {
        "FCFS": (
            "increase", "on_off_less", "on_off_overload", "overload", "poisson_on_off_overload",
            "poisson_short_long", "proportional", "overload-s4",
        ),
        "VTC": (
            "increase", "on_off_less", "on_off_overload", "poisson_on_off_overload",
            "poisson_short_long", "poisson_short_long_2", "overload-s4",
        ),
    },
    "2024-04": {
        "FCFS": ("poisson_short_long_2",),
        "LCF": ("dist_shift",),  # recorded on 4 June 2024, but with VTC-artifact's code of April
        "LShare/rpm10": ("real",),
        "LShare/rpm15": ("real",),
        "VTC": ("dist_shift", "proportional"),
    },
}  # fmt: skip


def recorded(scheduler: str, scenario: str, stated: object = None) -> Recorded:
    """Return the date of a run: the ``stated`` date, or else the date of the run's commit.

    Raises DataError if ``stated`` is a date that ``RECORDED`` lacks.
    """
    for date in RECORDED:
        if stated == date:
            return date
    if stated is not None:
        error = unknown_name("date in field 'recorded'", str(stated), RECORDED)
        raise DataError(str(error))
    for date, runs in _EARLIER.items():
        if scenario in runs.get(scheduler, ()):
            return date
    return RECORDED[-1]


def vtc_form(date: Recorded) -> type[ArtifactForm]:
    """Return the class that implements VTC as in VTC-artifact at a date.

    Since June 2024, VTC-artifact charges clients a second time in a step that ends a request.
    """
    return ArtifactForm if date == "2024-06" else EarlyArtifactForm
