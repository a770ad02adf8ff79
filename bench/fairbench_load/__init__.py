"""Runs on real servers: server processes, kinds of servers (backends), and the driver.

run.py            one experiment from start to end: servers, router, driver, result
launchers.py      machines on which servers start: this machine, or hosts that a command reaches
backends/         the kinds of servers, one file for each kind, and the workers that a run starts
processes/        processes of servers: addresses, environment, readiness, restart, end
driver/           the load: sends the programs of an experiment and records the answers
records.py        files of records, and their conversion to the tables of a simulation
summary.py        the result of a run, computed from records; `fairbench recover`
openai.py, http_server.py     HTTP APIs of servers, for driver, router and emulator
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_load.backends.base import LiveOptions as LiveOptions
    from fairbench_load.backends.workers import check_live as check_live
    from fairbench_load.backends.workers import same_workers as same_workers
    from fairbench_load.driver.target import DriverTarget as DriverTarget
    from fairbench_load.launchers import CommandLauncher as CommandLauncher
    from fairbench_load.launchers import LocalLauncher as LocalLauncher
    from fairbench_load.processes.environment import require_live_extra as require_live_extra
    from fairbench_load.server_facts import get_json as get_json
    from fairbench_load.summary import recover as recover

__getattr__ = lazy_names(
    __name__,
    {
        "backends.base": "LiveOptions",
        "backends.workers": "check_live same_workers",
        "driver.target": "DriverTarget",
        "launchers": "CommandLauncher LocalLauncher",
        "processes.environment": "require_live_extra",
        "server_facts": "get_json",
        "summary": "recover",
    },
)
