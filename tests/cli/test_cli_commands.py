"""Test the list of commands, their loading on first use, and shell completion."""

import os
import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fairbench.cli.app import FIRST, GROUPS, PANELLED, app, commands, load, panel_of
from fairbench.config.parse_flags import COMMON, OTHER, PANELS

COMMAND = [sys.executable, "-c", "from fairbench.cli.main import main; main()"]


COMMANDS = commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_list_shows_the_first_line_of_each_help(name):
    listed, loaded = get_command(app).commands[name], load(name)
    assert (listed.name, loaded.name) == (name, name)
    assert listed.get_short_help_str(1000) == loaded.get_short_help_str(1000)
    assert COMMANDS[name].about == listed.get_short_help_str(1000)
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    assert f" {name} [OPTIONS]" in shown.splitlines()[0]
    assert "--install-completion" not in shown


HEAVY = (
    "fairbench.config.spec",
    "fairbench.sim.",
    "fairbench.report.run_table",
    "fairbench.report.table",
    "fairbench.results.store",
)


# Print each command's help in its own process, which has imported nothing but the entry point.
HELP = """
import os, sys
from fairbench.cli.main import main
for name in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0, name
        continue
    sys.argv[1:] = [name, "--help"]
    try:
        main()
    finally:
        print(name, *sys.modules, file=sys.stderr, flush=True)
        os._exit(0)
"""


@pytest.mark.slow
def test_help_imports_nothing_that_a_run_needs():
    names = [name for name in COMMANDS if name != "reproduce"]  # a wheel lacks the studies
    done = subprocess.run(
        [sys.executable, "-c", HELP, *names], capture_output=True, text=True, check=True
    )
    told = {line.split()[0]: set(line.split()[1:]) for line in done.stderr.splitlines()}
    assert list(told) == names
    for name, modules in told.items():
        ours = [module for module in modules if module.startswith("fairbench.")]
        assert len(ours) < 90, (name, sorted(ours))  # a run imports more than 400
        assert [module for module in ours if module.startswith(HEAVY)] == [], name
        assert not modules & {"pyarrow", "ray", "aiohttp", "scipy", "matplotlib", "rich.live"}, name


RUN = ("run", "--workload", "chat", "--num-programs", "1", "--disable-tqdm", "--result-dir")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (f"from fairbench.cli.main import main; sys.argv[1:1] = {RUN!r}; main()", ()),
        (
            "import fairbench; fairbench.run(workload='chat', num_programs=1)",
            ("fairbench.cli", "typer"),
        ),
    ],
)
def test_a_simulated_run_imports_only_needed_modules(tmp_path, code, absent):
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    command = [sys.executable, "-c", report + code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = done.stderr.split()
    ours = [module for module in modules if module.split(".")[0] == "fairbench"]
    assert len(ours) <= 184, sorted(ours)
    unwanted = ("fairbench_load.", "fairbench_logs.", "fairbench.workloads.traces.read", *absent)
    assert not [one for one in modules if one.startswith(unwanted)]


# Print every fairbench module in which a function was called outside of an import.
CALLED = """
import atexit, sys
called = set()
def note(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    if event != "call" or name in called or not name.startswith("fairbench."):
        return
    if frame.f_code.co_filename == "<string>":  # methods that dataclasses make
        return
    outer = frame
    while outer is not None and outer.f_code.co_name != "<module>":
        outer = outer.f_back
    if outer is None or outer.f_globals["__name__"] == "__main__":
        called.add(name)
atexit.register(lambda: print(*called, file=sys.stderr))
sys.setprofile(note)
"""


@pytest.mark.parametrize(
    ("code", "most"),
    [
        (f"from fairbench.cli.main import main; sys.argv[1:1] = {RUN!r}; main()", 106),
        ("import fairbench; fairbench.run(workload='chat', num_programs=1)", 90),
    ],
)
def test_a_simulated_run_executes_only_needed_code(tmp_path, code, most):
    command = [sys.executable, "-c", CALLED + code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    called = done.stderr.split()
    assert "fairbench.sim.run" in called
    assert len(called) <= most, sorted(called)


@pytest.mark.parametrize("name", PANELLED)
def test_the_help_shows_every_flag_once_in_a_panel(name):
    command = load(name)
    shown = CliRunner().invoke(app, [name, "--help"]).stdout
    sections = re.findall(r"(?m)^(\S.*):$", shown)
    assert [one for one in sections if one in PANELS] == [
        panel for panel in PANELS if any(panel_of(param) == panel for param in command.params)
    ]
    flags = [param for param in command.params if param.param_type_name == "option"]
    for param in flags:
        assert len(re.findall(rf"(?m)^  {re.escape(param.opts[0])}(?![-\w])", shown)) == 1


def test_only_help_is_outside_the_panels_of_run():
    others = [param.name for param in load("run").params if panel_of(param) == OTHER]
    assert others == ["experiment_file"]  # an argument, which has its own section


def test_the_flags_that_help_shows_first_are_the_common_ones():
    assert len(FIRST) == len(set(FIRST))
    known = {param.name: param for name in PANELLED for param in load(name).params}
    assert {panel_of(known[name]) for name in FIRST} == {COMMON}


def test_the_help_lists_every_command():
    shown = CliRunner().invoke(app, ["--help"]).stdout
    listed = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)
    assert re.findall(r"^(\w.*):$", shown, re.M)[1:] == list(GROUPS)
    assert max(map(len, shown.splitlines())) <= 80


def test_each_command_has_one_line_of_help():
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [name for name, one in COMMANDS.items() if one.about not in shown] == []
    assert "--install-completion" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fairbench s", {"show", "sweep", "serve", "score"}),
        ("fairbench run --schedule-", {"--schedule-policy", "--schedule-conservativeness"}),
        ("fairbench baseline u", {"update"}),
        ("fairbench list pro", {"profiles"}),
    ],
)
def test_a_shell_completes_commands_and_flags(words, expected):
    asked = {
        "_FAIRBENCH_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "import sys; sys.argv[0] = 'fairbench'\n" + COMMAND[2]
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == expected
