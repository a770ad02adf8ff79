"""Test that secrets among server flags are hidden."""

import pytest

from fairbench.config.backend import is_secret, without_secrets
from fairbench.config.resolve import resolve
from fairbench.config.spec import identity, to_toml
from fairbench.config.sweep import make_sweep, sweep_toml
from fairbench.errors import UsageError
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import check_live
from fairbench_load.kinds import check_given

SECRET = "sk-do-not-store"


@pytest.mark.parametrize(
    "flag", ["--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password", "--API_KEY"]
)
def test_secret_flags_are_recognised(flag):
    assert is_secret(flag)
    assert without_secrets([flag, SECRET, "--x", "1"]) == [flag, "***", "--x", "1"]
    assert without_secrets([f"{flag}={SECRET}", "y"]) == [f"{flag}=***", "y"]


@pytest.mark.parametrize(
    "flag", ["--max-total-tokens", "--tokenizer-path", "--chunked-prefill-size", "--ssl-keyfile"]
)
def test_flags_that_are_not_secret_are_unchanged(flag):
    assert without_secrets([flag, "1"]) == [flag, "1"]


def test_a_flag_without_a_value_hides_no_other_flag():
    assert without_secrets(["--api-key", "--x", "1"]) == ["--api-key", "--x", "1"]


def spec(*args, kind="emulator"):
    model = {} if kind == "emulator" else {"model": "models/tiny"}
    return resolve({"backend": {"kind": kind, "server_args": [*args]}, "dp": 2} | model, {})


def test_an_experiment_is_stored_without_secrets_and_its_servers_get_them():
    one = spec("--api-key", SECRET, "--slowdown", "2")
    stored = to_toml(one)
    assert SECRET not in stored
    assert "--slowdown" in stored
    assert identity(one) == identity(spec("--api-key", "another", "--slowdown", "2"))
    assert SECRET in one.backend.server_args


def test_secrets_in_router_commands_are_hidden():
    command = ["sh", "{port}", "{worker_urls}", "--api-key", SECRET]
    one = resolve({"backend": {"kind": "emulator", "router_command": command}})
    assert SECRET not in to_toml(one)
    assert one.backend.external_router == command
    check_live(one, LiveOptions())
    stored = [*command[:-1], "***"]
    again = resolve({"backend": {"kind": "emulator", "router_command": stored}})
    with pytest.raises(
        UsageError, match="router_command: --api-key is secret and was not stored; give it"
    ):
        check_live(again, LiveOptions())


def test_secrets_in_sweeps_are_hidden():
    args = ["--api-key", SECRET]
    base = {"workload": "chat", "backend": {"kind": "emulator", "server_args": args}}
    grid = [{"backend.server_args": [args, [f"--api-key={SECRET}"]]}]
    try:
        sweep = make_sweep({"name": "s", "base": base, "grid": grid})
    except UsageError:
        sweep = make_sweep({"name": "s", "base": base, "grid": [{"seed": [0, 1]}]})
    assert SECRET not in sweep_toml(sweep)


@pytest.mark.parametrize("args", [["--api-key", "***"], ["--api-key=***"]])
@pytest.mark.parametrize("kind", ["emulator", "sglang", "vllm"])
def test_without_its_secrets_no_server_is_started(kind, args):
    with pytest.raises(UsageError, match="--api-key is secret and was not stored; give it again"):
        check_live(spec(*args, kind=kind), LiveOptions())
    for fine in ([], ["--api-key", SECRET, "***"], ["--x"]):
        check_given(fine)
