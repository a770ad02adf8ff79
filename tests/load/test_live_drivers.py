"""Test that several drivers produce one set of records, whatever their clocks show."""

import asyncio
import json
import os
import signal
import time
from itertools import chain, repeat
from multiprocessing import Pipe
from pathlib import Path
from threading import Timer

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.tasks import start_child
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import check_live
from fairbench_load.driver.drive import DriveResult, drive
from fairbench_load.driver.target import DriverTarget
from fairbench_load.drivers import (
    Driver,
    ReadClock,
    Team,
    Written,
    drive_sharded,
    joined_result,
    serve,
)
from fairbench_load.far_drivers import LocalCrew
from fairbench_load.records import (
    CLOCK_FILE,
    FOLDER,
    ClockComparison,
    Journal,
    Offset,
    ProgramRecord,
    RequestRecord,
    Shard,
    clocks,
    compare_clocks,
    corrected,
    merge,
    read_records,
    write_clock,
)
from tests.load.live_cli import descendants, lines, running, wait_until
from tests.load.live_driving import VOCAB, small_spec
from tests.load.live_null_server import null_server
from tests.load.live_skewed import RATE, serve_skewed, skewed_clock
from tests.load.test_live_launchers import only, rows

EMULATED = ["run", "--backend", "emulator", "--dp", "2", "--workload", "chat", "--scenario", "none"]
SHORT = [*EMULATED, "--clients", "3", "--num-programs", "1", "--time-scale", "8"]
LONG = [*EMULATED, "--clients", "3", "--duration", "20000", "--drivers", "2"]
DELAYS = st.floats(min_value=0, max_value=1e3)


def offset(at_s=0.0, offset_s=0.0, uncertainty_s=0.0):
    return Offset(at_s, offset_s, uncertainty_s)


@given(
    st.floats(min_value=-1e6, max_value=1e6),
    st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=5),
)
def test_a_skew_is_within_its_uncertainty_for_any_network_delays(skew_s, ways):
    """Some round trips take longer than others, and differ in the two directions."""
    now_s, waits = 0.0, chain(ways, repeat(ways[-1]))

    def ask():
        nonlocal now_s
        there_s, back_s = next(waits)
        now_s += there_s
        read_s = now_s + skew_s
        now_s += back_s
        return read_s

    found = compare_clocks(ask, lambda: now_s, rounds=len(ways))
    assert found.uncertainty_s == pytest.approx(min(map(sum, ways)) / 2, abs=1e-6)
    assert abs(found.offset_s - skew_s) <= found.uncertainty_s + 1e-6


def test_the_clock_of_another_process_is_found_within_its_uncertainty():
    child = start_child(serve_skewed)
    try:

        def ask():
            child.pipe.send(ReadClock())
            return child.pipe.recv()

        found = compare_clocks(ask, time.monotonic)
        before_s, skewed_s, after_s = time.monotonic(), skewed_clock(), time.monotonic()
        unsure_s = found.uncertainty_s + (after_s - found.at_s) * (RATE - 1)
        assert skewed_s - after_s - unsure_s <= found.offset_s <= skewed_s - before_s + unsure_s
    finally:
        child.pipe.close()
        child.process.join()


def test_a_difference_within_the_uncertainty_is_no_drift():
    early = offset(10.0, 5.0, 0.25)
    assert ClockComparison(early).drift_s == 0.0
    assert ClockComparison(early, offset(20.0, 5.5, 0.25)).drift_s == 0.0
    drifted = ClockComparison(early, offset(20.0, 7.0, 0.5))
    assert (drifted.drift_s, drifted.uncertainty_s) == (2.0, 0.5)
    assert [drifted.ahead_s(since_s) for since_s in (0.0, 5.0, 10.0)] == [0.0, 1.0, 2.0]


def request(request_id, client="a", at_s=0.0, **changes):
    record = RequestRecord(
        *(request_id, 0, client, 0, 0, at_s, at_s, 0.0, None, at_s, at_s, 1, None, 1, 1, 0),
        *("finished", None, [at_s], [1]),
    )
    return msgspec.structs.replace(record, **changes)


def program(program_id, client="a", at_s=0.0):
    return ProgramRecord(program_id, client, at_s, at_s, 1, 1, 1, 1, "finished")


def test_records_of_a_clock_that_ran_fast_are_moved_back():
    """The clock gains 1 s in 10 s. The run's time is twice as fast as the clocks."""
    clock = ClockComparison(offset(0.0, 0.0), offset(10.0, 1.0))
    moved = corrected(request(4, at_s=20.0, submit_s=None), clock, 2.0)
    assert (moved.arrival_s, moved.submit_s, moved.first_token_s) == (18.0, None, 18.0)
    assert (moved.admitted_s, moved.finish_s, moved.chunk_s) == (None, 18.0, [18.0])
    assert corrected(program(1, at_s=10.0), clock, 2.0).arrival_s == 9.0
    still = ClockComparison(offset(0.0, 0.0, 1.0), offset(10.0, 1.0, 1.0))
    assert corrected(moved, still, 2.0) is moved


def test_the_merged_set_is_the_union_of_the_sets_of_all_drivers(tmp_path):
    drivers = [[request(0, "a"), request(2, "a")], [request(1, "b")], []]
    for number, records in enumerate(drivers):
        folder = tmp_path / FOLDER.format(number=number)
        folder.mkdir()
        write_clock(folder, ClockComparison(offset(offset_s=float(number))))
        with Journal(folder) as journal:
            for record in records:
                journal.request(record)
                journal.program(program(record.request_id, record.client))
    for _ in range(2):
        merge(tmp_path, 1.0)
        merged = read_records(tmp_path)
        assert merged.requests == list(chain(*drivers))
        assert [one.program_id for one in merged.programs] == [0, 2, 1]
    assert [clock.before.offset_s for clock in clocks(tmp_path)] == [0.0, 1.0, 2.0]


def test_a_new_estimate_of_a_clock_replaces_the_old_one(tmp_path):
    write_clock(tmp_path, ClockComparison(offset(1.0)))
    with (tmp_path / CLOCK_FILE).open() as before:
        write_clock(tmp_path, ClockComparison(offset(1.0), offset(2.0)))
        assert '"after":null' in before.read()
    assert [path.name for path in tmp_path.iterdir()] == [CLOCK_FILE]


def test_an_unreachable_driver_counts_as_dead():
    child = start_child(serve)
    child.process.kill()
    child.process.join()
    team = Team([Driver("driver-0", child.pipe)], [], lambda _: None, lambda: False)
    with pytest.raises(RunFailed, match="driver-0 died during the run"):
        team.clocks()
    child.pipe.close()


ENDED = DriveResult(complete=True, end_s=3.0, last_arrival_s=2.0)


class OnNode:
    """A driver whose messages the test chooses, on a node that may be lost."""

    def __init__(self, name):
        self.lost = False
        ours, self.theirs = Pipe()
        self.driver = Driver(name, ours, "node", lambda: self.lost)


@pytest.fixture
def nodes():
    made = [OnNode(f"driver-{number}") for number in range(2)]
    yield made
    for node in made:
        node.theirs.close()
        node.driver.pipe.close()


def team_on(nodes, folders=()):
    drivers = [node.driver for node in nodes]
    return Team(drivers, folders, lambda _: None, lambda: False)


@pytest.mark.parametrize("hangs_up", [True, False])
def test_a_driver_may_be_lost_after_its_last_report(tmp_path, nodes, hangs_up):
    """The node may disappear before its message is read, or before the others end."""
    first, last = nodes
    for node in nodes:
        node.theirs.send(Written("requests.jsonl", b"{}\n"))
    first.theirs.send(ENDED)
    first.lost = True
    if hangs_up:
        first.theirs.close()
    folders = [tmp_path / node.driver.name for node in nodes]
    for folder in folders:
        folder.mkdir()
    team = team_on(nodes, folders)
    later = Timer(0.3, last.theirs.send, [ENDED])
    later.start()
    assert team.results() == [ENDED, ENDED]
    later.join()
    assert [(folder / "requests.jsonl").read_bytes() for folder in folders] == [b"{}\n"] * 2
    last.lost = True
    assert team.clocks_again() == [None, None]


def test_losing_a_driver_before_its_last_report_ends_the_run(tmp_path, nodes):
    nodes[1].theirs.send(Written("requests.jsonl", b"{}\n"))
    nodes[1].lost = True
    (tmp_path / "1").mkdir()
    with pytest.raises(RunFailed, match="driver-1 died during the run"):
        team_on(nodes, [tmp_path / "0", tmp_path / "1"]).results()
    assert (tmp_path / "1" / "requests.jsonl").read_bytes() == b"{}\n"
    with pytest.raises(RunFailed, match="driver-1 died during the run"):
        team_on(nodes[1:]).clocks()


@pytest.mark.parametrize("order", [1, -1])
def test_a_run_ends_with_its_last_driver(order):
    early = DriveResult(complete=True, end_s=2.5, last_arrival_s=2.2)
    late = DriveResult(complete=False, end_s=3.0, last_arrival_s=2.0)
    assert joined_result([early, late][::order]) == DriveResult(False, 3.0, 2.2)


@pytest.mark.slow
def test_users_in_a_closed_loop_think_from_the_start(tmp_path, monkeypatch):
    """Thinking starts at the common start, not at the slightly earlier message to the driver."""
    asked = []

    class Leaves:
        def next(self, now_s):
            asked.append(now_s)

    monkeypatch.setattr("fairbench_load.driver.drive.users_of", lambda *_, **__: (Leaves(),))
    target = DriverTarget("http://127.0.0.1:9", time_scale=5.0)
    starting = drive(small_spec(), target, tmp_path, vocab=VOCAB, starts_in_s=lambda: 0.05)
    asyncio.run(starting)
    assert len(asked) == 2
    assert min(asked) >= 0


def test_a_run_of_one_driver_is_unchanged(tmp_path):
    with Journal(tmp_path) as journal:
        journal.request(request(0))
    merge(tmp_path, 1.0)
    assert len(read_records(tmp_path).requests) == 1


@given(st.lists(st.integers()), st.integers(min_value=1, max_value=9))
def test_every_client_has_one_driver(clients, count):
    parts = [Shard(number, count).clients_of(clients) for number in range(count)]
    assert sorted(chain(*parts)) == sorted(clients)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("drivers", "backend", "says"),
    [
        (
            2,
            None,
            (
                "--drivers 2 needs real servers, because a simulation has no drivers; give "
                "--backend or --base-url"
            ),
        ),
        (5, {"kind": "emulator"}, "--drivers 5: must be at most the number of clients, 2"),
        (
            2,
            {"kind": "emulator", "max_concurrency": 4},
            "--max-concurrency cannot be combined with --drivers",
        ),
    ],
)
def test_impossible_numbers_of_drivers_are_refused(drivers, backend, says):
    spec = small_spec(**({} if backend is None else {"backend": backend}))
    with pytest.raises(UsageError, match=says):
        check_live(spec, LiveOptions(drivers=drivers))


@pytest.mark.slow
@pytest.mark.alone
def test_drivers_with_wrong_clocks_give_the_records_of_one_driver(tmp_path):
    """The server is in this process and answers immediately."""
    spec = small_spec("chat", clients=3, num_programs=4)

    async def both():
        async with null_server() as server:
            target = DriverTarget(server.url, time_scale=5.0)
            (tmp_path / "one").mkdir()
            await drive(spec, target, tmp_path / "one", vocab=VOCAB)
            (tmp_path / "three").mkdir()
            told = []
            result = await asyncio.to_thread(
                lambda: drive_sharded(
                    *(LocalCrew(3, serve_skewed), spec, target, tmp_path / "three"),
                    vocab=VOCAB,
                    on_progress=told.append,
                    interrupted=lambda: False,
                )
            )
            return told, result

    told, result = asyncio.run(both())
    one, three = (read_records(tmp_path / name) for name in ("one", "three"))

    def asked(records):
        return sorted((r.client, r.program_id, r.depth, r.output_tokens) for r in records.requests)

    assert asked(one) == asked(three)
    assert sorted(r.request_id for r in three.requests) != []
    assert len({r.request_id for r in three.requests}) == len(three.requests)
    assert result.complete
    assert sum(told[-1].service.values()) > 0
    found = clocks(tmp_path / "three")
    assert len(found) == 3
    lasted_s = found[0].after.at_s - found[0].before.at_s
    for clock in found:
        gained_s = clock.after.offset_s - clock.before.offset_s
        unsure_s = clock.before.uncertainty_s + clock.after.uncertainty_s
        passed_s = clock.after.at_s - clock.before.at_s
        assert abs(gained_s - (RATE - 1) * passed_s) <= unsure_s
    # Programs arrive at their times, within the uncertainty of both clocks.
    planned = {p.program_id: p.arrival_s for p in one.programs}
    unsure_s = 5.0 * (max(c.uncertainty_s for c in found) * 2 + (RATE - 1) * lasted_s)
    assert all(abs(p.arrival_s - planned[p.program_id]) <= unsure_s for p in three.programs)


@pytest.mark.slow
def test_a_run_of_two_drivers_equals_a_run_of_one_driver(tmp_path):
    for name, flags in (("one", []), ("two", ["--drivers", "2"])):
        with running(*SHORT, *flags, "--result-dir", tmp_path / name) as process:
            _, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, "")
    one, two = (only(tmp_path / name) for name in ("one", "two"))
    assert rows(one) == rows(two)
    told = json.loads((two / "manifest.json").read_text())["drivers"]
    assert len(told) == 2
    for driver in told:  # both drivers have the same clock
        assert abs(driver["offset_s"]) <= driver["uncertainty_s"]
        assert driver["drift_s"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_records_of_several_drivers_are_kept_however_the_run_ends(tmp_path, signum):
    with running(*LONG, "--result-dir", tmp_path) as process:
        records = "*/live/driver-1/requests.jsonl"
        wait_until(lambda: any(lines(path) > 3 for path in tmp_path.glob(records)), process)
        os.kill(process.pid, signum)
        process.communicate()
    assert process.returncode == (130 if signum == signal.SIGINT else -signum)
    assert not descendants(process.mark)
    path = only(tmp_path)
    if signum == signal.SIGKILL:
        with running("recover", path) as process:
            process.communicate()
        assert process.returncode == 0
    kept = [read_records(Path(path, "live", f"driver-{n}")).requests for n in range(2)]
    found = json.loads((path / "summary.json").read_text())
    assert found["num_requests"] == sum(map(len, kept)) > 3
    assert found["complete"] is False
