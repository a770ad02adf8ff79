"""Test targets and classes of workload files, flags that override them, and a judged run."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config import identity, to_toml
from fairbench.config.resolve import resolve
from fairbench.errors import DataError, UsageError
from fairbench.report.run_table import summary_text
from fairbench.results.significance import combine_summaries
from fairbench.sim.run import simulate
from fairbench.workloads.clients import class_of_client, client_targets
from fairbench.workloads.spec import load_workload

DOC = (Path(__file__).parents[2] / "docs" / "guide" / "goodput.md").read_text(encoding="utf-8")
(TOML,) = re.findall(r"^```toml\n(.*?)^```", DOC, re.M | re.S)
CHAT = load_workload("chat").model_dump(mode="json", exclude_none=True)


@pytest.fixture
def documented(tmp_path):
    path = tmp_path / "classes.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


def targets_of(flags):
    """Return each client's targets, by name, after a comparison of the stored experiment."""
    spec = resolve(flags)
    again = resolve({}, {}, tomllib.loads(to_toml(spec)))
    assert again == spec
    return {one.client: str(one.targets) for one in spec.client_plans()}


def test_a_class_overrides_the_workload_and_flags_override_both(documented):
    usual = {"web": "ttft:500ms tpot:50ms", "app": "ttft:500ms tpot:50ms", "reports": "e2el:20x",
             "client-3": ""}  # fmt: skip
    assert targets_of({"workload": str(documented)}) == usual
    given = {"e2el": "9s", "batch.ttft": "8s", "app.ttft": "1s"}
    assert targets_of({"workload": str(documented), "goodput": given}) == {
        "web": "ttft:500ms tpot:50ms e2el:9000ms",
        "app": "ttft:1000ms tpot:50ms e2el:9000ms",
        "reports": "ttft:8000ms e2el:9000ms",
        "client-3": "e2el:9000ms",
    }


def test_flags_override_an_experiment_file():
    file = tomllib.loads(to_toml(resolve({"workload": "chat", "goodput": {"ttft": "1s"}})))
    spec = resolve({"goodput": {"client-1.tpot": "2x"}}, {}, file)
    assert spec.goodput == {"ttft": "1s", "client-1.tpot": "2x"}
    assert resolve({}, {}, file).goodput == {"ttft": "1s"}


def test_without_targets_an_experiment_is_unchanged():
    plain = to_toml(resolve({"workload": "chat"}))
    assert "goodput" not in plain
    assert "targets" not in plain
    assert "classes" not in plain
    promised = resolve({"workload": "chat", "goodput": {"ttft": "1s"}})
    assert identity(promised) != identity(resolve({"workload": "chat"}))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"targets": {"ttft": "fast"}}, "targets.ttft = 'fast': write a time above 0"),
        ({"targets": {"itl": "1s"}}, "unknown latency in targets 'itl': choose from e2el, tpot"),
        ({"classes": {"a": {"clients": ["bob"]}}}, "unknown client in classes.a 'bob'"),
        ({"classes": {"a": {"clients": []}}}, "classes.a.clients = []"),
        ({"classes": {"client-1": {"clients": ["client-0"]}}}, "this is the name of a client"),
        ({"classes": {"a": {"clients": ["client-0", "client-0"]}}}, "'client-0' is listed twice"),
        ({"classes": {"a": {"clients": ["client-0"], "targets": {"e2el": "0s"}}}},
         "classes.a.targets.e2el = '0s': write a time above 0"),
    ],
)  # fmt: skip
def test_wrong_targets_in_a_workload_are_refused_in_one_line(changed, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)) as caught:
        resolve({"workload": CHAT | changed})
    assert "\n" not in str(caught.value)


def test_an_unknown_key_of_a_class_names_the_nearest(documented):
    documented.write_text(TOML.replace("targets = { e2el", "target = { e2el"), encoding="utf-8")
    with pytest.raises(DataError, match=r"key in classes.batch 'target'.*Did you mean 'targets'"):
        load_workload(str(documented))


@pytest.mark.parametrize("goodput", [{"ttft": "2x"}, {"ttft": "2s", "client-1.tpot": "2x"}])
def test_multiples_need_a_timing_profile(goodput):
    endpoint = {"kind": "endpoint", "base_url": "http://127.0.0.1:1"}
    flags = {"workload": "chat", "backend": endpoint}
    with pytest.raises(
        UsageError,
        match=(
            r"goodput: a target such as 3x \(3 times the latency on an idle replica\) needs a "
            "timing profile; give a time, such as 500ms"
        ),
    ):
        resolve(flags | {"goodput": goodput})
    assert resolve(flags | {"goodput": {"ttft": "2s"}}).goodput == {"ttft": "2s"}


def small(documented, seed=0, **more):
    flags = {"workload": str(documented), "scenario": "none", "num_programs": 4, "seed": seed}
    return simulate(resolve(flags | more)).summary


def test_a_run_is_judged_by_its_targets(documented):
    summary = small(documented, goodput={"web.ttft": "1x"})
    by_client = {one["client"]: one for one in summary["clients"]}
    assert by_client["web"]["goodput_ratio"] < 1 == by_client["reports"]["goodput_ratio"]
    assert by_client["web"]["goodput_class"] == "interactive"
    assert "goodput_ratio" not in by_client["client-3"]
    rows = {one["class"]: one["goodput_ratio"] for one in summary["goodput_classes"]}
    assert rows["batch"] == 1 > rows["interactive"]
    text = summary_text(summary, path=Path("x"))
    assert re.search(r"^goodput +\d\d\.\d% of the requests met their targets", text, re.M)
    assert "on time by class: interactive " in text
    combined = combine_summaries([summary, small(documented, seed=1)])
    assert combined["goodput_ratio"]["runs"] == 2
    assert combined["clients"][0]["goodput_ratio"]["runs"] == 2


def test_targets_do_not_change_the_simulation():
    flags = {"workload": "chat", "scenario": "none", "num_programs": 3, "scheduler": "vtc"}
    plain = simulate(resolve(flags))
    judged = simulate(resolve(flags | {"goodput": {"ttft": "100ms", "e2el": "3x"}}))
    for name, table in plain.tables().items():
        for column, values in table.items():
            assert list(map(str, values)) == list(map(str, judged.tables()[name][column]))
    assert {k: v for k, v in judged.summary.items() if k in plain.summary and k not in
            ("clients", "notes")} == {
        k: v for k, v in plain.summary.items() if k not in ("clients", "notes")}  # fmt: skip
    assert "goodput" not in summary_text(plain.summary, path=Path("x"))


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert (result.exit_code, result.exception) == (0, None)
    return json.loads(result.stdout)


def test_scoring_a_stored_run_again_gives_the_same_goodput(tmp_path, documented):
    flags = ("--scenario", "none", "--num-programs", 3, "--result-dir", tmp_path / "runs", "--json")
    first = invoke("run", "--workload", documented, *flags)
    (path,) = (tmp_path / "runs").iterdir()
    assert first["goodput_classes"]
    assert invoke("score", path, "--json") == first


def test_foreign_records_are_judged_by_the_flag(tmp_path):
    rows = [{"client": name, "start": 0, "first_token": first, "end": 2, "input_tokens": 3,
             "output_tokens": 5} for name, first in (("a", 0.5), ("a", 1), ("b", 1))]  # fmt: skip
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = invoke("score", path, "--goodput", "ttft:600 b.ttft:1s", "--json")
    assert {one["client"]: one["goodput_ratio"] for one in summary["clients"]} == {"a": 0.5, "b": 1}
    refused = CliRunner().invoke(app, ["score", str(path), "--goodput", "ttft:2x"])
    assert refused.exit_code == 2


def test_a_comparison_has_goodput_in_its_columns_and_tables(tmp_path, documented):
    flags = ("--workload", documented, "--scenario", "none", "--num-runs", 1, "--num-programs", 2)
    sides = ("--all", "round-robin+fcfs", "round-robin+edf")
    words = ("compare", *sides, *flags, "--result-dir", tmp_path / "runs", "--disable-tqdm")
    result = CliRunner().invoke(app, [str(one) for one in words])
    assert (result.exit_code, result.exception) == (0, None)
    assert "on time, worst client" in result.stdout
    (path,) = (tmp_path / "runs").iterdir()
    head, *rows = (path / "metrics.csv").read_text().splitlines()
    assert '"goodput_ratio"' in head
    assert len(rows) == 2
    assert '"goodput_targets"' in (path / "clients.csv").read_text().splitlines()[0]


def test_the_classes_of_the_bundled_workload():
    """The heavy client is in the interactive class, so deadlines do not single it out."""
    spec = load_workload("three-class")
    classes = class_of_client(spec)
    assert [classes[name] for name in spec.client_names] == [
        *("interactive", "interactive", "agent", "agent", "batch", "interactive")
    ]
    found = client_targets(spec, {}, spec.client_names)
    assert {classes[name]: str(found[name]) for name in spec.client_names} == {
        "interactive": "ttft:1000ms tpot:60ms",
        "agent": "e2el:5000ms",
        "batch": "e2el:120000ms",
    }
    (flood,) = spec.scenario("s1").misbehaving
    assert (spec.client_names[flood.client], flood.rate_multiple) == ("trial", 8.0)
