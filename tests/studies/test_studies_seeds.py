"""Test per-seed values in files, and claims that are judged again from stored values."""

import shutil
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench_studies.dlpm.claims import quanta, throughput
from fairbench_studies.dlpm.claims.places import AT_FOUR
from fairbench_studies.dlpm.claims.readings import (
    Tried,
    at_rerun,
    in_long_qa,
    with_long_qa,
    with_readings,
)
from fairbench_studies.dlpm.claims.table import (
    AT_RERUN,
    CLAIMS,
    claims_markdown,
    stored_settings,
    with_four,
)
from fairbench_studies.dlpm.claims.tested import TESTS
from fairbench_studies.kit.claims_page import Judged, Setting, readings, steady
from fairbench_studies.kit.outcomes import Outcome
from fairbench_studies.kit.parts import Part
from fairbench_studies.kit.rows import ROOT, read_rows, write_rows
from fairbench_studies.kit.seeds import FACTS, derived, keeping, read_seeds, write_seeds
from fairbench_studies.kit.tally import decided
from tests.figure_helpers import cell, stored_run

HOLDS, REVERSED, UNCLEAR, UNCONTENDED, OFF, _ = Outcome
RESULTS = ROOT / "results"


def invoke(*arguments):
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def of_quanta(**more):
    """Return cells of D2LPM over three quanta, and of two other schedulers."""
    cells = [
        cell(
            "d2lpm", scenario="s2", settings={"d2lpm": {"worker_quantum": quantum}},
            seeds=(0, 1, 2), service_rate_tok_s=(rate, rate + 1.0, rate + 3.0), jain_index=jain,
            jain_index_paper_window=jain, **more,
        )
        for quantum, rate, jain in ((2000, 90.0, 0.9), (40000, 110.0, 0.8), (400000, 120.0, 0.7))
    ]  # fmt: skip
    rates = (("lpm", 100.0, 0.5), ("preble", 115.0, 0.75))
    return cells + [
        cell(
            name, scenario="s2", seeds=(0, 1, 2), service_rate_tok_s=rate, jain_index=jain,
            jain_index_paper_window=jain, **more,
        )
        for name, rate, jain in rates
    ]  # fmt: skip


def stored_again(cells, folder):
    """Return cells that were written to a file and read again."""
    path = folder / "seeds.csv"
    write_seeds(path, [replace(one, runs=tuple(map(_whole, one.runs))) for one in cells])
    return read_seeds(path)


def _whole(one):
    clients = [{"client": f"client-{n}"} for n in range(3)]
    return replace(
        one, summary={"simulated": True, "complete": True, "clients": clients} | one.summary
    )


@pytest.mark.parametrize("more", [{}, {"contended": False}, {"time_to_100pct_s": None}])
def test_claims_are_the_same_from_runs_and_from_their_values(tmp_path, more):
    cells = of_quanta(**more)
    again = stored_again(cells, tmp_path)
    for judge in (
        quanta.judge_worker_quantum,
        lambda of: throughput.judge_gain(of, below="lpm", paper=2.0, low=1.0, high=3.0),
    ):
        assert judge(again) == judge(cells)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("service_rate_tok_s", 34099.005847953216), ("jain_index", None), ("victim_p99_s", inf),
        ("max_service_gap", 142607.0), ("victim_p50_s", 1e-300),
    ],
)  # fmt: skip
def test_a_value_survives_to_the_last_digit(tmp_path, key, value):
    (again,) = stored_again([cell("vtc", **{key: value})], tmp_path)
    assert again.runs[0].summary[key] == value
    assert set(FACTS) <= set(again.runs[0].summary)


def test_bounds_settings_and_the_number_of_clients_survive(tmp_path):
    one = cell(
        "dlpm", clients=3, settings={"dlpm": {"quantum": 7, "refill": "strict"}}, window="whole",
        at_least=("victim_p99_s",), victim_p99_s=9.0,
    )  # fmt: skip
    (again,) = stored_again([one], tmp_path)
    run = again.runs[0]
    assert run.summary["censored"] == ["victim_p99_s"]
    assert run.experiment == {"window": "whole", "settings": {"dlpm": {"quantum": 7}}}
    assert len(run.summary["clients"]) == 3


def test_a_derived_value_is_stored_and_never_derived_again(tmp_path):
    run = stored_run(tmp_path / "run", [], [{"client": "client-0"}])
    (kept,) = keeping([cell("vtc", run=run)])
    found = [np.array([[1.0, np.nan], [1 / 3, 2.0]]), (0.25, 30.0), 5.0]
    for name, value in zip("abc", found, strict=True):
        derived(kept.runs[0].run, name, lambda value=value: value)
    (again,) = stored_again([kept], tmp_path)
    for name, value in zip("abc", found, strict=True):
        known = derived(again.runs[0].run, name, lambda: pytest.fail("derived again"))
        np.testing.assert_allclose(known, value, rtol=1e-6)


def test_many_runs_are_stored_in_several_files(tmp_path, monkeypatch):
    """Five runs, at most two rows a file: three files; two runs later, one file."""
    monkeypatch.setattr("fairbench_studies.kit.seeds.MOST_ROWS", 2)
    cells = [cell("vtc", dp=dp, service_rate_tok_s=float(dp)) for dp in (1, 2, 4, 8, 16)]
    again = stored_again(cells, tmp_path)
    names = ["seeds.2.csv", "seeds.3.csv", "seeds.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [one.combined["dp"] for one in again] == [1, 2, 4, 8, 16]
    assert len(stored_again(cells[:2], tmp_path)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["seeds.csv"]


@pytest.mark.parametrize("text", ["workload\ntot\n", "a,b\n1,2\n", ""])
def test_a_file_of_something_else_is_an_error_in_one_line(tmp_path, text):
    path = tmp_path / "fig8.csv"
    path.write_text(text)
    if not text:
        assert read_seeds(path) == []
        return
    with pytest.raises(DataError, match=r"fig8\.csv: holds no per-seed values"):
        read_seeds(path)


def test_the_page_of_claims_is_what_the_stored_values_give(tmp_path):
    """Judge all claims again from results/, and compare every line of the page."""
    result = invoke("claims", "--from", RESULTS, "--claims-dir", tmp_path)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "claims.md").read_text()
    stored = (RESULTS / "claims.md").read_text()
    assert (
        page.splitlines()
        == [line for line in stored.splitlines() if "claims-map" not in line][
            : len(page.splitlines())
        ]
    )
    assert (tmp_path / "claims.csv").read_text() == (RESULTS / "claims.csv").read_text()


def test_a_changed_value_changes_the_verdict(tmp_path):
    """Divide D2LPM's throughput in figure 7's stored values by ten."""
    shutil.copytree(RESULTS / "seeds", tmp_path / "seeds")
    for path in (tmp_path / "seeds").glob("fig7-dlpm-paper*.csv"):
        rows = read_rows(path)
        for row in rows:
            if row["scheduler"] == "d2lpm":
                row["service_rate_tok_s"] = str(float(row["service_rate_tok_s"]) / 10)
        write_rows(path, rows)
    (rerun, _) = stored_settings(tmp_path)
    parts = {part.text: part.outcome for part in CLAIMS[0].judge(rerun.sources["fig7"])}
    assert parts["D2LPM above VTC, on several replicas"] is REVERSED
    assert parts["up to 2.87x (1.8 to 4.0)"] is OFF


def test_the_artifact_is_a_page_for_people_and_one_for_browsers(tmp_path):
    result = invoke("artifact", "--quick", "--from", RESULTS, "--claims-dir", tmp_path)
    assert result.exit_code == 0, result.output
    html, markdown = ((tmp_path / f"artifact.{kind}").read_text() for kind in ("html", "md"))
    for text in ("at the rerun's settings", "Theorem 4.1", "holds under", "preble-fig3"):
        assert text in markdown
    assert html.count("<table") == markdown.count("| part |") + html.count("figure</th>")
    counts = [line for line in result.stdout.splitlines() if "parts hold" in line]
    assert len(counts) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("fig7", "--from", "results"),
            "can be given only with claims, vtc, preble and artifact",
        ),
        (("claims", "--map", "--from", "results"), "not with --map"),
        (("claims", "--from", "nowhere"), "nowhere: has no folder seeds; run `fairbench reproduce"),
        (("artifact", "--preset", "dlpm-paper"), "not with artifact"),
    ],
)
def test_wrong_requests_are_one_line(arguments, said):
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr


def test_a_figure_without_stored_values_is_not_judged(tmp_path):
    """Keep the per-seed values of figure 8 only."""
    (tmp_path / "seeds").mkdir()
    shutil.copy(RESULTS / "seeds" / "fig8.csv", tmp_path / "seeds")
    rerun, defaults = stored_settings(tmp_path)
    assert (set(rerun.sources), set(defaults.sources)) == (set(), {"fig8", TESTS})


def test_claims_about_four_replicas_rest_on_configurations_of_figure_7():
    """long-qa runs with two sizes of KV memory, which the paper does not have."""
    pools = [cell("vtc", workload="long-qa", dp=4, service_rate_tok_s=rate) for rate in (1.0, 2.0)]
    cells = [cell("vtc", dp=dp, seeds=(0, 1)) for dp in (2, 4)]
    sources = {"fig7": [*cells, *pools], "fig8": []}
    (four,) = with_four(sources)[AT_FOUR]
    assert (four.place, [run.summary["seed"] for run in four.runs]) == (cells[1].place, [0, 1])
    assert with_four({"fig8": []}) == {"fig8": []}


FOUR = ("Poisson arrivals", "prefix as a mean", "without the mark", "Q^w 400,000 in long-qa")


@pytest.mark.parametrize("tried", [(), FOUR[:1], FOUR[2:], FOUR])
def test_the_page_names_the_readings_that_were_not_tried(tried):
    part = Part("1", HOLDS, "", under=dict.fromkeys(tried, OFF))
    judged = [Judged(CLAIMS[0], {AT_RERUN: [part]})]
    text = claims_markdown(judged, [Setting(AT_RERUN, {})])
    left = [line for line in text.splitlines() if line.startswith("Not judged")]
    assert len(left) == (tried != FOUR)
    assert [one for one in FOUR if not any(one in line for line in left)] == list(tried)
    assert ("each of these readings that was tried" in text) == bool(tried)


def test_readings_are_listed_by_what_holds():
    assert readings({}) == ""
    assert readings({"a": HOLDS, "b": HOLDS}) == "all (a, b)"
    assert readings({"a": HOLDS, "b": OFF}) == "a; not b"
    assert readings({"a": OFF, "b": REVERSED}) == "none (a, b)"
    parts = [
        Part("1", HOLDS, "", under={"a": HOLDS}), Part("2", HOLDS, "", under={"a": OFF}),
        Part("3", OFF, "", under={"a": HOLDS}), Part("4", HOLDS, ""),
    ]  # fmt: skip
    assert steady(parts) == (1, 2)


def test_a_reading_counts_only_where_the_compared_runs_have_the_same_outcome():
    parts = [
        Part("same", HOLDS, ""), Part("other", HOLDS, ""),
        Part("same, on several replicas", HOLDS, ""), Part("same, on one replica", HOLDS, ""),
    ]  # fmt: skip
    compared = {(1, "same"): HOLDS, (1, "other"): REVERSED}
    found = {
        "without the mark": Tried({(1, "same"): OFF, (1, "other"): OFF}, compared),
        "Q^w 400,000 in long-qa": Tried({(1, "other"): HOLDS}),
    }
    same, other, several, alone = with_readings(1, parts, found)
    assert (several.under, alone.under) == (same.under, {})
    assert same.under == {"as judged": HOLDS, "without the mark": OFF}
    assert other.under == {"as judged": HOLDS, "Q^w 400,000 in long-qa": HOLDS}


def test_a_reading_is_compared_with_runs_of_the_same_configurations(tmp_path):
    """D2LPM is above VTC in judge with and without the mark, and below VTC in tot as judged."""

    def pair(workload, d2lpm, mark):
        return [
            cell(name, workload=workload, dp=4, service_rate_tok_s=rate,
                 settings={"engine": {"batch_is_full": mark}})
            for name, rate in (("d2lpm", d2lpm), ("vtc", 10.0), ("lpm", 5.0))
        ]  # fmt: skip

    def told(cells):
        stored_again(cells, tmp_path).clear()
        (tmp_path / "seeds.csv").rename(tmp_path / "readings.csv")
        return at_rerun(CLAIMS[:1], tmp_path)

    tried = told([*pair("judge", 12.0, True), *pair("judge", 11.0, False), *pair("tot", 3.0, True)])
    key = (1, "D2LPM above VTC")
    assert set(tried) == {"without the mark"}
    assert tried["without the mark"].outcomes[key] is HOLDS
    assert tried["without the mark"].compared[key] is HOLDS
    mixed = told(
        [
            pair_of
            for mark in (True, False)
            for pair_of in pair("judge", 12.0 if mark else 8.0, mark)
        ]
    )
    assert mixed["without the mark"].outcomes[key] is REVERSED
    assert at_rerun(CLAIMS, tmp_path / "nowhere") == {}


def test_another_worker_quantum_replaces_only_the_configurations_of_long_qa(tmp_path):
    """D2LPM is 5x VTC in long-qa as judged, 1.2x with 400,000, and 2x in tot."""

    def rates(d2lpm, **more):
        named = (("d2lpm", d2lpm), ("vtc", 10.0))
        return [cell(name, service_rate_tok_s=rate, **more) for name, rate in named]

    place = {"workload": "long-qa", "scenario": "s2", "dp": 8}
    source = [
        *rates(20.0, workload="tot", dp=4), *rates(50.0, workload="long-qa", dp=4),
        *rates(50.0, **place),
    ]  # fmt: skip
    assert in_long_qa(CLAIMS[:1], source, tmp_path) == {}

    cells = [cell("vtc", service_rate_tok_s=10.0, **place)] + [
        cell("d2lpm", service_rate_tok_s=rate, settings={"d2lpm": {"worker_quantum": quantum}},
             **place)
        for quantum, rate in ((400_000, 12.0), (4_000_000, 30.0))
    ]  # fmt: skip
    stored_again(cells, tmp_path)
    (tmp_path / "seeds.csv").rename(tmp_path / "readings-long-qa.csv")
    (tried,) = in_long_qa(CLAIMS[:1], source, tmp_path).values()
    assert tried.outcomes[1, "D2LPM above VTC"] is HOLDS
    assert tried.outcomes[1, "up to 2.87x (1.8 to 4.0)"] is HOLDS  # 2x in tot
    (before,) = [part for part in CLAIMS[0].judge(source) if part.text.startswith("up to")]
    assert before.outcome is OFF


def test_long_qa_joins_only_in_the_pool_that_holds_its_documents():
    """D2LPM is 2x VTC in tot, 3x in long-qa with 305,000 tokens and 0.5x with 25,000."""

    def rates(d2lpm, **more):
        named = (("d2lpm", d2lpm), ("vtc", 10.0))
        return [cell(name, service_rate_tok_s=rate, **more) for name, rate in named]

    def in_pool(tokens, d2lpm):
        pool = {"engine": {"max_total_tokens": tokens}}
        return rates(d2lpm, workload="long-qa", dp=4, settings=pool)

    tot = rates(20.0, workload="tot", dp=4)
    source = [*tot, *in_pool(25_000, 5.0), *in_pool(305_000, 30.0)]
    (tried,) = with_long_qa(CLAIMS[:1], source).values()
    (size,) = [text for (_, text) in tried.outcomes if text.startswith("up to")]
    assert tried.outcomes[1, "D2LPM above VTC"] is HOLDS
    (part,) = [p for p in CLAIMS[0].judge([*tot, *in_pool(305_000, 30.0)]) if p.text == size]
    assert "3.00x" in part.ours
    assert with_long_qa(CLAIMS[:1], [*tot, *in_pool(25_000, 5.0)]) == {}
    assert with_long_qa(CLAIMS[:1], tot) == {}


@pytest.mark.parametrize(
    ("there", "of", "expected"),
    [(4, 5, HOLDS), (3, 5, UNCLEAR), (1, 5, REVERSED), (0, 0, UNCONTENDED), (2, 9, UNCLEAR)],
)
def test_four_fifths_of_the_configurations_decide(there, of, expected):
    assert decided(there, of) is expected


def test_stored_files_are_small_and_name_every_setting():
    for path in (RESULTS / "seeds").glob("*.csv"):
        assert path.stat().st_size < 300_000, path.name
        header = path.read_text().partition("\n")[0]
        assert header.startswith(("workload,", "timing_profile,host,")), path.name
