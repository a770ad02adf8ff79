"""Test that the line of a server's log that has the cause explains why the server ended."""

import sys
import textwrap

import pytest

from fairbench_engines.vllm import __main__ as vllm_main
from fairbench_load.processes.process import ServerProcess, cause_of

FILLER = "\n".join(f'(APIServer pid=7)   File "core.py", line {n}, in call' for n in range(124))

VLLM = f"""
(APIServer pid=7) INFO 11-28 19:00:00 [utils.py:233] non-default args: {{}}
(EngineCore_DP0 pid=9) ERROR 11-28 19:00:09 [core.py:866] EngineCore failed to start.
(EngineCore_DP0 pid=9) ERROR 11-28 19:00:09 [core.py:866] Traceback (most recent call last):
(EngineCore_DP0 pid=9) ERROR 11-28 19:00:09 [core.py:866]   File "core.py", line 3, in run
(EngineCore_DP0 pid=9) ERROR 11-28 19:00:09 [core.py:866] ValueError: No memory for the cache.
(EngineCore_DP0 pid=9) Process EngineCore_DP0:
(APIServer pid=7) Traceback (most recent call last):
{FILLER}
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
nanobind: leaked 2 instances!
"""

SGLANG = """
[2026-11-28 19:00:00 TP0] Load weight begin. avail mem=70.0 GB
[2026-11-28 19:00:03 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 1, in run_scheduler_process
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.

[2026-11-28 19:00:03] Received sigquit from a child process. It usually means the child failed.
"""

INVALID = "(APIServer pid=7) pydantic_core.ValidationError: 1 validation error for A\n"
INVALID += "(APIServer pid=7)   Value error, too long\n(APIServer pid=7)     For more see x\n"
USAGE = "usage: vllm serve [model_tag]\nvllm serve: error: unrecognized arguments: --schedule\n"
OURS = "INFO 11-28 19:00:00 [a.py:1] x\nfairbench: vLLM 0.99 is not supported\n(APIServer) ends\n"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (VLLM, "ValueError: No memory for the cache."),
        (SGLANG, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (INVALID, "pydantic_core.ValidationError: 1 validation error for A: Value error, too long"),
        (USAGE, "vllm serve: error: unrecognized arguments: --schedule"),
        (OURS, "vLLM 0.99 is not supported"),
        ("starting\nno memory for the KV pool\n", "no memory for the KV pool"),
        ("ModuleNotFoundError: No module named 'x\x1b'\n\n", None),
        ("", ""),
    ],
)
def test_the_cause_is_found_above_what_followed_from_it(log, cause):
    expected = "ModuleNotFoundError: No module named 'x\\x1b'" if cause is None else cause
    assert cause_of(log) == expected


@pytest.mark.parametrize(
    "said", ["Failed to infer device type, please set", "No CUDA GPUs are available"]
)
def test_without_a_gpu_the_cause_says_what_a_cpu_needs(said):
    cause = cause_of(f"{FILLER}\nRuntimeError: {said}\nasyncio.exceptions.CancelledError: x\n")
    assert cause.startswith(f"RuntimeError: {said}; without a GPU, use an engine built for CPUs")


def test_the_message_of_a_killed_process_wins_over_later_noise():
    killed = "EngineCore_DP0 was killed by signal 9 (SIGKILL)"
    assert cause_of(f"{VLLM}\nfairbench: {killed}\nnanobind: leaked\n") == killed


STARTS_A_CHILD = textwrap.dedent("""
    import multiprocessing, os, signal, sys, time

    def core():
        time.sleep(60)

    if __name__ == "__main__":
        core = multiprocessing.get_context("fork").Process(target=core, name="EngineCore_DP0")
        core.start()
        os.kill(core.pid, getattr(signal, sys.argv[1]))
        core.join()
        print("nanobind: leaked")
""")


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("SIGKILL", 137, "EngineCore_DP0 was killed by signal 9 (SIGKILL)"),
        ("SIGSEGV", 139, "EngineCore_DP0 was killed by signal 11 (SIGSEGV)"),
        ("SIGTERM", 0, "nanobind: leaked"),
    ],
)
def test_a_killed_engine_core_is_named_with_its_signal(tmp_path, name, code, said):
    folder = tmp_path / "vllm" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    for one in (folder, folder.parent, folder.parent.parent):
        (one / "__init__.py").touch()
    (folder / "api_server.py").write_text(STARTS_A_CHILD)
    log = tmp_path / "worker-0.log"
    command = [sys.executable, "-m", vllm_main.__name__, name]
    process = ServerProcess(command, log, environment={"PYTHONPATH": str(tmp_path)})
    process._reaper.wait(60)
    assert (process.exit_code, process.cause()) == (code, said)
    process.stop()
