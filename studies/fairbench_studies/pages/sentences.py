"""Draws sentences for a reading test: ``python studies sentences [SEED]``.

Prints 15 sentences of the documents, 10 docstrings, 10 messages and 5 help texts. A reader who has
not seen the rules judges each: is it natural, and is it clear the first time?
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from fairbench_studies.kit.rows import ROOT

CODE = ("bench", "studies")
ERRORS = re.compile(r"(Usage|Data|Value)Error|RunFailed")
SHORTEST, LONGEST = 30, 400  # characters of a sentence


def main(seed: str = "0") -> None:
    """Print the sentences of a seed."""
    rng = random.Random(seed)
    kinds = {"document": (15, documents()), "docstring": (10, docstrings())}
    kinds |= {"message": (10, messages()), "help": (5, help_texts())}
    for kind, (count, found) in kinds.items():
        for text in rng.sample(sorted(set(found)), count):
            sys.stdout.write(f"{kind:10} {text}\n")


def documents() -> Iterator[str]:
    """Yield the sentences of prose in the README and in the documents, without appendices."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        if "appendix" in page.parts:
            continue
        text = re.sub(
            r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        for block in text.split("\n\n"):
            if not re.match(r"\s*([#|!<]|[-*\d]+\.? )", block):
                joined = re.sub(r"\]\([^)]*\)", "]", " ".join(block.split()))
                yield from _usable(re.split(r"(?<=[.!?]) (?=[A-Z`*\[])", joined))


def docstrings() -> Iterator[str]:
    """Yield the first paragraph of each docstring."""
    for node in _nodes():
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from _usable([(ast.get_docstring(node) or "").partition("\n\n")[0]])


def messages() -> Iterator[str]:
    """Yield the texts of errors that a user sees, with ``<name>`` instead of values."""
    for tree in _trees():
        known = _constants(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ERRORS.search(ast.unparse(node.func)) and node.args:
                yield from _usable([_text(node.args[0], known)])


def help_texts() -> Iterator[str]:
    """Yield the help texts of options."""
    for node in _nodes():
        if isinstance(node, ast.keyword) and node.arg == "help":
            yield from _usable([_text(node.value)])


def _trees() -> Iterator[ast.Module]:
    for folder in CODE:
        for path in sorted(Path(ROOT / folder).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _nodes() -> Iterator[ast.AST]:
    for tree in _trees():
        yield from ast.walk(tree)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Return the texts and numbers that a module gives a name."""
    return {
        str(node.targets[0].id): str(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def _usable(texts: list[str]) -> Iterator[str]:
    for text in texts:
        plain = " ".join(text.split())
        if SHORTEST <= len(plain) <= LONGEST:
            yield plain


def _text(node: ast.AST, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the text of a literal, with ``<name>`` for each value; "" for other expressions."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, known) for part in node.values)
    if not isinstance(node, ast.FormattedValue):
        return ""
    name = _name(node.value)
    return known.get(name, f"<{name.strip('_')}>")


def _name(node: ast.AST) -> str:
    """Return the name of the value that an expression shows."""
    skipped: set[ast.AST] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            skipped.add(one.func)
        if one not in skipped and isinstance(one, ast.Attribute | ast.Name):
            return one.attr if isinstance(one, ast.Attribute) else one.id
        if isinstance(one, ast.Attribute) and one in skipped:
            skipped.add(one.value) if isinstance(one.value, ast.Constant) else None
    return "value"
