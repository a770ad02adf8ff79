"""How the servers of an experiment would be started on this machine."""

from fairbench.live.backends.base import LiveOptions
from fairbench.live.backends.registry import live_backend


def recipes_here(spec, python=None):
    """The recipes of its workers, whose Python may be chosen."""
    backend, options = live_backend(spec), LiveOptions(python)
    with options.launcher.places(backend.wanted(options)) as places:
        return backend.recipes(places)
