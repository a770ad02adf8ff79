"""Stand-ins for modules that SGLang 0.5.17 imports on a GPU but never calls to serve a Llama.

Every Python process with this folder on ``PYTHONPATH`` imports this file at its start. Installed
modules take precedence. Calling a stand-in raises, so none can serve a request unnoticed.
"""

import importlib.machinery
import sys
import types

ABSENT = ("IPython", "flashinfer", "soundfile", "torchao", "xgrammar")
BETTER_ABSENT = ("flashinfer.norm",)  # sgl_kernel then uses its own


class _Finder:
    """A finder of stand-ins for modules that no other finder on ``sys.meta_path`` has found."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ABSENT or name in BETTER_ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


class _Loader:
    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        """Do nothing, because there is nothing to run."""


class _StandIn(types.ModuleType):
    """A package whose attributes are classes that cannot be instantiated."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__version__ = "0.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        members = {
            "__init__": _refuse,
            "__module__": self.__name__,
            "__get_pydantic_core_schema__": classmethod(lambda *_: {"type": "any"}),
        }
        value = type(name, (), members)
        setattr(self, name, value)
        return value


def _refuse(self, *arguments, **named):
    raise RuntimeError(f"{type(self).__module__}.{type(self).__name__} is a stand-in")


sys.meta_path.append(_Finder())
