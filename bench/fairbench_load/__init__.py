"""Runs on real servers: server processes, kinds of servers (backends), and the driver.

kinds.py          the settings of each kind of server, which are the entry points of the package
runs.py           the entry of the core: checks and runs, alone, with several seeds, or of a sweep
run.py            one experiment from start to end: servers, router, driver, result
launchers.py      machines on which servers start: this machine, or hosts that a command reaches
backends/         the kinds of servers, one file for each kind, and the workers that a run starts
processes/        processes of servers: addresses, environment, readiness, restart, end
driver/           the load: sends the programs of an experiment and records the answers
drivers.py        several processes that send the load, on this machine or others (far_drivers.py)
records.py        files of records, and their conversion to the tables of a simulation
summary.py        the result of a run, computed from records; `fairbench recover`
openai.py, http_server.py     HTTP APIs of servers, for driver, router and emulator
"""
