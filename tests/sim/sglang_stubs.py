"""Stand-ins for packages that SGLang imports and a machine without a GPU lacks."""

import importlib.machinery
import types

ABSENT = ("triton", "sgl_kernel", "torchvision")  # need a GPU, and are never called here


class _StubLoader:
    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        """Nothing to run."""


class StubFinder:
    """Finds a stand-in for each package in ``ABSENT`` that is really absent, if appended."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            return importlib.machinery.ModuleSpec(name, _StubLoader(), is_package=True)
        return None


class _Stub(types.ModuleType):
    """A package whose every attribute is a class or a function that returns what it decorates."""

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[:1].isupper() else _Stub(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *arguments, **named):
        if len(arguments) == 1 and callable(arguments[0]) and not named:
            return arguments[0]
        return lambda function: function
