"""Test that packages provide names of their modules without importing the modules."""

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from fairbench.named import lazy_names

CORE = Path(__file__).resolve().parents[1] / "bench" / "fairbench"
LAZY = sorted(
    path.parent.name
    for path in CORE.glob("*/__init__.py")
    if "lazy_names(" in path.read_text(encoding="utf-8")
)


@cache
def declared(package):
    """Return the names of a package that type checkers see, with their modules."""
    source = (CORE / package / "__init__.py").read_text(encoding="utf-8")
    checked = next(one for one in ast.parse(source).body if isinstance(one, ast.If))
    return {alias.name: one.module for one in checked.body for alias in one.names}


@pytest.mark.parametrize("package", LAZY)
def test_each_name_is_that_of_its_module(package):
    found, names = import_module(f"fairbench.{package}"), declared(package)
    for name, module in names.items():
        assert getattr(found, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match=f"module 'fairbench.{package}' has no attribute 'no"):
        _ = found.nothing_of_the_kind


def used(tree):
    """Yield the package and the name wherever a module uses a name of a package."""
    named = {
        alias.asname or alias.name: alias.name
        for one in tree.body
        if isinstance(one, ast.ImportFrom) and one.module == "fairbench"
        for alias in one.names
    }
    for one in ast.walk(tree):
        if isinstance(one, ast.Attribute) and getattr(one.value, "id", None) in named:
            yield named[one.value.id], one.attr


def test_every_lazy_name_that_is_used_exists():
    for path in sorted(CORE.parent.rglob("*.py")):
        for package, name in used(ast.parse(path.read_text(encoding="utf-8"))):
            if package in LAZY:
                assert name in declared(package), f"{path}: {package}.{name}"


def test_a_package_of_lazy_names_imports_none_of_its_modules():
    code = (
        "import sys\n"
        f"from fairbench import {', '.join(LAZY)}\n"
        "print(*[one for one in sys.modules if one.startswith('fairbench.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    modules = {one.split(".", 1)[1] for one in done.stdout.split()}
    assert modules - {"named", "version"} == set(LAZY)


def test_a_name_is_looked_up_in_the_module_that_has_it():
    looked_up = lazy_names("fairbench", {"errors": "UsageError DataError", "core": "Request"})
    from fairbench.core import Request
    from fairbench.errors import DataError

    assert (looked_up("DataError"), looked_up("Request")) == (DataError, Request)
    for unknown in ("errors", "RunFailed", ""):
        with pytest.raises(AttributeError, match="has no attribute"):
            looked_up(unknown)
