"""A draw of sentences for a reading test: ``python studies sentences [SEED]``.

The script prints 15 sentences of the documents, 10 docstrings, 10 messages and 5 help texts. A
reader who does not know the project judges whether each sentence is natural and clear.
"""

from __future__ import annotations

import ast
import random
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fairbench_studies.kit.rows import ROOT

CODE = ("bench", "studies")
COUNTS = {"document": 15, "docstring": 10, "message": 10, "help": 5}
ERRORS = re.compile(r"(Usage|Data|Value)Error|RunFailed")
SHORTEST, LONGEST = 30, 400  # lengths of the drawn sentences in characters


def main(seed: str = "0") -> None:
    """Print sentences that are drawn at random with the given seed."""
    rng = random.Random(seed)
    for kind, count in COUNTS.items():
        for text in rng.sample(sentences()[kind], count):
            sys.stdout.write(f"{kind:10} {text}\n")


@cache
def sentences() -> dict[str, list[str]]:
    """Return all sentences of the project by kind, sorted."""
    found: dict[str, list[str]] = {kind: [] for kind in COUNTS}
    found["document"] += documents()
    for folder in CODE:
        for path in sorted(Path(ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            known = _constants(tree)
            for node in ast.walk(tree):
                found["docstring"] += docstring(node)
                found["message"] += message(node, known)
                found["help"] += help_text(node)
    return {kind: sorted(set(texts)) for kind, texts in found.items()}


def documents() -> Iterator[str]:
    """Yield the sentences of prose in the README and in the documents, without appendices."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for page in pages:
        if "appendix" in page.relative_to(ROOT).parts:
            continue
        text = re.sub(
            r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        for block in text.split("\n\n"):
            if not re.match(r"\s*([#|!<]|[-*\d]+\.? )", block):
                joined = re.sub(r"\]\([^)]*\)", "]", " ".join(block.split()))
                yield from _usable(re.split(r"(?<=[.!?]) (?=[A-Z`*\[])", joined))


def docstring(node: ast.AST) -> Iterator[str]:
    """Yield the first paragraph of an object's docstring."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        yield from _usable([(ast.get_docstring(node) or "").partition("\n\n")[0]])


def message(node: ast.AST, known: Mapping[str, str]) -> Iterator[str]:
    """Yield the message of an error, with ``<name>`` for each inserted value."""
    if isinstance(node, ast.Call) and node.args and ERRORS.search(ast.unparse(node.func)):
        yield from _usable([_text(node.args[0], known)])


def help_text(node: ast.AST) -> Iterator[str]:
    """Yield the help text of an option."""
    if isinstance(node, ast.keyword) and node.arg == "help":
        yield from _usable([_text(node.value)])


def _constants(tree: ast.Module) -> dict[str, str]:
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
    """Return a string literal's text, with ``<name>`` for each inserted value."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, known) for part in node.values)
    if not isinstance(node, ast.FormattedValue):
        return ""
    name = _name(node.value)
    return known.get(name, f"<{name.strip('_')}>")


def _name(node: ast.AST) -> str:
    """Return a name for the value that an expression inserts into a text."""
    skipped: set[ast.AST] = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Call):
            skipped.add(one.func)
        if one not in skipped and isinstance(one, ast.Attribute | ast.Name):
            return one.attr if isinstance(one, ast.Attribute) else one.id
        if isinstance(one, ast.Attribute) and one in skipped:
            skipped.add(one.value) if isinstance(one.value, ast.Constant) else None
    return "value"
