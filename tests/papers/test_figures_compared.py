"""Test figures and tables of a user's sweeps: legends, varied parameters, marks, no libraries."""

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import UsageError
from fairbench.results.comparison import SchedulerResults, sides_below
from fairbench_papers.compared import distribution, drawn
from fairbench_papers.latex import COLUMN_PT, EM_PT, GAP_PT, SMALL_EM_PT, latex_table
from fairbench_papers.style import caption, panels, save


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


def interval(mean, spread=0.0):
    known = {"low": mean - spread, "high": mean + spread} if spread else dict.fromkeys(ENDS)
    return {"mean": mean, "runs": 3, "bound": "", **known}


ENDS = ("low", "high")


def cell(place, scheduler, service, latency_s, spread=0.0):
    """Return the results of three seeds, or of one if there is no spread."""
    return SchedulerResults(
        place,
        scheduler,
        (),
        {
            "service_rate_tok_s": interval(service, spread),
            "min_entitlement_best_ratio": interval(0.9),
            "victim_p50_s": interval(latency_s / 2),
            "victim_p99_s": interval(latency_s, spread / 1000),
            "simulated": True,
            "timing_profile": "p",
            "seeds": [0, 1, 2] if spread else [0],
            "percentiles": [],
            "latency": "program",
        },
    )


def test_a_swept_parameter_has_a_picture(runs):
    pytest.importorskip("seaborn")
    figure = drawn(sides_below(runs), "parameter")
    (line, *_) = figure.axes[0].lines
    assert list(line.get_xdata()) == [500.0, 2000.0, 8000.0]
    assert figure.axes[0].get_xlabel() == "dlpm.quantum"
    with pytest.raises(UsageError, match="needs a sweep over a parameter, the load or the"):
        drawn(sides_below(runs)[:1], "parameter")


def drawn_lines(axis):
    """Return the points of each line of a panel, and the ends of their intervals."""
    found = {}
    for one in axis.containers:
        data, _, bars = one.lines
        ends = [segment[:, 1].tolist() for segment in bars[0].get_segments()]
        found[one.get_label()] = (data.get_xydata().tolist(), ends)
    return found


def test_lines_over_replicas_and_loads_have_intervals():
    pytest.importorskip("seaborn")
    swept = [
        cell(f"tot s1 dp {dp} request_rate={rate}", name, 1000.0 * dp, 8 / dp, 500.0)
        for dp in (1, 2)
        for rate in (1.0, 3.0)
        for name in ("vtc", "lpm")
    ]
    figure = drawn(swept, "parameter")
    rows = [figure.axes[at : at + 3] for at in range(0, 12, 3)]
    titles = [row[0].get_title("left") for row in rows]
    assert titles[:2] == ["tot s1 request_rate=1.0", "tot s1 request_rate=3.0"]
    assert titles[2:] == ["tot s1 dp 1", "tot s1 dp 2"]
    labels = [row[0].get_xlabel() for row in rows]
    assert labels == 2 * ["replicas (dp)"] + 2 * ["programs/s per client"]
    service = drawn_lines(rows[0][0])
    assert list(service) == ["VTC", "RR + LPM"]
    assert service["VTC"] == ([[1, 1], [2, 2]], [[0.5, 1.5], [1.5, 2.5]])
    latency = drawn_lines(rows[3][2])
    assert latency["RR + LPM"] == ([[1, 4], [3, 4]], [[3.5, 4.5], [3.5, 4.5]])
    for axis in figure.axes:
        assert axis.get_ylim()[0] == 0
        highest = max(end for _, ends in drawn_lines(axis).values() for one in ends for end in one)
        assert axis.get_ylim()[1] > highest


def test_no_panel_is_empty(runs):
    """These runs are below saturation, so there is no fair share to draw."""
    pytest.importorskip("seaborn")
    cells = sides_below(runs)
    assert all(cell.demand_limited for cell in cells)
    for kind in ("bars", "parameter"):
        axes = drawn(cells, kind).axes
        assert not any("share" in axis.get_xlabel() + axis.get_ylabel() for axis in axes)
        assert all(axis.has_data() for axis in axes)


def test_a_tradeoff_does_not_magnify_negligible_differences():
    pytest.importorskip("seaborn")
    cells = [cell("a", "vtc", 1120.27, 8.0), cell("a", "lpm", 1120.44, 8.001)]
    (axis, *_) = drawn(cells, "tradeoff").axes
    # 2% of 1.12 thousand tok/s around the middle, and 2% of 8 s
    assert axis.get_xlim() == pytest.approx((1.1092, 1.1316), abs=1e-4)
    assert axis.get_ylim() == pytest.approx((7.92, 8.08), abs=1e-2)
    axis.figure.draw_without_rendering()
    assert axis.xaxis.get_offset_text().get_text() == ""
    wide = drawn([cells[0], cell("a", "lpm", 2240.0, 16.0)], "tradeoff").axes[0]
    assert wide.get_xlim() == pytest.approx((1.064, 2.296), abs=1e-3)  # matplotlib's 5% margins


def test_a_curve_of_latencies_ends_at_the_fraction_of_answered_requests(tmp_path):
    # Two of the four documents are larger than the pool. Each document has 16 questions.
    flags = ["--workload", "long-qa", "--num-programs", "4", "--clients", "1", "--scenario", "none"]
    pool = ["--scheduler", "fcfs", "--max-total-tokens", "20000"]
    done = CliRunner().invoke(app, ["run", *flags, *pool, "--result-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (one,) = sides_below(tmp_path)
    latencies_s, percent = distribution(one)
    assert latencies_s.tolist() == sorted(latencies_s)
    assert percent.tolist() == [100 * answered / 64 for answered in range(1, 33)]


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
    assert "% sim: Queues were empty for more than 5%" in latex_table(cells)
    assert r"% Needs \usepackage{booktabs}." in latex_table(cells).splitlines()
    monkeypatch.setattr("fairbench_papers.style.find_spec", lambda _: None)
    table = tmp_path / "t.tex"
    done = CliRunner().invoke(app, ["plot", str(runs), "--table", str(table)])
    assert done.exit_code == 2
    assert table.read_text() == latex_table(cells)
    assert 'pip install "fairbench-llm[plot]"' in done.stderr


def text_pt(text, em_pt):
    """Return the width of a text in Computer Modern, whose dash is as wide as a digit."""
    font_manager = pytest.importorskip("matplotlib.font_manager")
    textpath = pytest.importorskip("matplotlib.textpath")
    font = font_manager.FontProperties(family="cmr10", size=em_pt)
    plain = text.replace("--", "0").replace("\\", "").replace("$", "")
    width, *_ = textpath.text_to_path.get_text_width_height_descent(plain, font, False)
    return width


def table_pt(text):
    """Return the width of a table, computed from its rows."""
    rows = [
        [part.strip() for part in line.removesuffix(r" \\").split(" & ")]
        for line in text.splitlines()
        if line.endswith(r" \\") and "multicolumn" not in line
    ]
    widths = [0.0] * len(rows[0])
    for row in rows:
        for at, part in enumerate(row):
            lines = part.removeprefix(r"\shortstack[r]{").removesuffix("}").split(r"\\")
            small = part.startswith(r"\scriptsize")
            each = (one.removeprefix(r"\scriptsize ") for one in lines)
            em_pt = SMALL_EM_PT if small else EM_PT
            widths[at] = max(widths[at], *(text_pt(one, em_pt) for one in each))
    return sum(widths) + GAP_PT * (len(widths) - 1)


@pytest.mark.parametrize(
    ("scheduler", "service"),
    [("vtc", 12.5), ("fair-finish fair-finish.horizon_s=2.5", 123456.0), ("mMWw%_", 9876543.0)],
)
def test_a_table_fits_into_a_column_and_its_width_is_a_bound(scheduler, service):
    cells = [cell(f"tot s1 dp {dp}", scheduler, service, 61.5, service / 9) for dp in (1, 2)]
    text = latex_table(cells)
    (said,) = (float(line.split()[3]) for line in text.splitlines() if "At most" in line)
    assert table_pt(text) <= said + 0.5 <= COLUMN_PT + 0.5
    assert "tok/s" in text
    chosen = latex_table(cells, ["victim_p99_s", "service_rate_tok_s", "min_share_of_best"])
    assert chosen.count("shortstack") == 3
    assert chosen.index("P99") < chosen.index("tok/s") < chosen.index("min. fair")


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ("victim_p99s", "unknown metric 'victim_p99s': choose from"),
        ("victim_p99_s,goodput_ratio", "--columns goodput_ratio: no run has a value"),
        ("victim_p99_s,,jain_index", "--columns"),
    ],
)
def test_columns_that_no_run_has_are_refused(runs, tmp_path, columns, error):
    table = tmp_path / "t.tex"
    flags = ["plot", str(runs), "--table", str(table), "--columns", columns]
    done = CliRunner().invoke(app, flags)
    assert done.exit_code == 2
    assert error in " ".join(done.stderr.split())
    assert not table.exists()
    done = CliRunner().invoke(app, ["plot", str(runs), "--columns", "victim_p99_s"])
    assert "needs --table FILE.tex" in done.stderr


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
    with pytest.raises(
        UsageError, match=r"a\.svg: the names of all configurations do not fit into"
    ):
        save(figure, [tmp_path / "a.svg"])
