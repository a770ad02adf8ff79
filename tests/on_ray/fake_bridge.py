"""A process that stands in for the Ray bridge and fails on request: see ``serve``."""

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

from fairbench.execute.tasks import Interruption
from fairbench_ray.connection import Connected, Unreachable, connected
from fairbench_ray.tasks import EndedTask, Over


def serve(pipe, address):
    """Act on the next letter in the file ``address``, or on "." if none is left.

    The letters mean: x, die after one task; -, find no cluster; d, die immediately; ., do all
    tasks. Each finished task adds a line to a file beside ``address``.
    """
    script = Path(address)
    text = script.read_text()
    script.write_text(text[1:])
    letter = text[:1] or "."
    _, tasks = pipe.recv()
    if letter == "d":
        os._exit(1)
    if letter == "-":
        pipe.send(Unreachable("nobody is there"))
        return
    pipe.send(Connected())
    for index, task in tasks.items():
        result = pickle.loads(task)(Interruption())
        with script.with_suffix(".done").open("a") as file:
            file.write(f"{index}\n")
        pipe.send(EndedTask(index, pickle.dumps((result, {}))))
        if letter == "x":
            os._exit(1)
    pipe.send(Over())


def serve_forgotten(pipe):
    """Connect to a cluster that no longer knows this process's node."""
    sys.modules["ray"] = SimpleNamespace(
        init=lambda *_, **__: None,
        nodes=list,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "gone"),
        exceptions=SimpleNamespace(RayError=LookupError),
        shutdown=lambda: None,
    )
    with connected(pipe, "auto"):
        pass
