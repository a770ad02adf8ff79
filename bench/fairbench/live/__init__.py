"""Real servers: engines with fairbench's schedulers, a router in front, and a load driver.

run.py            one experiment from start to end: servers, router, driver, result
backends/         servers of a run: one file for each kind, and the workers that are started
launchers/        places where servers start: this machine, or hosts that a command reaches
processes/        processes of servers and of the router: ports, GPUs, readiness, restart, end
plugins/          fairbench's local schedulers inside SGLang and vLLM, and the report that proves it
router/           `fairbench serve`: a reverse proxy around a Router object
kv_events/        events of workers' caches (ZMQ), published and followed
emulator/         `fairbench emulate`: SGLang's HTTP around the simulator's engine
driver/           the load: sends the programs of an experiment and records answers
records.py, service_rows.py               records as they are written, and as a simulation's tables
outcome.py, summary.py    from records to a run's result; `fairbench recover`
"""
