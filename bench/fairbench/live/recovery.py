"""What is left of a run that was killed."""

from __future__ import annotations

from fairbench.live.driver.drive import DriveResult
from fairbench.live.records import LiveRecords


def recovered(records: LiveRecords) -> DriveResult:
    """How a run ended whose records are all there is: with the last of them, incomplete.

    Requests and programs that were under way are not in the records.
    """
    arrivals = [program.arrival_s for program in records.programs]
    ends = [program.finish_s for program in records.programs]
    ends += [request.finish_s for request in records.requests]
    return DriveResult(
        complete=False,
        end_s=max([*arrivals, *(end_s for end_s in ends if end_s is not None)], default=0.0),
        last_arrival_s=max(arrivals, default=0.0),
    )
