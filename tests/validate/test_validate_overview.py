"""Test the table and the picture of all measured runs."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.overview.figure import draw
from fairbench_studies.validation.overview.points import (
    FIRST_TOKEN,
    THROUGHPUT,
    TIME_PER_TOKEN,
    Point,
    kind_of_prompts,
    serving_point,
)
from fairbench_studies.validation.overview.table import overview_text, rows_of
from fairbench_studies.validation.serving.measured import serving_run
from tests.validate.test_validate_serving import record


def point(name, simulated, measured, *, fitted=False, repeat=None, gpu="a40-48gb"):
    """Return a run whose three metrics have the same values."""
    pairs = {metric: Pair(simulated, measured) for metric in (THROUGHPUT, TIME_PER_TOKEN)}
    pairs[FIRST_TOKEN] = Pair(simulated, measured)
    return Point("vllm", gpu, "m", "short", name, repeat or name, "p", fitted, pairs)


def test_a_row_counts_errors_and_the_spread_of_repeats():
    points = [
        point("a-rep1", 104, 100, repeat="a"),  # +4%
        point("a-rep2", 99, 110, repeat="a"),  # -10%; the set's spread is 10 of a mean of 105
        point("b", 93, 100),  # -7%
        point("c", 900, 100, fitted=True),
        point("d", 100, 100, gpu="h100-80gb"),
    ]
    first, second = (row.as_dict() for row in rows_of(points))
    assert (first["gpu"], first["runs"], first["fitted_runs"]) == ("a40-48gb", 3, 1)
    assert (second["gpu"], second["runs"], second["repeats"]) == ("h100-80gb", 1, 0)
    throughput, first_token = (first["metrics"][name] for name in (THROUGHPUT, FIRST_TOKEN))
    assert (throughput["within"], throughput["runs"]) == (1, 3)  # within 5%
    assert first_token["within"] == 3  # within 10%
    assert throughput["worst_pct"] == pytest.approx(-10)
    assert first["repeats"] == 1
    assert first["spreads_pct"] == pytest.approx(dict.fromkeys(first["metrics"], 1000 / 105))


def test_the_table_has_a_line_for_each_row_and_the_total():
    points = [point("a", 104, 100), point("b", 50, 100), point("c", 1, 1, fitted=True)]
    *_, row, total = overview_text(points).splitlines()
    assert row.split() == ["vllm", "a40-48gb", "m", "short", "2", "+1", *["1/2", "(-50%)"] * 3]
    assert total.split() == ["all", "2", "+1", *["1/2", "(-50%)"] * 3, "0"]


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        ([20] * 10, "short"),
        ([401] * 10, "medium"),
        ([100, 100, 500, 900, 900], "medium mixed"),
        ([3_000] * 10, "long"),
        ([785, 3_089, 3_089, 12_305, 12_305], "long mixed"),
    ],
)
def test_prompts_are_named_by_their_lengths(tokens, kind):
    assert kind_of_prompts(np.array(tokens)) == kind


def test_a_run_without_a_bundled_profile_is_replayed_with_its_data_sheet():
    run = serving_run(record(run_id="x_rep2", gpu="NVIDIA L4", model="Qwen3-8B"), "here")
    found = serving_point(run)
    assert found.profile == "l4-24gb/qwen3-8b/tp1/roofline"
    assert found.repeat == "x cached"
    assert FIRST_TOKEN not in found.pairs  # 30 ms are not resolved


@pytest.mark.slow
def test_the_command_reads_files_below_directories_and_draws_each_run(tmp_path):
    pytest.importorskip("matplotlib")
    data, out = tmp_path / "data" / "more", tmp_path / "out"
    data.mkdir(parents=True)
    runs = [record(run_id="a-rep1"), record(run_id="a-rep2"), record(run_id="b", gpu="tpu")]
    (data / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    (data / "other.json").write_text('{"no": "runs"}')
    folder = str(tmp_path / "data")
    result = CliRunner().invoke(app, ["validate", "--overview", folder, "--output-dir", str(out)])
    assert result.exit_code == 1  # b has no profile
    assert "  ! b: no timing profile for gpu 'tpu'" in result.stdout
    written = json.loads((out / "overview.json").read_text())
    assert [one["name"] for one in written["runs"]] == ["a-rep1", "a-rep2"]
    assert [one["run"] for one in written["not_replayed"]] == ["b"]
    assert len((out / "overview.csv").read_text().splitlines()) == 1 + 2 * 2  # two metrics each
    assert (out / "overview.png").stat().st_size > 10_000
    again = CliRunner().invoke(app, ["validate", "--overview", folder, "--json"])
    assert json.loads(again.stdout)["rows"] == written["rows"]


@pytest.mark.slow
def test_equal_runs_give_an_equal_picture_and_large_errors_have_a_number(tmp_path):
    pytest.importorskip("matplotlib")
    points = [point("a", 104, 100), point("b", 180, 100, fitted=True)]
    paths = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for path in paths:
        draw(points, [path])
    one, two = (path.read_text() for path in paths)
    assert one == two
    assert one.count(">+80%<") == 3


@pytest.mark.parametrize("flag", [["--fit"], ["--pool", "9"], ["--predict", "p.json"]])
def test_other_options_are_refused(tmp_path, flag):
    result = CliRunner().invoke(app, ["validate", "--overview", str(tmp_path), *flag])
    assert result.exit_code == 2
    assert f"--overview: cannot be combined with {flag[0]}" in result.stderr


def test_a_directory_without_runs_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["validate", "--overview", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds no files of measured runs" in result.stderr
