"""Test the outcome of the gate and its four formats."""

import re
from xml.etree import ElementTree as ET

import pytest

from fairbench.errors import UsageError
from fairbench.results.summary import Value
from fairbench_gate.clauses import Verdict
from fairbench_gate.formats import as_commands, as_junit, outcome_markdown, outcome_text
from fairbench_gate.outcome import changes, judge, short_texts
from fairbench_gate.points import PairedPoint
from tests.gate.gate_helpers import summary

CLAUSES = ["jain_index:-0.02", "victim_p99_s:+10%", "refused:+0"]


@pytest.fixture(scope="module")
def outcome():
    """Return an outcome with a passed, a failed and an inconclusive clause, and another change."""
    before = summary(jain_index=0.9, victim_p99_s=1.0, refused=0, duration=8.125)
    after = summary(jain_index=0.85, victim_p99_s=1.05, refused=0, duration=8.25)
    after["censored"] = ["victim_p99_s"]
    return judge([PairedPoint("a <b> | c: d, e", True, (before,), (after,))], CLAUSES, alpha=0.05)


def measured(before, after):
    runs = [
        tuple(summary(simulated=False, served="a server", jain_index=value) for value in values)
        for values in (before, after)
    ]
    return PairedPoint("p", False, *runs)


def test_every_clause_is_judged_at_every_point(outcome):
    verdicts = {row.clause: row.verdict for row in outcome.rows}
    expected = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)
    assert verdicts == dict(zip(CLAUSES, expected, strict=True))
    assert outcome.summary() == "1 point, 3 checks: 1 pass, 1 FAIL, 1 inconclusive"


def test_metrics_without_a_clause_are_also_shown(outcome):
    ((_, found),) = outcome.changes.items()
    texts = [(one.metric, one.before.text, one.after.text, one.difference) for one in found]
    assert texts == [("duration", "8.125", "8.25", "+1.54%")]
    assert found[0].texts == ("8.12", "8.25")


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [
        (0.8203796209935621, 0.6847422710424637, ("0.82", "0.685")),
        (0.8203796209935621, 0.8203700000000000, ("0.82038", "0.82037")),
        (0.1234567890123, 0.1234567890124, ("0.1234567890123", "0.1234567890124")),
        (52345.678, 52345.0, ("52,346", "52,345")),
        (7, 6703376, ("7", "6,703,376")),
        (29.95919799918046, 29.95919799918046, ("30", "30")),
    ],
)
def test_numbers_have_enough_digits_to_differ(before, after, texts):
    assert short_texts(Value(before), Value(after)) == texts


def test_changes_say_how_much_and_whether_they_are_worse():
    """30 s to 324.3 s is 981% more, and 100 to 1,446 is 1,346%. No duration counts as worse."""
    one = {"victim_p99_s": 30.0, "jain_index": 0.5, "mean_ttft_ms": 100.0, "duration": 9.0}
    other = {"victim_p99_s": 324.3, "jain_index": 0.75, "mean_ttft_ms": 1446.0, "duration": 8.0}
    pairs = [PairedPoint("p", True, (summary(**one),), (summary(**other),))]
    found = judge(pairs, ["victim_p99_s:+10%"], alpha=0.05)
    (row,) = found.rows
    assert row.wording() == "FAIL, 30 s to 324 s, +981%, at most 33 s is allowed"
    changed = {
        one.metric: (*one.texts, one.difference, one.direction) for one in found.changes["p"]
    }
    assert changed == {
        "duration": ("9", "8", "-11.1%", ""),
        "jain_index": ("0.5", "0.75", "+50%", "better"),
        "mean_ttft_ms": ("100", "1,446", "+1,346%", "worse"),
    }
    assert "3 values changed, 1 worse: p" in outcome_markdown(found)


def test_without_clauses_any_difference_fails():
    one, other = summary(), summary(duration=8.0)
    same = judge([PairedPoint("p", True, (one,), (one,))], [], alpha=0.05)
    assert [(row.verdict, row.reason) for row in same.rows] == [(Verdict.PASS, "")]
    unlike = judge([PairedPoint("p", True, (one,), (other,))], [], alpha=0.05)
    assert [(row.verdict, row.reason) for row in unlike.rows] == [(Verdict.FAIL, "1 value changed")]


def test_measured_runs_need_a_clause():
    with pytest.raises(UsageError, match="--fail-if"):
        judge([measured([0.5], [0.5])], [], alpha=0.05)


def test_measured_runs_show_their_means_but_no_single_changes():
    found = judge([measured([0.5, 0.7], [0.8, 0.9])], ["jain_index:-0"], alpha=0.05)
    (row,) = found.rows
    assert (row.before, row.after, row.change) == ("0.6 (n = 2)", "0.85 (n = 2)", "+41.7%")
    assert row.verdict is Verdict.INCONCLUSIVE
    assert found.changes == {}
    assert found.basis == "measured on a server"


def test_changes_of_a_bound_a_null_a_text_or_a_client_are_reported():
    before, after = summary(), summary(service_gap_bound=None, complete=False, bound_source="x")
    after["censored"] = [*before["censored"], "victim_p50_s"]
    after["clients"][0]["requests"] += 1
    name = before["clients"][0]["client"]
    assert {one.metric for one in changes(before, after)} == {
        *("service_gap_bound", "complete", "bound_source", "victim_p50_s"),
        f"clients.{name}.requests",
    }
    del after["jain_index"]
    (one,) = [one for one in changes(before, after) if one.metric == "jain_index"]
    assert (one.after.text, one.after.reason) == ("undefined", "not in the summary")


def test_a_difference_in_the_last_digits_of_a_sum_is_ignored():
    assert changes(summary(duration=1.0), summary(duration=1.0 + 2**-50)) == ()
    assert len(changes(summary(duration=1.0), summary(duration=1.0 + 1e-11))) == 1


def test_the_table_is_complete_and_fits(outcome):
    text = outcome_text(outcome)
    assert max(map(len, text.split("\n"))) <= 100
    lines = [" ".join(line.split()) for line in text.split("\n")]
    assert lines[0] == (
        "Failed at 1 point: jain_index:-0.02; Not decided at 1 point: victim_p99_s:+10%."
    )
    assert lines[2].startswith("simulated on ")
    assert "jain_index:-0.02 0.9 0.85 -5.56% FAIL" in lines
    assert "victim_p99_s:+10% 1 s > 1.05 s +5% inconclusive" in lines
    assert "at least 0.88 is allowed" in lines
    assert "refused:+0 0 0 +0 pass" in lines
    assert "duration 8.12 8.25 +1.54%" in lines
    assert "\x1b" not in text
    assert "\x1b[1;31mFAIL" in outcome_text(outcome, colour=True)


def test_changes_of_single_clients_are_only_counted_beside_the_cluster():
    before, after = summary(), summary(duration=8.0)
    after["clients"][0]["requests"] += 1
    text = outcome_text(judge([PairedPoint("p", True, (before,), (after,))], [], alpha=0.05))
    assert "and 1 value of single clients" in text
    assert ".requests" not in text
    after["duration"] = before["duration"]
    text = outcome_text(judge([PairedPoint("p", True, (before,), (after,))], [], alpha=0.05))
    assert ".requests" in text


def test_names_are_never_read_as_markup():
    before, after = summary(), summary()
    for number, one in enumerate((before, after)):
        one["clients"][0] |= {"client": "[/red]", "requests": number}
    found = judge([PairedPoint("[/p]", True, (before,), (after,))], ["failed:+0"], alpha=0.05)
    assert "clients.[/red].requests" in outcome_text(found)


def test_markdown_tables_stay_whole_with_any_name(outcome):
    lines = outcome_markdown(outcome).split("\n")
    assert lines[0].startswith("**1 point, 3 checks: ")
    rows = [line for line in lines if line.startswith("| ")]
    cells = [len(re.split(r"(?<!\\)\|", row)) for row in rows]
    assert cells == [6] * 3 + [8] * 5 + [7] * 3
    assert "a &lt;b\\> \\| c: d, e" in rows[2]
    assert "| ❌ fail |" in rows[2]
    assert "<summary>3 checks: a &lt;b&gt; | c: d, e</summary>" in lines
    assert "<summary>1 value changed, 0 worse: a &lt;b&gt; | c: d, e</summary>" in lines


def test_markdown_has_three_digits_unless_they_hide_a_difference():
    before = summary(duration=45.89912365374174, jain_index=0.8203796209935621)
    after = summary(duration=45.89912365374175, jain_index=0.6847422710424637)
    pairs = [PairedPoint("p", True, (before,), (after,))]
    text = outcome_markdown(judge(pairs, ["jain_index:-0.02"], alpha=0.05))
    assert "jain\\_index:-0.02: FAIL, 0.82 to 0.685, " in text
    text = outcome_markdown(judge(pairs, [], alpha=0.05))
    assert "| jain\\_index | 0.82 | 0.685 |" in text
    assert "| duration |" not in text  # processors add up numbers in different orders


def test_markdown_has_the_worst_configuration_first_and_counts_the_passed_checks():
    before, after = summary(jain_index=0.9), summary(jain_index=0.85)
    points = [PairedPoint("same", True, (before,), (before,))]
    points.append(PairedPoint("worse", True, (before,), (after,)))
    text = outcome_markdown(judge(points, ["failed:+0", "refused:+0", "jain_index:-0"], alpha=0.05))
    first, second = (line for line in text.split("\n") if " passed |" in line)
    assert first.startswith("| ❌ fail | worse | 2 of 3 passed | jain\\_index:-0: FAIL, 0.9 to ")
    assert second.startswith("| ✅ pass | same | 3 of 3 passed |")


def test_markdown_omits_the_last_tables_that_do_not_fit(outcome, monkeypatch):
    whole = outcome_markdown(outcome)
    head, checks, changed = whole.split("\n<details>")
    for room, kept, omitted in (
        (len(whole), [head, checks, changed], ""),
        (len(whole) - 1, [head, checks], "\n1 folded table omitted because of their length.\n"),
        (len(head), [head], "\n2 folded tables omitted because of their length.\n"),
    ):
        monkeypatch.setattr("fairbench_gate.formats.MOST_CHARACTERS", room + 200)
        assert outcome_markdown(outcome) == "\n<details>".join(kept) + omitted


@pytest.mark.slow
def test_markdown_has_one_line_per_configuration_and_stays_short():
    before, after = summary(), summary(duration=8.0)
    clauses = ["failed:+0", "jain_index:-0.02"]
    points = [PairedPoint(f"point-{n}", True, (before,), (after,)) for n in range(400)]
    text = outcome_markdown(judge(points, clauses, alpha=0.05))
    assert len(text) < 60_000
    first = text.partition("<details>")[0]
    assert (
        sum(line.startswith("| ") for line in first.split("\n")) == 402
    )  # including the head and the line below it
    assert "omitted because of their length.\n" in text
    assert text.count("<details>") == text.count("</details>") > 10


@pytest.mark.parametrize("strict", [True, False])
def test_junit_counts_what_it_lists(outcome, strict):
    (suite,) = ET.fromstring(as_junit(outcome, inconclusive_fails=strict))
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == CLAUSES
    assert {case.get("classname") for case in cases} == {"a <b> | c: d, e"}
    assert suite.get("tests") == "3"
    for what in ("failure", "skipped"):
        attribute = "failures" if what == "failure" else "skipped"
        assert suite.get(attribute) == str(len(suite.findall(f"testcase/{what}")))
    assert suite.get("failures") == ("2" if strict else "1")
    assert cases[0].find("failure").get("message") == (
        "FAIL, 0.9 to 0.85, -5.56%, at least 0.88 is allowed"
    )


def test_junit_stays_xml_with_any_names():
    one = summary()
    found = judge([PairedPoint('bell \a and <&"', True, (one,), (one,))], [], alpha=0.05)
    (suite,) = ET.fromstring(as_junit(found, inconclusive_fails=True))
    assert suite.find("testcase").get("classname") == 'bell ? and <&"'


def test_github_gets_an_annotation_for_each_check_that_did_not_pass(outcome):
    lines = as_commands(outcome, inconclusive_fails=False).splitlines()
    assert lines == [
        "::error title=jain_index%3A-0.02::a <b> | c: d, e: FAIL, 0.9 to 0.85, -5.56%25, "
        "at least 0.88 is allowed",
        "::warning title=victim_p99_s%3A+10%25::a <b> | c: d, e: inconclusive, 1 s to > 1.05 s, "
        "+5%25, only a bound is known",
        "::notice title=fairbench::1 point, 3 checks: 1 pass, 1 FAIL, 1 inconclusive",
    ]
    assert as_commands(outcome, inconclusive_fails=True).count("::error ") == 2
