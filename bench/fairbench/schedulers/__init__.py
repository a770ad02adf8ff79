"""Schedulers: pure state machines, one policy in each file; ``base`` holds their interfaces."""
