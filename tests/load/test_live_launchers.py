"""Test servers that a user's command starts on other hosts; ``env ... sh -c`` is our ``ssh``."""

import json
import os
import signal
import sys

import pyarrow.parquet as pq
import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.execute.executors import LAUNCHERS, LauncherFlags
from fairbench_load import launchers
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import check_live, live_backend
from fairbench_load.launchers import CommandLauncher, Wanted
from fairbench_load.options import launcher_named
from fairbench_load.processes.environment import ServerPython
from fairbench_load.processes.process import LocalPlace
from tests.load.live_cli import descendants, lines, only, running, wait_until
from tests.load.live_recipes import places_of

STAND_IN = "env FAIRBENCH_TEST_HOST={host} sh -c"
HOSTS = ["--launcher", "command", "--hosts", "localhost,127.0.0.1", "--launch-command", STAND_IN]
EMULATED = ["run", "--backend", "emulator", "--dp", "3", "--workload", "chat", "--scenario", "none"]
SHORT = [*EMULATED, "--clients", "3", "--num-programs", "1", "--time-scale", "8"]


def by_command(hosts="localhost", command=STAND_IN):
    return launcher_named("command", LauncherFlags(hosts=hosts, launch_command=command))


@pytest.mark.parametrize(
    ("name", "flags", "says"),
    [
        ("rya", {}, "unknown launcher 'rya'"),
        ("local", {"hosts": "a"}, "--hosts a: needs --launcher command"),
        ("command", {"ray_address": "a:1"}, "--ray-address a:1: needs --launcher ray"),
        ("command", {}, "--launcher command needs --hosts A,B,..."),
        ("command", {"hosts": "a,b c"}, "--hosts 'b c': must be the name or the address of a host"),
        ("command", {"hosts": "a,,b"}, "--hosts '': must be the name or the address of a host"),
        (
            "command",
            {"hosts": "-oProxyCommand=id"},
            "--hosts '-oProxyCommand=id': must be the name",
        ),
        ("command", {"hosts": "a", "launch_command": "ssh n1"}, "must contain {host}"),
        ("command", {"hosts": "a", "launch_command": "ssh 'n1"}, "--launch-command ssh 'n1: No"),
    ],
)
def test_a_wrong_launcher_is_one_line(name, flags, says):
    with pytest.raises(UsageError) as caught:
        launcher_named(name, LauncherFlags(**flags))
    assert says in str(caught.value)


def test_every_flag_of_launchers_has_an_owner():
    assert set(LauncherFlags._fields) == set().union(*LAUNCHERS.values())


def test_a_simulation_or_an_endpoint_starts_no_servers():
    options = LiveOptions(launcher=by_command())
    for backend in (None, {"kind": "endpoint", "base_url": "http://h:1"}):
        spec = resolve({} if backend is None else {"backend": backend})
        with pytest.raises(UsageError, match="--launcher needs --backend"):
            check_live(spec, options)
    check_live(resolve({"backend": {"kind": "emulator"}}), options)


@pytest.mark.slow
def test_hosts_alternate_and_replicas_of_one_host_have_separate_gpus():
    wanted = Wanted(5, gpus=2)
    with places_of(by_command("localhost,127.0.0.1"), wanted) as places:
        assert [place.host for place in places] == ["localhost", "127.0.0.1"] * 2 + ["localhost"]
        gpus = [place.environment["CUDA_VISIBLE_DEVICES"] for place in places]
        assert gpus == ["0,1", "0,1", "2,3", "2,3", "4,5"]
        assert len(set(places[0].free_ports(9))) == 9
    with places_of(by_command(), Wanted(1, gpus=2)) as (place,):
        assert place.environment == {}


def test_an_unreachable_hosts_command_output_is_reported(tmp_path):
    wanted = Wanted(1)
    for command, says in (
        (
            "sh -c 'echo no route to {host} >&2; exit 255'",
            "cannot be run on this host: no route to n1",
        ),
        ("/no/such/ssh {host}", "/no/such/ssh: No such file or directory"),
        ("true {host}", "said nothing"),
        ("sh -c 'echo 7' {host}", "said nothing"),
        ("sh -c 'echo [[[' {host}", "said nothing"),
        (r"sh -c 'printf \\344\\n; printf \\344h >&2' {host}", "host: \ufffdh"),
    ):
        with pytest.raises(UsageError, match=says), places_of(by_command("n1", command), wanted):
            pass


def test_a_host_is_asked_in_a_separate_session():
    """In a shared session, Ctrl-C would reach ``ssh``, and the run would report a lost host."""
    sessions = "sh -c 'cut -d\\  -f6 /proc/self/stat >&2' {host}"
    with pytest.raises(UsageError) as caught, places_of(by_command("n1", sessions), Wanted(1)):
        pass
    assert int(str(caught.value).split()[-1]) != os.getsid(0)


def test_the_variable_that_names_the_python_of_an_engine_also_holds_on_hosts(monkeypatch):
    monkeypatch.setenv("THEIR_PYTHON", "/no/such/python")
    engine = ServerPython(("sglang", "fairbench"), "", "THEIR_PYTHON")
    says = "/no/such/python cannot be run on this host:"
    with pytest.raises(UsageError, match=says), places_of(by_command(), Wanted(1, engine)):
        pass


def test_hosts_with_other_versions_are_refused(monkeypatch):
    assert launchers.versions("pytest")["pytest"] == pytest.__version__
    here, engine = launchers.versions(), Wanted(2, ServerPython(("sglang", "fairbench"), "", ""))
    alike = {"host a": here | {"sglang": "1"}, "host b": here | {"sglang": "1"}}
    launchers.check_alike(alike, engine)
    other = {"host a": here | {"sglang": "1"}, "host b": here | {"sglang": "2"}}
    with pytest.raises(UsageError, match=r"sglang is 2 on host b, but 1 on host a; install"):
        launchers.check_alike(other, engine)
    foreign = {"host a": here | {"Python": "2.7"}}
    launchers.check_alike(foreign, engine)  # an engine has its own Python
    with pytest.raises(UsageError, match=r"Python is 2\.7 on host a, but 3"):
        launchers.check_alike(foreign, Wanted(1))
    with pytest.raises(UsageError, match=r"fairbench is 0 on host a, but .* here"):
        launchers.check_alike({"host a": {**here, "fairbench": "0"}}, engine)


def test_servers_on_other_hosts_listen_where_they_are_reached():
    place = LocalPlace("python-there", {"CUDA_VISIBLE_DEVICES": "3"}, "10.0.0.7", "0.0.0.0")
    for kind in ("emulator", "sglang", "vllm"):
        model = {} if kind == "emulator" else {"model": "m"}
        backend = live_backend(resolve({"backend": {"kind": kind}, **model}))
        recipe = backend.recipe(4, place)
        command = recipe.command([1, 2, 3])
        assert (recipe.name, command[0]) == ("worker-4", "python-there")
        assert command[command.index("--host") + 1] == "0.0.0.0"
        assert recipe.environment["CUDA_VISIBLE_DEVICES"] == "3"
        assert recipe.kv_events.format(host=place.host, port=2) == "tcp://10.0.0.7:2"
        assert "127.0.0.1" not in " ".join(command)


def rows(path):
    """Return requests and answers without times."""
    names = ["client", "program_id", "depth", "input_tokens", "output_tokens", "status"]
    table = pq.read_table(path / "requests.parquet", columns=names)
    return sorted(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.slow
def test_a_run_on_hosts_equals_a_local_run(tmp_path):
    for name, flags in (("here", []), ("there", HOSTS)):
        with running(*SHORT, *flags, "--result-dir", tmp_path / name) as process:
            _, stderr = process.communicate()
        assert (process.returncode, stderr) == (0, "")
    here, there = (only(tmp_path / name) for name in ("here", "there"))
    assert rows(here) == rows(there)
    assert json.loads((there / "manifest.json").read_text())["hosts"] == [
        *("localhost", "127.0.0.1", "localhost")
    ]
    assert "hosts" not in json.loads((here / "manifest.json").read_text())
    for number in range(3):
        assert "http://" in (there / "live" / f"worker-{number}.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [[], ["--num-runs", "2"]])
def test_hosts_that_do_not_answer_are_one_line_and_no_process_remains(tmp_path, repeats):
    nobody = ["--launcher", "command", "--hosts", "n1", "--launch-command", "false {host}"]
    with running(*SHORT, *nobody, *repeats, "--result-dir", tmp_path) as process:
        stdout, stderr = process.communicate()
    assert (process.returncode, stdout, stderr.count("\n")) == (2, "", 1)
    assert stderr.startswith("fairbench: --hosts n1: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_process_on_a_host_outlives_the_command(tmp_path, signum):
    """``running`` fails if a process survives. ``ssh`` itself cannot be killed for this test."""
    long = [*EMULATED, "--duration", "20000", *HOSTS]
    with running(*long, "--result-dir", tmp_path) as process:
        records = "*/live/requests.jsonl"
        wait_until(lambda: any(lines(path) > 3 for path in tmp_path.glob(records)), process)
        assert len(descendants(process.mark)) > 9
        os.kill(process.pid, signum)
        process.communicate()
    assert process.returncode == (130 if signum == signal.SIGINT else -signum)


def test_the_command_gets_the_line_as_one_word():
    launcher = CommandLauncher(["n1"], ["sh", "-c", "echo {host}; exit 3", "{host}"])
    (reach,) = launcher._reaches
    line = reach.line(["python", "a b"], {"KEY": "x y"})
    assert line[-1] == "env 'KEY=x y' python 'a b'"
    assert line[:-1] == ["sh", "-c", "echo n1; exit 3", "n1"]
    assert sys.executable not in line
