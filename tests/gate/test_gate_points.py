"""Test which runs the gate compares with each other, and what it refuses."""

import json
import re
from xml.etree import ElementTree as ET

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.report.pages.markdown import escaped
from fairbench_gate.clauses import Verdict
from fairbench_gate.formats import as_commands, as_junit, outcome_markdown, outcome_text
from fairbench_gate.outcome import judge
from fairbench_gate.points import read_pairs
from tests.gate.gate_helpers import measured, store


def test_a_directory_with_a_manifest_is_one_point(tmp_path):
    before, after = store(tmp_path / "a"), store(tmp_path / "b", jain_index=0.5)
    (pair,) = read_pairs(before, after)
    assert pair.name == "chat none dp 1, vtc, seed 0"
    assert pair.simulated
    assert [one["jain_index"] for one in pair.after] == [0.5]


def test_every_run_below_a_directory_is_paired_by_its_experiment_alone(tmp_path):
    store(tmp_path / "a" / "x" / "deep" / "one", spec={"seed": 1}, jain_index=0.1)
    store(tmp_path / "a" / "two", spec={"scheduler": "lpm"}, jain_index=0.2)
    store(tmp_path / "b" / "one", spec={"scheduler": "lpm", "tag": "mine"}, jain_index=0.3)
    store(tmp_path / "b" / "two", spec={"seed": 1}, jain_index=0.4)
    store(tmp_path / "b" / ".writing-3f" / "run")
    pairs = read_pairs(tmp_path / "a", tmp_path / "b")
    assert {
        pair.name: (pair.before[0]["jain_index"], pair.after[0]["jain_index"]) for pair in pairs
    } == {"chat none dp 1, vtc, seed 1": (0.1, 0.4), "chat none dp 1, lpm, seed 0": (0.2, 0.3)}


@pytest.mark.parametrize("missing_in", ["current", "baseline"])
def test_a_run_without_a_counterpart_is_refused_and_compared_with_the_nearest(tmp_path, missing_in):
    more, fewer = tmp_path / "more", tmp_path / "fewer"
    for folder in (more, fewer):
        store(folder / "far", spec={"dp": 4, "seed": 3, "scheduler": "lpm"})
        store(folder / "one")
    store(more / "two", spec={"dp": 2, "seed": 7})
    pair = (more, fewer) if missing_in == "current" else (fewer, more)
    with pytest.raises(DataError) as caught:
        read_pairs(*pair)
    assert str(caught.value) == (
        f"{more / 'two'}: no run of the same experiment in {fewer}; "
        "the nearest run, one, differs in dp = 2 (not 1), seed = [7] (not [0]); "
        "allow an intended change with --allow KEY"
    )


def test_different_settings_are_named(tmp_path):
    one = store(tmp_path / "a", spec={"settings": {"vtc": {"charge": "input"}}})
    with pytest.raises(DataError, match=r'vtc\.charge = "input" \(not "extend"\); '):
        read_pairs(one, store(tmp_path / "b"))


def test_an_allowed_change_is_compared_and_reported(tmp_path):
    one = store(tmp_path / "a", spec={"settings": {"vtc": {"charge": "input"}}})
    other = store(tmp_path / "b", jain_index=0.5)
    (pair,) = read_pairs(one, other, ["vtc.charge"])
    assert [summary["jain_index"] for summary in pair.after] == [0.5]
    assert pair.causes == ('allowed change: vtc.charge = "input" (now "extend")',)
    with pytest.raises(DataError, match="allow an intended change with --allow KEY"):
        read_pairs(one, other, ["dp"])  # another key
    with pytest.raises(UsageError, match=r"unknown --allow 'vtc\.charges'"):
        read_pairs(one, other, ["vtc.charges"])


def test_allowing_another_scheduler_changes_no_default(tmp_path):
    store(tmp_path / "old" / "a", spec={"scheduler": "dlpm"})
    store(tmp_path / "new" / "a", spec={"scheduler": "fcfs"})
    (pair,) = read_pairs(tmp_path / "old", tmp_path / "new", ["scheduler"])
    assert pair.causes == (
        'allowed change: local = "dlpm" (now "fcfs")',
        'allowed change: scheduler = "dlpm" (now "fcfs")',
    )


def test_measured_runs_that_differ_in_the_seed_are_one_point(tmp_path):
    before = measured(tmp_path / "a", "jain_index", [0.1, 0.2, 0.3])
    after = measured(tmp_path / "b", "jain_index", [0.4, 0.5, 0.6])
    (pair,) = read_pairs(before, after)
    assert not pair.simulated
    assert [one["jain_index"] for one in pair.before] == [0.1, 0.2, 0.3]
    assert [one["jain_index"] for one in pair.after] == [0.4, 0.5, 0.6]
    assert pair.name.endswith(", 3 seeds")


def test_measured_runs_with_other_seeds_are_not_comparable(tmp_path):
    before = measured(tmp_path / "a", "jain_index", [0.1, 0.2, 0.3])
    after = measured(tmp_path / "b", "jain_index", [0.1, 0.2])
    with pytest.raises(DataError, match=r"seed = \[0, 1, 2\] \(not \[0, 1\]\)"):
        read_pairs(before, after)


def test_one_simulated_experiment_twice_is_refused(tmp_path):
    store(tmp_path / "a" / "one")
    store(tmp_path / "a" / "two", jain_index=0.5)
    store(tmp_path / "b")
    with pytest.raises(DataError, match=r"one and .*two are the same simulated experiment"):
        read_pairs(tmp_path / "a", tmp_path / "b")


def test_an_incomplete_run_is_refused(tmp_path):
    store(tmp_path / "a")
    store(tmp_path / "b", complete=False)
    with pytest.raises(
        DataError,
        match="b: this run is incomplete and cannot be compared; finish it, or leave it out",
    ):
        read_pairs(tmp_path / "a", tmp_path / "b")


def test_a_directory_without_runs_cannot_be_compared(tmp_path):
    run = store(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty: contains no run"):
        read_pairs(run, tmp_path / "empty")
    with pytest.raises(DataError, match="nowhere: no such directory"):
        read_pairs(tmp_path / "nowhere", run)


def test_a_broken_summary_is_refused(tmp_path):
    run = store(tmp_path / "a", clients="none")
    with pytest.raises(DataError, match=r"summary\.json: clients"):
        read_pairs(run, run)


@pytest.mark.parametrize(
    ("line", "instead", "missing"),
    [("seed = 0\n", "", "seed"), ("[workload]\n", "[play]\n", "name")],
)
def test_a_broken_experiment_is_refused(tmp_path, line, instead, missing):
    run = store(tmp_path / "a")
    text = (run / "experiment.toml").read_text()
    assert line in text
    (run / "experiment.toml").write_text(text.replace(line, instead))
    with pytest.raises(DataError, match=rf"experiment\.toml: {missing}: missing"):
        read_pairs(run, run)


def test_simulated_seeds_are_judged_together_and_their_changes_listed_apart(tmp_path):
    for seed in (1, 2, 3):
        store(tmp_path / "a" / str(seed), spec={"seed": seed}, victim_p99_s=10.0 * seed)
        store(tmp_path / "b" / str(seed), spec={"seed": seed}, victim_p99_s=10.5 * seed)
    store(tmp_path / "a" / "lpm", spec={"scheduler": "lpm"}, victim_p99_s=5.0)
    store(tmp_path / "b" / "lpm", spec={"scheduler": "lpm"}, victim_p99_s=5.6)
    pairs = read_pairs(tmp_path / "a", tmp_path / "b")
    outcome = judge(pairs, ["victim_p99_s:+10%"], alpha=0.05)
    found = {row.point: (row.verdict, row.reason) for row in outcome.rows}
    assert found == {
        "chat none dp 1, vtc, 3 seeds": (
            Verdict.PASS,
            "-5% [-5%, -5%] from the limit, paired over 3 seeds",
        ),
        "chat none dp 1, lpm, seed 0": (Verdict.FAIL, "at most 5.5 s is allowed"),
    }
    assert outcome.points == 4
    without = judge(pairs, [], alpha=0.05)
    assert [row.point.rpartition(", ")[2] for row in without.rows] == [
        *("seed 1", "seed 2", "seed 3", "seed 0")
    ]
    assert all(row.verdict is Verdict.FAIL for row in without.rows)


def test_repeats_of_a_seed_count_as_one_value(tmp_path):
    for side, values in (("a", (1.0, 3.0, 4.0)), ("b", (2.0, 4.0, 5.0))):
        for number, one in enumerate(values):
            spec = {"backend": {"base_url": "http://127.0.0.1:1"}, "scheduler": "as served"}
            flags = {**spec, "seed": number // 2}
            edited = {"simulated": False, "served": "a server", "victim_p99_s": one}
            store(tmp_path / side / str(number), spec=flags, **edited)
    outcome = judge(read_pairs(tmp_path / "a", tmp_path / "b"), ["victim_p99_s:+0"], alpha=0.05)
    (row,) = outcome.rows
    assert (row.verdict, row.reason) == (
        Verdict.FAIL,
        "+1 [+1, +1] from the limit, paired over 2 seeds",
    )


def of_a_version(run, rate, chosen=None):
    """Rewrite a stored run as if a version with this default rate had made it."""
    file = run / "experiment.toml"
    before, _, after = file.read_text().partition("[workload.scenarios.s1]\n")
    was = re.search(r"^rate = .*$", after, re.MULTILINE)[0]
    file.write_text(f"{before}[workload.scenarios.s1]\n{after.replace(was, f'rate = {rate}', 1)}")
    if chosen is not None:
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, "chosen": chosen}))
    return run


@pytest.mark.parametrize("chosen", [None, []])
def test_a_run_with_another_default_is_compared_with_a_note(tmp_path, chosen):
    old = of_a_version(store(tmp_path / "a", jain_index=0.5), 7.5, chosen)
    new = of_a_version(store(tmp_path / "b", jain_index=0.4), 2.5, chosen)
    (pair,) = read_pairs(old, new)
    cause = "default changed: chat s1 rate 7.5 -> 2.5 (CHANGELOG.md)"
    assert pair.causes == (cause,)
    strict = judge([pair], [], alpha=0.05)
    assert strict.causes == (cause,)
    assert strict.rows[0].wording().endswith(f"changed, {cause}")
    lenient = judge([pair], ["jain_index:-0.2"], alpha=0.05)
    assert lenient.rows[0].verdict is Verdict.PASS
    text = outcome_text(strict)
    assert text.index(cause) < text.index("jain_index")
    assert f"\n- {escaped(cause)}\n" in outcome_markdown(strict)
    (suite,) = ET.fromstring(as_junit(strict, inconclusive_fails=True))
    assert suite.find("properties/property[@name='cause']").get("value") == cause
    assert suite.find("testcase/failure").get("message").endswith(cause)
    github = as_commands(strict, inconclusive_fails=True).splitlines()
    assert github[0].endswith(cause)
    assert f"::notice title=fairbench::{cause}" in github


def test_every_point_finds_its_counterpart_under_other_defaults(tmp_path):
    for seed in (1, 2):
        of_a_version(store(tmp_path / "a" / str(seed), spec={"seed": seed}), 7.5)
        of_a_version(store(tmp_path / "b" / str(seed), spec={"seed": seed}), 2.5)
    pairs = read_pairs(tmp_path / "a", tmp_path / "b")
    assert [(pair.before[0]["seed"], pair.after[0]["seed"]) for pair in pairs] == [(1, 1), (2, 2)]
    outcome = judge(pairs, ["jain_index:-0.2"], alpha=0.05)
    assert len(outcome.rows) == len(outcome.causes) == 1


def test_an_explicit_value_makes_a_different_experiment(tmp_path):
    old = of_a_version(store(tmp_path / "a"), 7.5, ["workload.scenarios.s1.rate"])
    new = of_a_version(store(tmp_path / "b"), 2.5, [])
    message = r"differs in workload\.scenarios\.s1\.rate = 7\.5 \(not 2\.5\); "
    with pytest.raises(DataError, match=message):
        read_pairs(old, new)
