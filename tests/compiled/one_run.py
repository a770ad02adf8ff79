"""Print the result of a simulated run as JSON, and whether its engine was compiled.

Columns are printed as Python values, because the repr of a float shows every bit.
"""

import hashlib
import json
import sys

import pyarrow as pa

import fairbench.engine.loop
from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate


def digest(columns):
    table = pa.table(columns)
    return hashlib.sha256(f"{table.schema}{table.to_pydict()}".encode()).hexdigest()


result = simulate(resolve(*json.loads(sys.argv[1])))
told = {
    "compiled": not fairbench.engine.loop.__file__.endswith(".py"),
    "records": {name: digest(columns) for name, columns in result.tables().items()},
    "summary": repr(result.summary),
}
print(json.dumps(told))
