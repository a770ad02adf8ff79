"""Test that records on disk during a simulation equal those in memory, and are always readable."""

import json
import resource
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.engine import logs as columns
from fairbench.engine.logs import IntegerTable
from fairbench.errors import DataError, RunFailed
from fairbench.sim.records import restore, spooled
from fairbench.sim.run import recover, simulate
from tests.sim.sim_helpers import small_spec

SPEC = small_spec("d2lpm", "tot", dp=2, pool=9_000)


def plain(result):
    tables = result.tables().values()
    rows = [{name: np.asarray(column).tolist() for name, column in t.items()} for t in tables]
    return repr(rows), result.summary


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(columns, "ROWS_PER_BLOCK", 7)


def test_a_run_gives_the_same_result_with_its_records_on_disk(tmp_path):
    assert plain(simulate(SPEC, folder=tmp_path)) == plain(simulate(SPEC))


def test_a_whole_run_read_back_from_its_records_is_the_same_run(tmp_path):
    whole = simulate(SPEC, folder=tmp_path)
    left = recover(SPEC, tmp_path)
    assert not left.complete
    assert plain(left)[0] == plain(whole)[0]


def test_a_crash_leaves_every_finished_record(tmp_path):
    class Crash(Exception):
        pass

    polls = iter(range(4))

    def crash():
        if next(polls, None) is None:
            raise Crash
        return False

    with pytest.raises(Crash):
        simulate(SPEC, folder=tmp_path, interrupted=crash)
    polls = iter(range(4))
    stopped = simulate(SPEC, interrupted=lambda: next(polls, None) is None)
    left = recover(SPEC, tmp_path)
    finished = np.asarray(stopped.requests["status"].indices) == 0
    assert 0 < finished.sum() == left.summary["num_requests"] == left.summary["completed"]
    for name in ("request_id", "finish_s", "output_tokens"):
        assert left.requests[name].tolist() == stopped.requests[name][finished].tolist()
    assert left.summary["complete"] is False
    json.dumps(left.summary, allow_nan=False)


def test_a_run_without_records_leaves_no_files(tmp_path):
    (tmp_path / "requests.arrows").touch()
    assert recover(SPEC, tmp_path).summary["num_requests"] == 0


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.data())
def test_files_cut_off_at_any_point_keep_their_complete_blocks(tmp_path_factory, values, data):
    folder = tmp_path_factory.mktemp("cut")
    logs = {"a": IntegerTable(("x", "y")), "b": IntegerTable(("x",))}
    with spooled(logs, folder):
        for number, value in enumerate(values):
            if number % 3 == 0:
                logs["b"].append(value)
            logs["a"].append(value, number)
    cut = folder / data.draw(st.sampled_from(["a.arrows", "b.arrows"]))
    size = data.draw(st.integers(0, cut.stat().st_size))
    with cut.open("rb+") as file:
        file.truncate(size)
    found = {"a": IntegerTable(("x", "y")), "b": IntegerTable(("x",))}
    restore(found, folder, clients=2)
    rows = len(found["a"])
    assert found["a"].column("x").tolist() == values[:rows]
    assert found["a"].column("y").tolist() == list(range(rows))
    assert found["b"].column("x").tolist() == values[:rows:3]
    assert rows % 7 == 0 or rows == len(values)


@contextmanager
def file_size_limit(size):
    """Limit the size of every file of this process inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def fill(log, numbers):
    for number in numbers:
        log.append(number)


def test_an_oversized_record_is_reported_and_damages_no_other(tmp_path):
    first, log, found = (IntegerTable(("x",)) for _ in range(3))
    with spooled({"first": first}, tmp_path):
        fill(first, range(7))
    # one block and a part of the next
    limit = file_size_limit((tmp_path / "first.arrows").stat().st_size)
    failure = pytest.raises(RunFailed, match=r"a\.arrows: cannot be written: File too large")
    with failure, spooled({"a": log}, tmp_path), limit:
        fill(log, range(14))
    restore({"a": found}, tmp_path, clients=2)
    assert found.column("x").tolist() == list(range(14))


def test_a_flipped_bit_is_noticed_or_changes_a_number_or_reads_as_an_end(tmp_path):
    """The flip reads as an end only behind the columns' names, where a killed run may stop."""
    log = IntegerTable(("client", "end_ps"))
    with spooled({"a": log}, tmp_path):
        log.append(1, 5)
        log.append(0, 7)
    path = tmp_path / "a.arrows"
    whole, ends = path.read_bytes(), set()
    names_end = 8 + int.from_bytes(whole[4:8], "little")
    for bit in range(0, 8 * len(whole), 11):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found = IntegerTable(("client", "end_ps"))
        try:
            restore({"a": found}, tmp_path, clients=2)
        except DataError as error:
            ends.add(str(error).removeprefix(f"{path}: ").split(":")[0])
        else:
            read = found.column("client").tolist() + found.column("end_ps").tolist()
            differ = sum(a != b for a, b in zip(read, [1, 0, 5, 7], strict=bool(read)))
            assert differ <= 1
            assert read or bit // 8 >= names_end or bit // 8 in range(4, 8)
            ends.add(len(found))
    assert ends == {"the file is damaged", 0, 2}
