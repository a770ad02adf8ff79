"""Test engine releases: the supported range, unknown newer ones, and unreadable targets."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fairbench
from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.execute.live_runs import LiveFlags, live_runs
from fairbench_engines.sglang.release import check_target
from fairbench_load.backends.sglang import SERVER_PYTHON
from fairbench_load.backends.workers import live_backend
from fairbench_load.plugin_config import UNTESTED, check_release, installed

WINDOW = ("0.5.17", "0.5.23")


@pytest.mark.parametrize("found", ["0.5.17", "0.5.23", "0.5.23+cpu"])
def test_a_release_in_the_supported_range_is_accepted(found):
    assert check_release("SGLang", found, WINDOW)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("", "SGLang is not installed in this Python"),
        ("0.5.16", "SGLang 0.5.16 is not supported: the schedulers run inside 0.5.17 to 0.5.23"),
        ("0.5.24", "inside 0.5.17 to 0.5.23; to try a newer release, give --allow-untested"),
    ],
)
def test_a_release_outside_the_supported_range_is_refused(found, says, monkeypatch):
    monkeypatch.delenv(UNTESTED, raising=False)
    with pytest.raises(UsageError) as refused:
        check_release("SGLang", found, WINDOW)
    assert says in str(refused.value)


def test_an_unknown_newer_release_runs_only_on_request_and_an_older_one_never(monkeypatch):
    monkeypatch.setenv(UNTESTED, "1")
    assert not check_release("SGLang", "0.6.0", WINDOW)
    assert not check_release("SGLang", "0.5.100", WINDOW)
    with pytest.raises(UsageError, match=r"0\.5\.16 is not supported"):
        check_release("SGLang", "0.5.16", WINDOW)


def test_the_flag_reaches_the_servers_and_is_refused_without_a_real_engine(monkeypatch):
    monkeypatch.setenv(UNTESTED, "0")
    spec = resolve({"backend": {"kind": "sglang"}, "model": "meta-llama/Llama-3.1-8B"})
    assert UNTESTED not in live_backend(spec)._plugin()
    live_runs(spec.backend, LiveFlags(allow_untested=True))
    assert not check_release("SGLang", "0.6.0", WINDOW)
    assert live_backend(spec)._plugin()[UNTESTED] == "1"
    for command in (["run"], ["sweep", "--schedulers", "vtc,fcfs"]):
        refused = CliRunner().invoke(app, [*command, "--allow-untested-release"])
        assert refused.exit_code == 2
        assert "--allow-untested-release needs --backend sglang or vllm" in refused.stderr


def test_the_version_is_read_from_the_first_metadata_that_exists():
    assert installed(("no-such-distribution", "pytest")) == pytest.__version__
    assert installed(("no-such-distribution",)) == ""


def test_a_broken_import_is_named_by_its_cause(tmp_path, monkeypatch):
    (tmp_path / "broken_engine.py").write_text(
        "try:\n    import no_such_dependency\n"
        "except ImportError as error:\n    raise RuntimeError('wrapped') from error\n"
    )
    (tmp_path / "missing_part.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in ("broken_engine", "missing_part"):
        with pytest.raises(UsageError, match="No module named 'no_such_dependency'") as refused:
            check_target(f"{module}.Scheduler.start", ())
        assert str(refused.value).startswith("SGLang cannot be imported: ModuleNotFoundError")
        sys.modules.pop(module, None)


def test_a_release_that_the_plugin_does_not_fit_is_refused_before_a_server_is_started(
    tmp_path, monkeypatch
):
    metadata = tmp_path / "sglang-0.5.16.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.16\n")
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").write_text("raise AssertionError('SGLang was imported')\n")
    bench = Path(fairbench.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{bench}")
    with pytest.raises(UsageError, match=r"SGLang 0\.5\.16 is not supported"):
        SERVER_PYTHON.find_python(sys.executable)
    # the server's own policies need no plugin
    replace(SERVER_PYTHON, plugin="").find_python(sys.executable)


def test_a_missing_model_path_is_one_line():
    told = CliRunner().invoke(app, ["serve", "--dp", "1", "--model", "./no-such-model"])
    assert told.exit_code == 2
    assert told.stderr.strip() == (
        "fairbench: model = './no-such-model': there is no such folder; "
        "give an existing folder, or a name on the Hugging Face hub"
    )
