"""What large bodies leave behind goes back to the system."""

import ctypes
import subprocess
import sys

import pytest

# Pieces as a body of 64 MiB comes in, and something small above them that stays.
LEFT_BEHIND = """
import ctypes, os
from fairbench.live.router.service import give_back

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
assert give_back()
print(before - mib())
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="memory is given back by glibc's malloc_trim",
)
def test_what_is_free_but_lies_below_something_small_is_given_back():
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) > 60
