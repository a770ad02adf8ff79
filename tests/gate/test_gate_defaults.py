"""Test that a gate judges changed defaults, and keeps values that a user chose."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config import to_toml
from fairbench.config.origins import chosen_part
from fairbench.config.resolve import resolve
from fairbench.config.spec import digest_of, experiment_tables
from fairbench.execute.repeats import simulate_all
from fairbench.execute.tasks import run_context
from fairbench.results.experiments import chosen_of, old_defaults
from fairbench.results.store import runs_in
from fairbench_gate.baseline import keep

SMALL = {"workload": "chat", "scenario": "none", "num_programs": 2, "scheduler": "vtc"}


def older(flags, former, chosen=None):
    """Return an experiment of a version in which the settings ``former`` were defaults."""
    spec = resolve(SMALL | flags, {**former, **(chosen or {})})
    kept = {key: one for key, one in spec.given["settings"].items() if key not in former}
    return spec.model_copy(update={"given": {**spec.given, "settings": kept}})


def stored(folder, spec):
    """Store an experiment and its results as a baseline."""
    with run_context() as context:
        simulate_all([spec], folder / "run", context)
    (folder / "base" / "one").mkdir(parents=True)
    (run,) = runs_in(folder / "run")
    keep(run, folder / "base" / "one")
    return folder / "base"


def check(folder, *clauses):
    flags = [word for clause in clauses for word in ("--fail-if", clause)]
    return CliRunner().invoke(app, ["baseline", "check", str(folder), *flags])


@pytest.mark.parametrize(
    ("flags", "former", "line"),
    [
        ({}, {"vtc.output_weight": 40}, "default changed: vtc.output_weight 40 -> 2 "),
        ({"scheduler": "dlpm"}, {"dlpm.quantum": 40}, "dlpm.quantum 40 -> 2000 "),
        ({}, {"engine.chunked_prefill_size": 64}, "engine.chunked_prefill_size 64 -> 0 "),
    ],
)
def test_a_default_that_changed_is_named_and_judged(tmp_path, flags, former, line):
    folder = stored(tmp_path, older(flags, former))
    summary = folder / "one" / "summary.json"
    better = json.loads(summary.read_text())
    better["victim_p95_s"] /= 2  # as if the former default had been faster
    summary.write_text(json.dumps(better))
    result = check(folder, "victim_p95_s:+10%")
    assert (result.exit_code, line in result.stdout) == (1, True), result.output
    assert check(folder, "victim_p95_s:+900%").exit_code == 0
    assert check(folder).exit_code == 1


@pytest.mark.parametrize("value", [2, 40])  # today's default, and another value
def test_a_chosen_value_is_kept_even_if_it_is_the_default(tmp_path, value):
    folder = stored(tmp_path, resolve(SMALL, {"vtc.output_weight": value}))
    result = check(folder)
    assert (result.exit_code, "default changed" in result.stdout) == (0, False), result.output
    given = tomllib.loads((folder / "one" / "experiment.toml").read_text())["given"]
    assert given["settings"] == {"vtc": {"output_weight": value}}


def test_a_baseline_of_an_earlier_version_is_read_by_the_chosen_keys_of_its_manifest(tmp_path):
    spec = older({}, {"vtc.output_weight": 40}, {"vtc.input_weight": 3})
    assert chosen_of(spec) == ["vtc.input_weight"]
    folder = stored(tmp_path, spec)
    file = folder / "one" / "experiment.toml"
    file.write_text(to_toml(spec.model_copy(update={"given": None})))
    head = check(folder).stdout.split("\n\n")[1]
    assert "default changed: vtc.output_weight 40 -> 2 " in head
    assert "input_weight" not in head


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("lift =", "retired = 7\nlift =", "default changed: vtc.retired 7 -> default "),
        ('lift = "paper"\n', "", 'default changed: vtc.lift default -> "paper" '),
    ],
)
def test_parameters_that_came_or_went_are_changed_defaults(tmp_path, before, after, line):
    folder = stored(tmp_path, resolve(SMALL))
    file = folder / "one" / "experiment.toml"
    old, new = file.read_text(), file.read_text().replace(before, after)
    digests = (digest_of(tomllib.loads(text)) for text in (old, new))
    file.write_text(new.replace(*digests))
    result = check(folder)
    assert (result.exit_code, line in result.stdout) == (0, True), result.output


def test_an_edited_value_of_a_stored_experiment_counts_as_chosen():
    text = to_toml(resolve(SMALL))
    edited = text.replace("output_weight = 2", "output_weight = 5").replace("dp = 1", "dp = 2")
    spec = resolve({"duration_s": 30}, {}, tomllib.loads(edited))
    assert (spec.dp, spec.settings["vtc.output_weight"]) == (2, 5)
    assert resolve({"duration_s": 30}, {}, tomllib.loads(text)).settings["vtc.output_weight"] == 2


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (SMALL, {}),
        (SMALL | {"workload": "tot", "weights": {"client-0": 2.0}}, {"tot.branches": 2}),
        ({"gpu": "h200", "duration_s": 90, "scheduler": "vtc"}, {"vtc.lift": "paper"}),
        ({"preset": "vtc-paper", "workload": "vtc-overload"}, {}),
        ({"preset": "dlpm-paper", "dp": 2}, {"dlpm.quantum": 77}),
        (SMALL | {"goodput": {"ttft": "500ms"}, "clients": 4}, {}),
    ],
)
def test_chosen_values_alone_give_the_experiment_again(flags, settings):
    spec = resolve(flags, settings)
    file = tomllib.loads(to_toml(spec))
    assert resolve({}, {}, chosen_part(file)) == spec
    again = resolve({}, {}, file)
    assert to_toml(again) == to_toml(spec)
    assert experiment_tables(again) == experiment_tables(spec)


def test_a_stored_experiment_that_runs_again_tells_which_defaults_it_keeps():
    spec = older({}, {"vtc.output_weight": 40}, {"vtc.input_weight": 3})
    again = resolve({}, {}, tomllib.loads(to_toml(spec)))
    assert again.settings["vtc.output_weight"] == 40
    assert old_defaults(again) == ["vtc.output_weight 40 -> 2"]
    assert old_defaults(resolve(SMALL, {"vtc.output_weight": 40})) == []


def test_a_check_of_runs_that_keep_a_former_default_says_so(tmp_path):
    folder = stored(tmp_path, older({}, {"vtc.output_weight": 40}))
    again = ["run", str(folder / "one" / "experiment.toml"), "--result-dir", str(tmp_path / "new")]
    run = CliRunner().invoke(app, again)
    assert run.exit_code == 0
    said = " ".join(run.stderr.split())
    assert "was stored: vtc.output_weight 40 -> 2; this run keeps the stored value" in said
    result = CliRunner().invoke(app, ["check", str(folder), str(tmp_path / "new")])
    assert result.exit_code == 0
    assert (
        "default changed: vtc.output_weight 40 -> 2, but these runs keep the old" in result.stdout
    )


@pytest.mark.parametrize("given", ["given = 3\n", "[given]\nworkload = 2\n", "[given.settings]\n"])
def test_a_damaged_table_of_chosen_values_is_ignored(given):
    text = to_toml(resolve(SMALL, {"vtc.output_weight": 5}))
    kept = text[: text.index("[given]")]
    text = given + kept if given.startswith("given") else kept + given
    spec = resolve({"duration_s": 30}, {}, tomllib.loads(text))
    assert spec.settings["vtc.output_weight"] == 5
