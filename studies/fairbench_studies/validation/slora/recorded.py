"""The dates of measured runs, because servers of different dates charged differently.

The records have no date, so the table below takes it from the history of VTC-artifact: from the
commit that last wrote each file (192c2e2 and its ancestors). A record may give its date in
``recorded``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from fairbench.errors import DataError, unknown_name

Recorded: TypeAlias = Literal["2023-12", "2024-04", "2024-06"]
RECORDED: tuple[Recorded, ...] = get_args(Recorded)

# Scheduler -> scenarios. All other runs were recorded for the revision of June 2024, which added
# every scheduler that predicts, weights or charges a profiled cost.
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
        "LCF": ("dist_shift",),  # recorded on 4 June, with the code of April
        "LShare/rpm10": ("real",),
        "LShare/rpm15": ("real",),
        "VTC": ("dist_shift", "proportional"),
    },
}  # fmt: skip


def recorded(scheduler: str, scenario: str, stated: object = None) -> Recorded:
    """Return when a run was recorded; ``stated`` is the date in the record, if any.

    Raises DataError for a date that is not one of ``RECORDED``.
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


def vtc_form(date: Recorded) -> str:
    """Return the form of VTC (``vtc.form``) in VTC-artifact at a date.

    The second update of the counters, in steps that end a request, came in June 2024.
    """
    return "artifact" if date == "2024-06" else "artifact-2023"
