"""Emulated workers and a router, each in its own process, driven like a user's run."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairbench.files.formats import toml_value
from fairbench.hardware.catalogue import load_profile
from fairbench_load.backends.base import Served
from fairbench_load.driver.drive import drive
from fairbench_load.driver.target import DriverTarget
from fairbench_load.records import read_records, tables_of
from fairbench_load.summary import summary_of

FAIRBENCH = [sys.executable, "-m", "fairbench"]
VOCAB = range(16, 32_000)


@dataclass
class Server:
    """A process, and the address that it printed when it was ready."""

    process: subprocess.Popen
    address: str


@contextmanager
def server(*arguments):
    """Run one of fairbench's servers, and kill it at the end."""
    process = subprocess.Popen(
        [*FAIRBENCH, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    try:
        address = process.stdout.readline().strip()
        assert address, f"{arguments} did not start"
        yield Server(process, address)
    finally:
        process.kill()
        process.communicate()


def settings_of(spec, *parts):
    """Return ``--set`` flags for every parameter of these parts."""
    return [
        flag
        for key, value in spec.settings.items()
        if key.partition(".")[0] in parts
        for flag in ("--set", f"{key}={toml_value(value)}")
    ]


def emulator_flags(spec, **flags):
    """Return the flags that start a worker of this spec."""
    more = [
        part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    return [
        *("emulate", "--port", 0, "--kv-events-port", 0, "--gpu", spec.gpu, "--local", spec.local),
        *settings_of(spec, "engine", spec.local),
        *more,
    ]


@contextmanager
def emulated_cluster(spec, **flags):
    """Yield ``(workers, router)`` of a spec."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(server(*emulator_flags(spec, **flags))) for _ in range(spec.dp)
        ]
        urls = [part for worker in workers for part in ("--worker-url", worker.address)]
        router = stack.enter_context(
            server(
                "serve",
                "--port",
                0,
                "--router",
                spec.router,
                "--no-client-limit",  # as in the simulator
                *urls,
                *settings_of(spec, spec.router),
            )
        )
        yield workers, router


def run_emulated(spec, folder: Path, router, *, time_scale=1.0, **options):
    """Send the load of a spec to the router. Return records and summary."""
    target = DriverTarget(router.address, lengths="header", time_scale=time_scale)
    result = asyncio.run(drive(spec, target, folder, vocab=VOCAB, **options))
    records = read_records(folder)
    tables = tables_of(records, [plan.client for plan in spec.client_plans()])
    profile = load_profile(spec.gpu)
    served = Served("emulator", emulated=True, timing_profile=spec.gpu, timing_grade=profile.grade)
    return records, summary_of(spec, records, tables, result, served)
