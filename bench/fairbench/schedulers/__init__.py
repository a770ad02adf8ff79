"""Schedulers: pure state machines, one policy a file; ``base`` is their interface."""
