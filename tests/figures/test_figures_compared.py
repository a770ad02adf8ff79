"""Test pictures and tables of a user's sweeps: legends, swept parameters, marks, no libraries."""

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.figures.compared.draw import swept
from fairbench.figures.compared.plot import drawn, latex_table
from fairbench.figures.style import caption, panels, save
from fairbench.results.pair_comparison import sides_below


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return runs of a scheduler with three values of a parameter."""
    folder = tmp_path_factory.mktemp("runs")
    common = ["--workload", "chat", "--scenario", "none", "--num-programs", "1"]
    for name in ("500", "2000", "8000"):
        flags = ["--scheduler", "dlpm", "--set", f"dlpm.quantum={name}", *common]
        done = CliRunner().invoke(app, ["run", *flags, "--result-dir", str(folder)])
        assert done.exit_code == 0, done.output
    return folder


def test_a_swept_parameter_has_a_picture(runs):
    pytest.importorskip("seaborn")
    cells = sides_below(runs)
    values = sorted((one.parameter, one.value) for one in swept(cells).values())
    assert values == [("dlpm.quantum", value) for value in (500.0, 2000.0, 8000.0)]
    figure = drawn(cells, "parameter")
    (line, *_) = figure.axes[0].lines
    assert list(line.get_xdata()) == [500.0, 2000.0, 8000.0]
    assert figure.axes[0].get_xlabel() == "dlpm.quantum"
    assert swept(cells[:1]) == {}


def test_no_panel_is_empty(runs):
    """Demand limits these runs, so there is no fair share to draw."""
    pytest.importorskip("seaborn")
    cells = sides_below(runs)
    assert all(cell.demand_limited for cell in cells)
    for kind in ("bars", "parameter"):
        axes = drawn(cells, kind).axes
        assert not any("share" in axis.get_xlabel() + axis.get_ylabel() for axis in axes)
        assert all(axis.has_data() for axis in axes)


@pytest.mark.parametrize("number", [5, 9])
def test_a_legend_of_long_names_lies_within_the_figure(number):
    pytest.importorskip("matplotlib")
    figure, axes = panels(1, 1, 5.6, 3.0)
    for index in range(number):
        axes[0][0].plot([0, 1], label=f"client-round-robin+fewest-running-{index}")
    caption(figure, "title", "provenance", axes[0][0])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert axes[0][0].get_window_extent().height > 50


def test_a_table_marks_demand_limited_values_without_drawing(runs, tmp_path, monkeypatch):
    cells = sides_below(runs)
    assert any(cell.demand_limited for cell in cells)
    assert r" $\sim$} \\" in latex_table(cells)
    assert "% sim: limited by demand" in latex_table(cells)
    assert latex_table(cells).splitlines()[1] == r"% Needs \usepackage{booktabs}."
    monkeypatch.setattr("fairbench.figures.style.find_spec", lambda _: None)
    table = tmp_path / "t.tex"
    done = CliRunner().invoke(app, ["plot", str(runs), "--table", str(table)])
    assert done.exit_code == 2
    assert table.read_text() == latex_table(cells)
    assert 'pip install "fairbench-llm[plot]"' in done.stderr


def test_a_table_in_a_folder_that_is_missing_is_refused(runs, tmp_path):
    table = tmp_path / "missing" / "table.tex"
    done = CliRunner().invoke(app, ["plot", str(runs), "--table", str(table)])
    assert done.exit_code == 2
    assert "cannot be written: No such file or directory" in " ".join(done.stderr.split())
    assert not table.parent.exists()


def test_a_picture_without_room_is_refused_in_one_line(tmp_path):
    matplotlib = pytest.importorskip("matplotlib.figure")
    figure = matplotlib.Figure(figsize=(1, 0.2), layout="constrained")
    figure.subplots(8, 8)
    with pytest.raises(UsageError, match=r"a\.svg: too many configurations or too long names"):
        save(figure, [tmp_path / "a.svg"])
