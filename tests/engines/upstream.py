"""Copies of engines with our upstream patches, and a comparison of their decisions.

``python -m tests.engines.upstream ENGINE SEED...`` runs in a patched copy. It compares every
decision of the engine's own classes with the simulator's, and prints its findings as JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATCHES = {
    "sglang": ROOT / "examples/upstream/sglang-dlpm.patch",
    "vllm": ROOT / "examples/upstream/vllm-vtc.patch",
}
STRIPPED = {"sglang": 2, "vllm": 1}  # folders above the package in a patch's paths
TESTS = {
    "sglang": "registered/unit/managers/test_deficit_counters.py",
    "vllm": "tests/v1/core/test_fair_queue.py",
}
QUANTUM = 30


def patched_files(engine):
    """Yield each file of a patch: path below the package's parent, added lines, whether new."""
    for part in PATCHES[engine].read_text().split("diff --git ")[1:]:
        head, *lines = part.splitlines()
        path = head.split(" b/")[1].split("/", STRIPPED[engine] - 1)[-1]
        is_new = any(line.startswith("new file") for line in lines)
        added = [line[1:] for line in lines if line.startswith("+") and line[:3] != "+++"]
        yield path, "\n".join(added) + "\n", is_new


def patched_copy(engine, folder):
    """Copy the installed package to a folder with its patch. Unchanged files are links."""
    package = Path(find_spec(engine).submodule_search_locations[0])
    shutil.copytree(
        package,
        folder / engine,
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for path, _, is_new in patched_files(engine):
        if not is_new:
            (folder / path).unlink()
            shutil.copyfile(package.parent / path, folder / path)
    patch = ["git", "apply", "--check", f"-p{STRIPPED[engine]}", str(PATCHES[engine])]
    for command in (patch, [one for one in patch if one != "--check"]):
        subprocess.run(command, cwd=folder, check=True)
    return folder


def run_patched(folder, *arguments):
    """Return the output of this interpreter when it imports the patched package."""
    paths = [str(folder), str(ROOT / "bench"), str(ROOT)]
    paths += filter(None, [os.environ.get("PYTHONPATH")])  # tells the release of an unpacked wheel
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


class Patched:
    """The part of SGLang's ``process_batch_result`` that ``RealEngine`` leaves out."""

    def by_target(self):
        return {}

    def results(self, original, scheduler, batch, result):
        scheduler.policy.deficit_counters.charge_output(batch.reqs)


def compare_sglang(seed, quantum=QUANTUM):
    """Compare a patched SGLang under ``dlpm`` with the simulator. Return what occurred."""
    from tests.sim import sglang_streams as streams

    stream = streams.random_stream(seed)
    stream.limit = 10_000  # above this, SGLang's policies match no prefixes
    settings = {"dlpm_quantum": quantum}
    theirs = streams.ask_sglang("dlpm", stream, Patched(), settings=settings)
    ours = streams.ask_ours("dlpm", {"dlpm.quantum": QUANTUM}, stream)
    streams.assert_alike(theirs, ours, stream)
    return _seen(theirs.values(), "prefills", "retracted", "evicted")


def compare_vllm(seed, policy="fair", local="vtc"):
    """Compare a patched vLLM with the simulator. Return what occurred."""
    from tests.sim import vllm_plugin_streams as plugin
    from tests.sim import vllm_streams as streams

    stream = streams.random_stream(seed)
    stream.policy = policy
    theirs = streams.ask_vllm(stream)
    ours = plugin.ask_ours(stream, local, {}) if local else streams.ask_ours(stream)
    streams.assert_alike(theirs, ours, stream)
    return _seen(theirs.values(), "scheduled", "hits", "preempted")


def _seen(steps, *names):
    seen = Counter()
    for step in steps:
        seen.update({name: len(getattr(step, name)) for name in names})
    return seen


def differences(compare, seeds):
    """Return the number of streams in which a comparison fails."""
    failed = 0
    for seed in seeds:
        try:
            compare(seed)
        except AssertionError:
            failed += 1
    return failed


def main(engine, *seeds):
    seeds = [int(seed) for seed in seeds]
    few = seeds[:8]
    if engine == "sglang":
        seen = sum(map(compare_sglang, seeds), Counter())
        other = differences(lambda seed: compare_sglang(seed, 10_000), few)
    else:
        seen = sum(map(compare_vllm, seeds), Counter())
        for policy in ("fcfs", "priority"):  # these decide as without the patch
            for seed in few:
                compare_vllm(seed, policy, None)
        other = differences(lambda seed: compare_vllm(seed, "fcfs"), few)
    print(json.dumps(seen | {"differences of another policy": other}))


if __name__ == "__main__":
    main(*sys.argv[1:])
