"""Test the fault-seeding script: when a fault counts as caught, and its record."""

import json

import pytest

from tests.mutation import run_mutation as run
from tests.mutation.mutation_faults import Fault


def fault(name, new="past[0] > start_s"):
    return Fault(
        name,
        "schedulers",
        "schedulers/local/rpm.py",
        "past[0] >= start_s",
        new,
        "the limit",
        ("tests/schedulers/local/test_local_rpm.py",),
        (),
    )


def row(name, test):
    return {"name": name, "caught_by": test}


def test_the_record_lists_the_faults_and_keeps_earlier_results(tmp_path):
    path = tmp_path / "record.json"
    faults = [fault("a"), fault("b"), fault("c")]
    assert run.record(row("b", None), faults, path) == (0, 1)
    assert run.record(row("a", "one"), faults, path) == (1, 2)
    assert run.record(row("c", "two"), faults, path) == (2, 3)
    assert run.record(row("b", "two"), faults, path) == (3, 3)
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert (stored["caught"], stored["of"], stored["score"]) == (3, 3, 1.0)
    assert stored["faults"] == [row("a", "one"), row("b", "two"), row("c", "two")]
    # a fault that is no longer listed is dropped
    assert run.record(row("c", None), faults[1:], path) == (1, 2)


@pytest.mark.parametrize(("caught", "code"), [(19, 0), (18, 1)])
def test_below_95_percent_the_script_fails(caught, code, tmp_path, monkeypatch):
    faults = [fault(str(number)) for number in range(20)]
    rows = [row(str(number), "test" if number < caught else None) for number in range(20)]
    monkeypatch.setattr(run, "read_faults", lambda: faults)
    monkeypatch.setattr(
        run, "run", lambda chosen, **_: (r for r in rows if r["name"] in chosen_names(chosen))
    )
    monkeypatch.setattr("sys.argv", ["run", "--output", str(tmp_path / "record.json")])
    assert run.main() == code
    monkeypatch.setattr("sys.argv", ["run", "--missing", "--output", str(tmp_path / "record.json")])
    monkeypatch.setattr(run, "run", lambda chosen, **_: iter([row("0", None)] * len(chosen)))
    run.main()
    assert run.recorded(tmp_path / "record.json") == rows


def chosen_names(faults):
    return {one.name for one in faults}


@pytest.mark.slow
def test_a_fault_is_caught_and_a_change_without_effect_survives(tmp_path):
    copy = run.Copy(tmp_path)
    real, harmless = fault("real"), fault("none", new="start_s <= past[0]")
    before = (copy.root / run.PACKAGE / real.file).read_text(encoding="utf-8")
    stage, test = copy.noticed(real, {"own": real.tests})
    assert (stage, test.partition("::")[0]) == ("own", real.tests[0])
    assert copy.noticed(harmless, {"own": real.tests}) is None
    assert (copy.root / run.PACKAGE / real.file).read_text(encoding="utf-8") == before


@pytest.mark.slow
def test_tests_that_fail_without_a_fault_stop_the_run(tmp_path):
    copy = run.Copy(tmp_path)
    broken = copy.root / "tests" / "test_broken.py"
    broken.write_text("def test_it():\n    assert False\n", encoding="utf-8")
    with pytest.raises(run.TestsFail, match=r"test_broken.py::test_it fails without any fault"):
        copy.noticed(fault("real"), {"own": ["tests/test_broken.py"]})
    with pytest.raises(run.TestsFail, match="exit code"):
        copy.noticed(fault("real"), {"own": ["tests/not_there.py"]})
