"""Python's cycle collector, turned off during a simulation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collector() -> Iterator[None]:
    """Turn off the cycle collector in the block, which saves a third of the time.

    What there was before is set aside, unless somebody has done so: to collect inside goes over
    what was made inside, so the simulation too must be, and not over all that is imported, which
    took longer than to simulate a few hundred requests.
    """
    was_on, sets_aside = gc.isenabled(), not gc.get_freeze_count()
    gc.disable()
    if sets_aside:
        gc.freeze()
    try:
        yield
    finally:
        if sets_aside:
            gc.unfreeze()
        if was_on:
            gc.enable()
