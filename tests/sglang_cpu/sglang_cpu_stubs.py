"""Stand-ins for packages that SGLang imports and a machine without a GPU lacks.

``install.sh`` copies this file into a virtual environment, whose processes all import it at their
start (a ``.pth`` line). ``python -m sglang.launch_server`` then needs nothing else. Installed
modules take precedence.

SGLang decorates kernels when it is imported, and calls none on a CPU. With
``SGLANG_CPU_STUB_CALLS=FILE``, each call of a stand-in is appended to that file, so that a test can
check that serving makes none. With ``SGLANG_CPU_FORK=1``, the server's processes are copies of its
first process, instead of new processes that each import SGLang for 12 s.
"""

import importlib.machinery
import multiprocessing
import os
import sys
import types
from pathlib import Path

ABSENT = ("triton", "sgl_kernel", "torchvision")


class _Finder:
    """A finder of stand-ins for modules that no other finder on ``sys.meta_path`` has found."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


class _BeforeSGLang:
    """A finder that tells transformers, before SGLang is imported, that torchvision is absent.

    Transformers remembers its first check, and would otherwise use the stand-in's image functions.
    """

    def find_spec(self, name, path=None, target=None):
        if name == "sglang":
            sys.meta_path.remove(self)
            from transformers.utils.import_utils import is_torchvision_available

            is_torchvision_available()
            sys.meta_path.append(_Finder())


class _Loader:
    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        """Do nothing, because there is nothing to run."""


class _Anything:
    """A stand-in for any class, which accepts every argument and does nothing."""

    def __init__(self, *arguments, **named):
        pass


class _Stub(types.ModuleType):
    """A package whose attributes are classes, or functions that return what they decorate."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []
        self.__version__ = "0.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        value = type(name, (_Anything,), {}) if name[:1].isupper() else _Stub(full)
        setattr(self, name, value)
        return value

    def __call__(self, *arguments, **named):
        if log := os.environ.get("SGLANG_CPU_STUB_CALLS"):
            with Path(log).open("a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {self.__name__}\n")
        if len(arguments) == 1 and callable(arguments[0]) and not named:
            return arguments[0]
        return lambda function: function


def install():
    """Install the stand-ins in this process, and make SGLang choose its CPU engine."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.meta_path.insert(0, _BeforeSGLang())
    if os.environ.get("SGLANG_CPU_FORK"):
        start = multiprocessing.set_start_method
        multiprocessing.set_start_method = lambda method, force=False: start("fork", force=force)


install()
