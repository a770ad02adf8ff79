"""Test ``import fairbench``: commands as functions that return values."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fairbench
from fairbench.api.result import html_table
from fairbench.cli.app import app
from fairbench.cli.compare import compare as compare_command
from fairbench.cli.run import run as run_command
from fairbench.cli.sweep import sweep as sweep_command
from fairbench.config.flags import COMPARE, PLAN, RUN, SWEEP
from fairbench.execute import run_or_recover
from fairbench_logs.cli_diagnose import diagnose_log as diagnose_command
from fairbench_logs.cli_plan import plan as plan_command
from fairbench_logs.cli_score import score as score_command

TINY = {"workload": "chat", "scenario": "none", "num_programs": 1}
TABLES = ("requests", "programs", "service")


@pytest.fixture(scope="module")
def result():
    return fairbench.run(**TINY, scheduler="vtc", seed=3)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    grid = {"schedulers": ["vtc", "lpm"], "workloads": ["chat"], "num_programs": 1}
    return fairbench.sweep(**grid, num_runs=2, result_dir=parent)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Enter an empty directory, with another for temporary files."""
    (tmp_path / "here").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path


def assert_same(one, other):
    assert one.schema == other.schema
    assert repr(one.to_pylist()) == repr(other.to_pylist())  # NaN differs from itself


def test_a_run_equals_the_run_saved_by_the_command(result, tmp_path):
    command = ["run", "--workload", "chat", "--scenario", "none", "--num-programs", "1"]
    command += ["--scheduler", "vtc", "--seed", "3", "--result-dir", str(tmp_path)]
    assert CliRunner().invoke(app, command).exit_code == 0
    (path,) = tmp_path.iterdir()
    assert result.summary == json.loads((path / "summary.json").read_text())
    loaded = fairbench.load(path)
    assert (loaded.path, loaded.experiment) == (path, result.experiment)
    for name in TABLES:
        assert_same(getattr(result, name), pq.read_table(path / f"{name}.parquet"))
        assert_same(getattr(result, name), getattr(loaded, name))


def test_a_run_writes_nothing_without_a_directory(empty):
    result = fairbench.run(**TINY)
    assert result.path is None
    assert list(empty.glob("*/*")) == []
    saved = fairbench.run(**TINY, result_dir="runs")
    assert saved.path.parent == Path("runs")
    assert saved.summary == result.summary == fairbench.load(saved.path).summary


def test_a_run_on_servers_leaves_no_files_either(empty):
    pytest.importorskip("aiohttp")
    with pytest.raises(fairbench.RunFailed, match="no request succeeded"):
        fairbench.run(**TINY, base_url="http://127.0.0.1:9", request_rate=float("inf"))
    assert list(empty.glob("*/*")) == []


def test_tables_of_requests_programs_service_and_clients(result):
    assert result.requests.num_rows == result.summary["num_requests"]
    assert result.programs.num_rows == result.summary["num_programs"]
    assert "extend_tokens" in result.service.column_names
    assert result.clients.to_pylist() == result.summary["clients"]
    pandas = pytest.importorskip("pandas")
    assert isinstance(result.requests.to_pandas(), pandas.DataFrame)


def test_settings_and_engine_flags_are_those_of_the_command(result):
    changed = fairbench.run(
        **TINY, scheduler="vtc", settings={"vtc.charge": "input"}, max_total_tokens=100_000
    )
    assert changed.experiment["settings"]["vtc"]["charge"] == "input"
    assert changed.summary["pool_tokens"] == 100_000
    assert result.experiment["settings"]["vtc"]["charge"] != "input"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"scheduler": "d2lmp"}, "unknown scheduler 'd2lmp'.*Did you mean 'd2lpm'"),
        ({"dp": 0}, "dp = 0: must be greater than or equal to 1"),
        ({"dp": "four"}, "dp = 'four'"),
        ({"num_program": 3}, "unknown flag 'num_program'.*Did you mean 'num_programs'"),
        ({"settings": {"dlpm.quantun": 5}}, "Did you mean 'quantum'"),
        ({"settings": {"quantum": 5}}, "quantum"),
        (
            {"max_total_tokens": 50},
            (
                "every request is larger than the KV pool of 50 tokens; give a larger pool "
                "or shorter prompts"
            ),
        ),
        ({"headers": {"a": "b"}}, "--header and --api-key-file need --base-url"),
        ({"experiment": "none.toml"}, "none.toml: cannot be read"),
    ],
)
def test_wrong_flags_raise_a_usage_error(empty, flags, complaint):
    with pytest.raises(fairbench.UsageError, match=complaint) as raised:
        fairbench.run(**flags)
    assert "\n" not in str(raised.value)
    assert list(empty.glob("*/*")) == []


def test_an_experiment_file_is_run_and_flags_override_it(result, tmp_path):
    saved = fairbench.run(**TINY, scheduler="vtc", seed=3, result_dir=tmp_path)
    again = fairbench.run(saved.path / "experiment.toml")
    assert again.summary == result.summary
    other = fairbench.run(saved.path / "experiment.toml", scheduler="fcfs")
    assert other.summary["scheduler"] == "fcfs"


def test_an_interrupted_run_is_a_keyboard_interrupt_and_is_saved(tmp_path, monkeypatch):
    simulate = run_or_recover.simulate

    def interrupted_at_once(spec, *, interrupted, **options):
        interrupted.signum = 2
        return simulate(spec, interrupted=interrupted, **options)

    monkeypatch.setattr(run_or_recover, "simulate", interrupted_at_once)
    with pytest.raises(KeyboardInterrupt, match="interrupted; the finished requests are saved to"):
        fairbench.run(**TINY, result_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    assert fairbench.load(path).summary["complete"] is False
    with pytest.raises(KeyboardInterrupt, match=r"^interrupted$"):
        fairbench.run(**TINY)


def test_a_sweep_compares_its_points(swept):
    assert [cell["cell"] for cell in swept.cells] == ["vtc", "lpm"]
    assert swept.cells[0]["service_rate_tok_s"]["runs"] == 2
    assert swept.failures == []
    assert swept.metrics["seed"].to_pylist() == [0, 1, 0, 1]
    assert swept.metrics.num_rows * 4 == swept.clients.num_rows
    assert fairbench.load_sweep(swept.path).comparison == swept.comparison
    assert len(list((swept.path / "runs").iterdir())) == 4


def test_an_unsaved_sweep_gives_the_same_and_resuming_runs_nothing_again(swept, empty):
    grid = {"schedulers": ("vtc", "lpm"), "workloads": "chat", "num_programs": 1}
    unsaved = fairbench.sweep(**grid, num_runs=2)
    assert unsaved.path is None
    assert unsaved.cells == swept.cells
    assert unsaved.metrics.equals(swept.metrics)
    assert list(empty.glob("*/*")) == []
    before = {path: path.stat().st_mtime_ns for path in (swept.path / "runs").rglob("*")}
    assert fairbench.sweep(resume=swept.path).comparison == swept.comparison
    assert {path: path.stat().st_mtime_ns for path in (swept.path / "runs").rglob("*")} == before


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({}, "sweep: missing; give a FILE.toml, one of"),
        ({"file": "fig8x"}, "unknown sweep 'fig8x'"),
        ({"schedulers": ["lmp"]}, "unknown scheduler 'lmp'"),
        ({"scheduler": "lpm"}, "unknown flag 'scheduler'.*Did you mean 'schedulers'"),
        ({"dp": [0]}, "dp = 0"),
    ],
)
def test_a_wrong_sweep_raises_a_usage_error(empty, flags, complaint):
    with pytest.raises(fairbench.UsageError, match=complaint):
        fairbench.sweep(**flags)
    assert list(empty.glob("*/*")) == []


def test_results_are_compared(result):
    other = fairbench.run(**TINY, scheduler="fcfs", seed=3)
    found = fairbench.compare(result, other)
    assert found.runs["run"].to_pylist() == ["vtc", "fcfs"]
    assert found.runs["place"].to_pylist() == ["chat none dp 1"] * 2
    values = [one.summary["jain_index"] for one in (result, other)]
    assert found.runs["jain_index"].to_pylist() == values
    rows = {row["metric"]: row for row in found.differences.to_pylist()}
    row = rows["jain_index"]
    assert (row["baseline"], row["other"]) == ("vtc", "fcfs")
    assert (row["baseline_mean"], row["other_mean"]) == tuple(values)
    assert (row["runs"], row["decision"]) == (1, "inconclusive")  # values of one seed
    assert "fcfs against vtc, seed 3" in str(found)


def test_results_of_several_seeds_are_paired(swept):
    results = [fairbench.load(path) for path in sorted((swept.path / "runs").iterdir())]
    found = fairbench.compare(*results, metrics=["victim_p99_s"])
    (row,) = found.differences.to_pylist()
    assert (row["baseline"], row["other"], row["runs"]) == ("lpm", "vtc", 2)
    stored = fairbench.compare(swept.path, baseline="lpm", metrics=["victim_p99_s"])
    (again,) = stored.differences.to_pylist()
    assert again == row
    apart = fairbench.compare(results[:2], results[:2], metrics=["victim_p99_s"])
    (same,) = apart.differences.to_pylist()
    assert (same["baseline"], same["other"], same["decision"]) == ("lpm", "lpm (2)", "same")


def test_schedulers_are_run_and_compared(empty):
    found = fairbench.compare("vtc", "fcfs", num_runs=2, workload="chat", num_programs=1)
    assert found.runs["seed"].to_pylist() == [0, 1, 0, 1]
    assert set(found.differences["other"].to_pylist()) == {"fcfs"}
    assert list(empty.glob("*/*")) == []


@pytest.mark.parametrize(
    ("sides", "flags", "complaint"),
    [
        ([], {}, "nothing to compare"),
        (["vtc"], {}, "vtc: a comparison needs two arguments; give another"),
        (["vtc", "d2lmp"], {}, "Did you mean 'd2lpm'"),
        (["vtc", "lpm"], {"tp": 2}, "unknown flag 'tp'"),
        (["vtc", 3], {}, "cannot be mixed"),
        ([3], {}, "3: must be a Result, a list of Results, the name of a"),
    ],
)
def test_a_wrong_comparison_raises_a_usage_error(empty, sides, flags, complaint):
    with pytest.raises(fairbench.UsageError, match=complaint):
        fairbench.compare(*sides, **flags)
    assert list(empty.glob("*/*")) == []


def test_a_plot_shows_every_client(result, swept):
    pytest.importorskip("seaborn")
    for one in (result, fairbench.load(next((swept.path / "runs").iterdir()))):
        figure = one.plot()
        for axes in figure.axes:
            assert len(axes.get_lines()) == len(one.summary["clients"])
        assert one.summary["timing_profile"] in figure.get_supxlabel()
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_error_of_a_plot_without_the_extra_names_the_extra(result, monkeypatch):
    monkeypatch.setattr("fairbench_papers.style.find_spec", lambda name: None)
    with pytest.raises(fairbench.UsageError, match="pip install"):
        result.plot()


@pytest.mark.parametrize("kind", ["bars", "tradeoff", "cdf"])
def test_a_sweep_and_a_comparison_draw_every_scheduler(kind, swept):
    pytest.importorskip("seaborn")
    for one in (swept, fairbench.compare(swept.path)):
        figure = one.plot(kind)
        (axes, *_) = figure.axes
        names = [text.get_text() for text in axes.get_yticklabels()]
        if kind != "bars":
            names = axes.get_legend_handles_labels()[1]
        assert names == ["VTC", "RR + LPM"]
        assert "seeds 0 to 1" in figure.get_supxlabel()
        with pytest.raises(fairbench.UsageError, match="choose from bars, cdf, parameter, trade"):
            one.plot("pie")
        with pytest.raises(fairbench.UsageError, match="needs a sweep over a parameter"):
            one.plot("parameter")


def test_an_unsaved_sweep_draws_its_results(swept):
    pytest.importorskip("seaborn")
    unsaved = fairbench.load_sweep(swept.path)
    unsaved.path = None
    panels = [axis.get_xlabel() for axis in unsaved.plot("bars").axes]
    # no share, because the runs are below saturation
    assert panels == ["service, 1,000 tok/s", "well-behaved P99, s"]
    with pytest.raises(
        fairbench.UsageError,
        match="kind 'cdf': needs result_dir, because latencies are read from saved runs",
    ):
        unsaved.plot("cdf")


def test_a_comparison_is_a_latex_table(swept):
    lines = swept.latex().splitlines()
    rows = [line for line in lines if line.endswith(r"\\") and "multicolumn" not in line]
    assert [row.split(" & ")[0].strip() for row in rows] == ["", "vtc", "", "lpm", ""]
    assert len({row.count("&") for row in rows}) == 1
    (begin,) = (line for line in lines if line.startswith(r"\begin{tabular}"))
    assert begin.count("r") == 1 + rows[0].count("&")  # the word "tabular" has one r
    assert swept.latex(["victim_p50_s"]).count("shortstack") == 1
    assert fairbench.compare(swept.path).latex() == swept.latex()


def test_the_import_is_light():
    code = (
        "import sys, fairbench; fairbench.__version__\n"
        "heavy = {'numpy', 'pyarrow', 'pydantic', 'typer', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "fairbench.run; assert not {'pandas', 'matplotlib', 'aiohttp'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(fairbench.__all__) <= set(dir(fairbench))
    assert all(getattr(fairbench, name).__doc__ for name in fairbench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        _ = fairbench.rum


@pytest.mark.slow
def test_a_script_that_sweeps_needs_no_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import fairbench\n"
        "swept = fairbench.sweep(schedulers=['vtc', 'fcfs'], workloads='chat', num_programs=1)\n"
        "print(len(swept.cells), swept.failures)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2 []\n", "")


# flags for which the Python interface has other means
OF_THE_COMMAND = {
    *("reference", "no_reference", "every"),
    *("as_json", "disable_tqdm", "output_file", "output_details", "explain", "dry_run", "num_runs"),
    *("executor", "ray_address", "reuse", "launcher", "hosts", "launch_command", "drivers"),
    "driver_launcher",
}
BY_OTHER_NAMES = {
    *("names", "trace_map", "clients_from", "files", "file", "report", "plot", "result_dir"),
    *("trace_format", "trace_line", "resume"),
    "metric",
    "experiment_file",
    "header",
    "api_key_file",
    "allow_untested_release",
    "flush_cache",
}


@pytest.mark.parametrize(
    ("function", "command", "flags"),
    [
        (fairbench.run, run_command, RUN),
        (fairbench.compare, compare_command, COMPARE),
        (fairbench.sweep, sweep_command, SWEEP),
        (fairbench.plan, plan_command, PLAN),
        (fairbench.diagnose, diagnose_command, {}),
        (fairbench.score, score_command, {}),
    ],
)
def test_keywords_are_the_flags_of_the_command(function, command, flags):
    parameters = set(inspect.signature(command).parameters)
    assert set(flags) <= parameters
    keywords = {*flags, *inspect.signature(function).parameters}
    assert parameters - keywords <= OF_THE_COMMAND | BY_OTHER_NAMES


def test_a_notebook_shows_one_row_per_client(result):
    shown = result._repr_html_()
    assert shown.count("<tr>") == 1 + len(result.summary["clients"])
    assert all(f"<td>{one['client']}</td>" in shown for one in result.summary["clients"])


def test_names_in_a_notebook_are_never_read_as_markup():
    rows = [{"name": "<b>", "x": {"mean": 2.0, "low": 1.0, "high": 3.0, "runs": 5}}, {"x": None}]
    shown = html_table("<i>", rows, ("name", "x", "absent"))
    assert "&lt;b&gt;" in shown
    assert "<i>" not in shown
    assert "2.00 [1.00, 3.00]" in shown
    assert "absent" not in shown


def test_tables_are_data_frames_when_asked(result, swept):
    pytest.importorskip("pandas")
    requests = result.to_pandas()
    assert len(requests) == result.summary["num_requests"]
    by_client = requests.groupby("client", observed=True)["output_tokens"].sum()
    assert set(by_client.index) == {one["client"] for one in result.summary["clients"]}
    clients = result.to_pandas("clients")
    assert list(clients["client"]) == [one["client"] for one in result.summary["clients"]]
    runs = swept.to_pandas()
    assert runs.groupby("cell")["seed"].count().to_dict() == {"vtc": 2, "lpm": 2}
    compared = fairbench.compare(result, result).to_pandas()
    assert {"metric", "difference", "low", "high"} <= set(compared.columns)


@pytest.mark.parametrize("name", ["request", "summary", ""])
def test_an_unknown_table_is_refused_with_the_nearest(result, name):
    with pytest.raises(
        fairbench.UsageError, match=r"unknown table .*choose from clients, programs"
    ):
        result.to_pandas(name)


def test_without_pandas_the_extra_is_named(result, monkeypatch):
    assert result.clients.num_rows  # pyarrow looks for pandas only once, here
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fairbench.UsageError, match=r'needs pandas: pip install "\.\[pandas\]"'):
        result.to_pandas("clients")
