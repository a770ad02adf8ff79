"""Kill sweeps and continue them.

    python -m tests.soak.kills KILLS [SEED]

At a random moment after a further point has finished, the command gets SIGKILL, SIGINT or SIGTERM.
Finished points must stay stored byte for byte, and no process may continue. A completed sweep must
have each point once, with the records of a sweep that was never killed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq

from fairbench.results.store import SweepStore
from tests.load.live_cli import MARK, lasting

FAIRBENCH = [sys.executable, "-m", "fairbench"]
SIGNALS = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}
POINTS = 24  # points of a sweep
LATEST_S = 0.5  # latest kill in seconds after a point has finished
PATIENCE_S = 3600.0  # long, because the machine may be busy
TABLES = ("requests", "programs", "service")


def sweep_file(folder, number):
    """Return a sweep of small points, distinct for each number."""
    seeds = list(range(6 * number, 6 * number + 6))
    file = folder / f"killed-{number}.toml"
    file.write_text(
        '[base]\nworkload = "chat"\nscenario = "s1"\ndp = 2\nnum_programs = 6\n'
        f'[[grid]]\nscheduler = ["fcfs", "vtc", "dlpm", "d2lpm"]\nseed = {seeds}\n'
    )
    return file


def done_in(store):
    """Return a digest of each finished point's records, by the name of its directory."""
    found = {}
    for manifest in store.runs.glob("[!.]*/manifest.json"):  # a hidden directory is being written
        try:
            whole = json.loads(manifest.read_text()).get("complete") is True
        except (OSError, ValueError):
            continue
        if whole:
            tables = [(manifest.parent / f"{name}.parquet").read_bytes() for name in TABLES]
            found[manifest.parent.name] = sha256(b"".join(tables)).hexdigest()
    return found


class Killer:
    """A killer that runs one sweep after the other until ``left`` kills have been made."""

    def __init__(self, folder, left, seed, tell):
        self.folder, self.left, self.tell = folder, left, tell
        self.draw = random.Random(seed)
        self.ends, self.wrong, self.points = Counter(), [], 0

    def sweep(self, number):
        """Run one sweep to its end, killing it again and again."""
        file, store = sweep_file(self.folder, number), SweepStore(self.folder / f"killed-{number}")
        before = {}
        while True:
            begin = ["--resume", store.path] if before else [file, "--result-dir", self.folder]
            code = self.command(["sweep", *begin], store, before)
            now = done_in(store)
            lost = {name for name, digest in before.items() if now.get(name) != digest}
            self.wrong += [f"lost or changed: {lost}"] if lost else []
            if code == 0:
                break
            before = now
        self.points += len(now)
        if len(list(store.runs.iterdir())) != POINTS or len(store.finished()) != POINTS:
            self.wrong.append(f"{len(now)} runs of {len(store.finished())} points, not {POINTS}")
        self.compare(file, store)

    def command(self, arguments, store, before):
        """Run the command, and kill it after a new point. Return its exit code if it ends first."""
        mark = f"{self.draw.getrandbits(64):x}"
        process = subprocess.Popen(
            [*FAIRBENCH, *map(str, arguments)],
            env=os.environ | {MARK: mark},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            over = time.monotonic() + PATIENCE_S
            while self.left and process.poll() is None and not done_in(store).keys() - before:
                assert time.monotonic() < over, "no point has finished"
                time.sleep(0.02)
            killed = self.left > 0 and process.poll() is None
            if killed:
                time.sleep(self.draw.uniform(0, LATEST_S))
                by = self.draw.choice(list(SIGNALS))
                process.send_signal(by)
            _, stderr = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        orphans = lasting(mark)
        if "Traceback" in stderr or orphans:
            self.wrong.append(f"{arguments}: left {orphans}, said {stderr[-3000:]}")
        if not killed or process.returncode == 0:  # the signal came too late
            self.wrong += [] if process.returncode == 0 else [f"{process.returncode}: {stderr}"]
            return process.returncode
        if process.returncode != SIGNALS[by]:
            self.wrong.append(f"{by.name}: exit code {process.returncode}, {stderr[-3000:]}")
        self.left -= 1
        self.ends[by.name] += 1
        self.tell(f"{sum(self.ends.values())} kills, {len(done_in(store))} points of this sweep")
        return process.returncode

    def compare(self, file, store):
        """Compare with a sweep that was not killed."""
        parent = self.folder / "calm"
        command = [*FAIRBENCH, "sweep", str(file), "--result-dir", str(parent)]
        subprocess.run(command, check=True, capture_output=True)
        calm = SweepStore(parent / store.path.name).finished()
        for identity, run in store.finished().items():
            for name in TABLES:
                ours = pq.read_table(run.path / f"{name}.parquet").to_pylist()
                theirs = pq.read_table(calm[identity].path / f"{name}.parquet").to_pylist()
                if repr(ours) != repr(theirs):  # NaN equals NaN here
                    self.wrong.append(f"{run.path}: other {name} than without a kill")


def kills(count, seed, *, tell=lambda text: None):
    """Make ``count`` kills. Return observations by name, with errors in ``wrong``."""
    with tempfile.TemporaryDirectory() as name:
        killer, number = Killer(Path(name), count, seed, tell), 0
        while killer.left:
            killer.sweep(number)
            number += 1
    return {
        "kills": dict(killer.ends),
        "sweeps": number,
        "points": killer.points,
        "wrong": killer.wrong,
    }


def main(count, seed):
    told = kills(count, seed, tell=lambda text: print(text, flush=True))
    print(json.dumps(told, indent=1))
    return 1 if told["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, [*sys.argv[1:], 0][:2])))
