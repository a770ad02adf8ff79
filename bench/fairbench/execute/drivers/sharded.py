"""The load of a live run from several processes, with records merged into one set.

One process that sends thousands of requests a second sends them late. Needs the live extra.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.execute.drivers.child import Begin
from fairbench.execute.drivers.team import Crew, Team
from fairbench.live.driver.clocks import Comparison
from fairbench.live.driver.drive import DriveProgress, DriveResult
from fairbench.live.driver.journal import Journal
from fairbench.live.driver.shards import FOLDER, Shard, merge, write_clock
from fairbench.live.driver.target import Target


class ShardedDrive:
    """Drives a run with a ``crew`` of drivers, each with a part of the clients."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def __call__(
        self,
        spec: ExperimentSpec,
        target: Target,
        folder: Path,
        *,
        vocab: range,
        on_progress: Callable[[DriveProgress], None],
        interrupted: Callable[[], bool],
    ) -> DriveResult:
        """Drive as ``live.driver.drive`` does.

        Raises RunFailed if a driver dies, or a driver's
        error.

        Finished requests are written to the drivers' folders at once, and to ``folder`` at the end.
        """
        with self._crew.started(folder, interrupted) as drivers:
            folders = [folder / FOLDER.format(number=number) for number in range(len(drivers))]
            team = Team(drivers, folders, on_progress, interrupted)
            before = team.clocks()
            hosts = [driver.host for driver in drivers]
            for one, offset, host in zip(folders, before, hosts, strict=True):
                one.mkdir(exist_ok=True)
                write_clock(one, Comparison(offset, host=host))
                with Journal(one):  # there, even of a driver that dies before it has told anything
                    pass
            for number, one in enumerate(folders):
                shard = Shard(number, len(drivers))
                team.tell(number, Begin(spec, target, one, vocab, shard))
            team.start_all(before)
            results = team.results()
            late = team.clocks_again()
            for one, early, after, host in zip(folders, before, late, hosts, strict=True):
                write_clock(one, Comparison(early, after, host))
        with Journal(folder):  # there, even if nobody had begun
            pass
        merge(folder, target.time_scale)
        return DriveResult(
            complete=all(result.complete for result in results),
            end_s=max(result.end_s for result in results),
            last_arrival_s=max(result.last_arrival_s for result in results),
        )
