"""Test that the defaults which ``--help`` shows are those of the code.

Most flags hold the value that the code uses. This file tests the others, whose value is in a module
that the declarations of flags cannot import.
"""

import inspect
from typing import get_args

import pytest

from fairbench.api.logs import NUM_RUNS as PLANNED_RUNS
from fairbench.cli.app import load
from fairbench.config.flags import COMPARE, PLAN, RUN, SWEEP
from fairbench.config.resolve import resolve
from fairbench.execute.comparison import NUM_RUNS as COMPARED_RUNS
from fairbench.schedulers.gateway.registry import DEFAULT_DETECTOR, NO_GATEWAY
from fairbench_attacks.flags import ATTACK
from fairbench_attacks.workload import Stakes
from fairbench_emulator.worker import EmulatorConfig
from fairbench_load.driver.target import DriverTarget
from fairbench_load.headers import BODY_CLIENT
from fairbench_load.kinds import Emulator, Endpoint, RealServers, SGLang
from fairbench_serve.config import RouterConfig
from fairbench_serve.flags import SERVE
from fairbench_serve.served_settings import SERVED_DETECTOR


@pytest.mark.parametrize(
    ("declared", "used"),
    [
        (RUN["gateway"].default, NO_GATEWAY),
        (RUN["saturation"].default, DEFAULT_DETECTOR),
        (SERVE["saturation"].default, SERVED_DETECTOR),
        (SERVE["client_from"].default, BODY_CLIENT),
        (RUN["tp"].default, RealServers.model_fields["tp"].default),
        (RUN["time_scale"].default, Emulator.model_fields["time_scale"].default),
        (RUN["output_lengths"].default, Endpoint.model_fields["output_lengths"].default),
        (RUN["api"].default, "generate; completions with --base-url"),
        (SGLang.model_fields["api"].default, "generate"),
        (Endpoint.model_fields["api"].default, "completions"),
        (RUN["max_tokens_field"].default, DriverTarget("http://127.0.0.1:1").max_tokens_field),
        (RUN["rate_limited"].default, DriverTarget("http://127.0.0.1:1").rate_limited),
        (RUN["longest_wait"].default, DriverTarget("http://127.0.0.1:1").longest_wait_s),
        (ATTACK["victims"].default, Stakes().victims),
        (ATTACK["multiple"].default, Stakes().multiple),
    ],
)
def test_a_default_in_help_is_the_value_of_the_code(declared, used):
    assert declared == used


@pytest.mark.parametrize(
    ("command", "option", "default"),
    [("plan", "--num-runs", f"{PLANNED_RUNS}"), ("compare", "--num-runs", f"{COMPARED_RUNS}, or")],
)
def test_help_shows_the_number_of_seeds_that_is_used(command, option, default):
    (helped,) = [one.help for one in load(command).params if option in one.opts]
    assert f"[default: {default}" in helped


def test_an_emulator_has_the_defaults_of_its_command():
    shown = {one.name: one.default for one in load("emulate").params}
    fields = inspect.signature(EmulatorConfig).parameters
    for name in ("host", "time_scale", "slowdown", "stream_interval"):
        assert shown[name] == fields[name].default, name


KEYS = ("scheduler", "dp", "workload", "scenario", "model", "seed", "burstiness")


@pytest.mark.parametrize("table", [RUN, COMPARE, PLAN, SWEEP])
def test_every_table_shows_the_default_experiment(table):
    spec = resolve({})
    used = {**dict(spec), "workload": spec.workload.name}
    shown = {key: table[key].default for key in KEYS if key in table}
    assert shown == {key: used[key] for key in shown}
    assert spec.gpu.startswith(f"{RUN['gpu'].default}")


def test_the_limits_of_a_router_are_those_of_serve():
    fields = inspect.signature(RouterConfig).parameters
    assert (fields["max_queue"].default, fields["stall_s"].default) == (10_000, 120.0)
    assert SERVE["backend"].default in get_args(SGLang.model_fields["kind"].annotation)
