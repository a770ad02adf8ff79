"""Test that each figure has its module and sweep, and always draws identical bytes."""

import csv
from pathlib import Path

import pytest

from fairbench.config.sweep import points, read_sweep
from fairbench.errors import DataError, UsageError
from fairbench.results.store import write_json
from fairbench_studies.dlpm import catalogue
from fairbench_studies.dlpm.catalogue import FIGURES, figure_named
from fairbench_studies.kit.rows import write_rows
from tests.figure_helpers import PROFILE

POINT = {
    "workers": 8, "waiting": 200, "synchronisation_ms": 1.0, "match_ms": 2.0, "dispatch_ms": 1.0,
    "update_ms": 9.0, "decode_step_ms": 16.0,
}  # fmt: skip
TIMINGS = {"timing_profile": PROFILE, "host": "x", "seed": 0, "rounds": 5, "points": [POINT]}


def test_figures_are_in_order_of_their_numbers_each_with_its_module():
    assert [*FIGURES] == sorted(FIGURES, key=lambda name: int(name[3:]))
    modules = Path(catalogue.__file__).parent.glob("fig[0-9]*.py")
    assert {module.stem for module in modules} == {*FIGURES}


POINTS = {"fig1": 18, "fig7": 108, "fig8": 5, "fig9": 5, "fig10": 22, "fig11": 18, "fig12": 3}


@pytest.mark.parametrize(("name", "count"), POINTS.items())
def test_a_sweep_has_the_points_of_the_figure_in_the_paper(name, count):
    sweep = read_sweep(name)
    specs = points(sweep.model_copy(update={"num_runs": 1}))
    assert len(specs) == count
    assert sweep.num_runs == 8
    if name != "fig7":
        assert {spec.gpu for spec in specs} == {"a10g-24gb/llama-3.2-3b/tp1/sglang-e2e"}
    if name == "fig11":
        offered = {round(spec.clients * spec.request_rate, 3) for spec in specs}
        assert offered == {0.5}


def test_figure_7_at_its_authors_settings_has_pools_of_20000_tokens():
    """The runs are two workloads in two scenarios on 1 to 8 replicas, and long-qa on four pools."""
    figure = figure_named("fig7", "dlpm-paper")
    specs = points(read_sweep(figure.sweep).model_copy(update={"num_runs": 1}))
    pools = {(spec.workload.name, spec.settings["engine.max_total_tokens"]) for spec in specs}
    assert len(specs) == 2 * 2 * (3 + 3 * 5) + 2 * 4 * 5
    assert {pool for workload, pool in pools if workload != "long-qa"} == {20_000}
    assert {pool for workload, pool in pools if workload == "long-qa"} == {
        25_000, 50_000, 100_000, 305_000,
    }  # fmt: skip
    assert all(spec.window == "whole" and spec.num_programs == 50 for spec in specs)


def test_a_preset_has_only_the_figures_of_its_machine():
    with pytest.raises(UsageError, match=r"--preset dlpm-paper: does not reproduce fig9; .*fig7"):
        figure_named("fig9", "dlpm-paper")
    with pytest.raises(UsageError, match=r"unknown preset 'dlpm'.*Did you mean 'dlpm-paper'"):
        figure_named("fig7", "dlpm")


@pytest.mark.slow
def test_a_figure_is_drawn_to_every_format_and_its_numbers_to_csv(tmp_path):
    pytest.importorskip("seaborn", reason="figures need the plot extra")
    write_json(tmp_path / "timings.json", TIMINGS)
    for folder in ("one", "two"):
        files = FIGURES["fig4"].plot(tmp_path, tmp_path / folder, ["svg", "png", "pdf"])
        assert [path.name for path in files] == ["fig4.svg", "fig4.png", "fig4.pdf", "fig4.csv"]
    for path in files:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    assert "DLPM Fig. 4" in files[0].read_text()
    with files[-1].open() as file:
        (row,) = csv.DictReader(file)
    assert (row["workers"], row["overhead_pct"]) == ("8", "25")


def test_rows_are_written_as_csv(tmp_path):
    write_rows(tmp_path / "x.csv", [{"a": 1.23456789, "b": None}, {"a": 2, "b": "x"}])
    assert (tmp_path / "x.csv").read_text() == "a,b\n1.23457,\n2,x\n"


def test_an_unknown_figure_is_named():
    with pytest.raises(UsageError, match=r"unknown figure 'fig2'.*fig1"):
        figure_named("fig2")


@pytest.mark.parametrize(
    ("name", "complaint"), [("fig4", "no such file"), ("fig7", "sweep.toml|index.json")]
)
def test_a_folder_that_is_not_a_store_is_an_error(tmp_path, name, complaint):
    with pytest.raises(DataError, match=complaint):
        FIGURES[name].read(tmp_path)


def test_timings_in_another_form_are_an_error(tmp_path):
    write_json(tmp_path / "timings.json", {"points": []})
    with pytest.raises(DataError, match="must hold the timings of a central scheduler"):
        FIGURES["fig4"].read(tmp_path)


def test_the_error_without_seaborn_names_seaborn(tmp_path, monkeypatch):
    monkeypatch.setattr("fairbench_papers.style.find_spec", lambda name: name != "seaborn" or None)
    with pytest.raises(
        UsageError, match=r'figures need the package seaborn: pip install "fairbench-llm\[plot\]"'
    ):
        FIGURES["fig4"].plot(tmp_path, tmp_path, ["svg"])
