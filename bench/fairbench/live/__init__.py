"""Real servers: engines with fairbench's schedulers, a router in front, and a load driver.

run.py            one experiment from start to end: servers, router, driver, result
run_folder.py     where logs and records are kept while it runs
backends/         what can serve a run: one file for each kind, and the workers started of it
processes/        processes of servers: ports, GPUs, readiness, surely ended; the router's
plugins/          fairbench's local schedulers inside SGLang, and the report that proves it
router/           `fairbench serve`: a reverse proxy around a Router object
kv_events/        what workers say of their caches (ZMQ), published and followed
emulator/         `fairbench emulate`: SGLang's HTTP around the simulator's engine
driver/           sends the programs of an experiment, open loop, and writes down answers
records.py, service_rows.py               what was written down, as the simulator's tables
outcome.py, summary.py, client_side.py    from records to a run's result; `fairbench recover`
headers.py, openai_shapes.py              what is the same on both sides of a connection
http_server.py    what every HTTP server of ours does
requirements.py   packages and connections, which all this needs
"""
