"""Test that each seeded fault still applies, and that the record matches the list."""

import json
from collections import Counter

import pytest

from tests.mutation.mutation_faults import PACKAGE, ROOT, Fault, read_faults

FAULTS = read_faults()
RECORD = ROOT / "results" / "mutation.json"
ROOMS = {"engine", "inputs", "live", "metrics", "outputs", "schedulers"}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_seeded(fault):
    sound = (ROOT / PACKAGE / fault.file).read_text(encoding="utf-8")
    seeded = fault.seeded(sound)
    assert seeded != sound
    compile(seeded, fault.file, "exec")


@pytest.mark.parametrize("text", ["nothing here", "x = 1 or x = 1"])
def test_a_fault_whose_text_is_missing_or_ambiguous_is_refused(text):
    fault = Fault("one", "engine", "engine/clock.py", "x = 1", "x = 2", "it", (), ())
    assert fault.seeded("y = x = 1") == "y = x = 2"
    with pytest.raises(ValueError, match="not once"):
        fault.seeded(text)


def test_names_are_unique_and_tests_exist():
    assert [name for name, n in Counter(fault.name for fault in FAULTS).items() if n > 1] == []
    tests = {test for fault in FAULTS for test in (*fault.tests, *fault.room_tests)}
    assert sorted(test for test in tests if not (ROOT / test).exists()) == []


def test_every_room_has_enough_faults():
    rooms = Counter(fault.room for fault in FAULTS)
    assert set(rooms) == ROOMS
    assert sum(rooms.values()) >= 30


def test_the_record_lists_known_faults_and_reaches_the_required_rate():
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["faults"]
    room = {fault.name: fault.room for fault in FAULTS}
    assert sorted({row["name"] for row in rows} - set(room)) == []
    assert {room[row["name"]] for row in rows} == ROOMS
    assert len(rows) >= 30
    assert sum(bool(row["caught_by"]) for row in rows) >= 0.95 * len(rows)
