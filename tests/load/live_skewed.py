"""A driver with a wrong clock, which can be started in a process of its own."""

import time

from fairbench_load.drivers import serve

AHEAD_S = 12_345.0
RATE = 1.01  # gains a second in 100, which is visible within seconds


def skewed_clock():
    return AHEAD_S + RATE * time.monotonic()


def serve_skewed(pipe):
    serve(pipe, skewed_clock)
