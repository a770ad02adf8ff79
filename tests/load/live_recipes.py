"""Recipes that start the servers of an experiment on this machine."""

from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import live_backend


def places_of(launcher, wanted, timeout_s=600.0, interrupted=lambda: False):
    """Return the places that a launcher gives."""
    return launcher.places(wanted, timeout_s=timeout_s, interrupted=interrupted)


def recipes_here(spec, python=None):
    """Return the recipes of a launcher's workers; the Python can be chosen."""
    backend, options = live_backend(spec), LiveOptions(python)
    with places_of(options.launcher, backend.wanted(options)) as places:
        return backend.recipes(places)
