"""Test that the memory of large bodies returns to the system."""

import ctypes
import os
import subprocess
import sys
from asyncio import selector_events

import pytest

from fairbench_serve.background import LARGE_BYTES

# Allocates pieces as for a body of 64 MiB, and a small object above them that stays.
LEFT_BEHIND = """
import ctypes, os
from fairbench_serve.background import return_freed_memory

def mib():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
pieces = [libc.malloc(2**16) for _ in range(1024)]
for piece in pieces:
    ctypes.memset(piece, 1, 2**16)
kept = [libc.malloc(2**16) for _ in range(64)]  # above them, since no hole is so large
for piece in pieces:
    libc.free(piece)
before = mib()
assert return_freed_memory()
print(before - mib())
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="tests malloc_trim, which this C library does not have (glibc has it)",
)
def test_free_memory_below_a_small_object_is_returned():
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 60


# Counts how many of ten large buffers the C library maps outside its heap, after one of 31 MiB.
MAPPED = """
import ctypes
from fairbench_serve.background import keep_large_buffers_apart

class Info(ctypes.Structure):  # of mallinfo2
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks".split()] + [
        ("rest", ctypes.c_size_t * 6)
    ]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.mallinfo2.restype = [ctypes.c_void_p], Info

def mapped(size, count=10):
    libc.free(libc.malloc(31 * 2**20))
    before = libc.mallinfo2().hblks
    pieces = [libc.malloc(size) for _ in range(count)]
    found = libc.mallinfo2().hblks - before
    for piece in pieces:
        libc.free(piece)
    return found
"""

# the size that asyncio requests for each read
READ_BYTES = selector_events._SelectorTransport.max_size
needs_mallinfo2 = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 counts mapped buffers"
)


@needs_mallinfo2
@pytest.mark.parametrize(
    ("call", "size", "apart"),
    [
        ("", READ_BYTES, 0),
        ("assert keep_large_buffers_apart()", READ_BYTES, 10),
        ("assert keep_large_buffers_apart()", LARGE_BYTES // 4, 0),
    ],
)
def test_large_buffers_stay_out_of_the_heap_after_one_was_freed(call, size, apart):
    script = f"{MAPPED}\n{call}\nprint(mapped({size}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{apart}\n", "")


ROUTER = f"""{MAPPED}
import asyncio
from tests.serve.live_router import cluster

async def counted():
    async with cluster(1):
        return mapped({READ_BYTES}, 100)

print(asyncio.run(counted()))
"""


@needs_mallinfo2
def test_a_router_keeps_large_buffers_out_of_the_heap():
    """The test runs in a separate process, because other tests leave a heap with large holes.

    Imports leave a few holes into which a buffer fits. Without the call, the heap takes all
    buffers.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ROUTER]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert int(done.stdout) > 50, done.stderr
