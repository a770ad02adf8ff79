"""Test that a server that fails to start leaves no run directory, and its log is named."""

import re
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import RunFailed
from fairbench.execute.tasks import RunContext
from fairbench_load.backends.base import LiveOptions, too_small
from fairbench_load.backends.emulator import EmulatorBackend
from fairbench_load.backends.workers import live_backend
from fairbench_load.processes.servers import Recipe
from fairbench_load.stored_runs import run_live_in

ENDS = "print('no memory for the KV pool', flush=True); raise SystemExit(3)"
SGLANG = {"backend": {"kind": "sglang"}, "model": "m", "workload": "tot", "duration_s": 60.0}


def that_ends(self, number, place):
    return Recipe("worker-0", lambda ports: [sys.executable, "-c", ENDS])


def test_a_failed_start_leaves_no_directory_and_keeps_its_log(tmp_path):
    spec = resolve({"backend": {"kind": "emulator"}, "dp": 1, "num_programs": 1})
    with (
        patch.object(EmulatorBackend, "recipe", that_ends),
        pytest.raises(RunFailed, match="ended with exit code 3") as failure,
    ):
        run_live_in(tmp_path / "results" / "runs", spec, LiveOptions(), RunContext())
    assert list(tmp_path.iterdir()) == []
    log = Path(re.search(r"its log is (\S+)", str(failure.value))[1])
    assert log.read_text() == "no memory for the KV pool\n"
    log.unlink()
    log.parent.rmdir()


def test_a_pool_that_holds_no_prompt_is_refused_before_a_server_starts():
    spec = resolve(SGLANG, {"engine.max_total_tokens": 20})
    message = "engine.max_total_tokens = 20: a KV pool of 20 tokens is too small: prompts of"
    with pytest.raises(Exception, match=message):
        live_backend(spec).wanted(LiveOptions())


@pytest.mark.parametrize(("pool", "small"), [(None, False), (20, True), (20_000, False)])
def test_a_pool_is_too_small_if_it_holds_no_mean_prompt(pool, small):
    assert bool(too_small(resolve(SGLANG), pool)) is small


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        ([], "--gpu-memory-utilization"),
        (["--num-gpu-blocks-override", "9"], "--num-gpu-blocks-override"),
        (["--kv-cache-memory-bytes=9"], "--kv-cache-memory-bytes"),
    ],
)
def test_the_flag_that_set_the_pool_of_vllm_is_named(args, flag):
    spec = resolve({"backend": {"kind": "vllm", "server_args": args}, "model": "m"})
    assert live_backend(spec).served({"version": "0.32.0"}).pool_flag == flag
