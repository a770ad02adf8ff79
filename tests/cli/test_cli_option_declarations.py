"""Test that each option is declared in one place, from which all commands derive it."""

import ast
from collections import defaultdict
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
DECLARES = {"Flag", "Option", "option", "_engine", "_server"}

# options of several commands that share only the name
OTHER_MEANINGS = {
    "baseline": "a row of a leaderboard; a scheduler of a comparison",
    "clients": "their number in an experiment; names of clients of a log",
    "columns": "metrics of a table; columns of a log",
    "dry_run": "points of a sweep; the settings of a router",
    "end": "the end of what is read; the end of what is kept",
    "every": "all metrics of a comparison; every number of replicas of a plan",
    "output": "a format; a file",
    "output_dir": "the directory of pictures; the directory of a validation",
    "preset": "the settings of a run; the settings of a figure",
    "quick": "few programs of a sweep; few trials of an attack",
    "slo": "targets of a plan, which a diagnosis has by default",
}


def declared(source):
    """Yield the names of options that a module declares instead of deriving them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            named = [(one.arg, one.annotation) for one in (*node.args.args, *node.args.kwonlyargs)]
        elif isinstance(node, ast.ClassDef):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            named = [(one.target.id, one.annotation) for one in fields]
        else:
            continue
        for name, annotation in named:
            if not (isinstance(annotation, ast.Subscript) and is_declaration(annotation.slice)):
                continue
            yield name


def is_declaration(found):
    last = found.elts[-1] if isinstance(found, ast.Tuple) else found
    called = last.func if isinstance(last, ast.Call) else None
    name = getattr(called, "attr", getattr(called, "id", ""))
    return name in DECLARES


def test_every_option_is_declared_once():
    places = defaultdict(list)
    for path in sorted(BENCH.rglob("*.py")):
        for name in declared(path.read_text(encoding="utf-8")):
            places[name].append(str(path.relative_to(BENCH)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in OTHER_MEANINGS} == {}
    assert len(places) > 100


def test_a_second_declaration_of_an_option_is_found():
    first = "def run(dp: Annotated[int, Option(help='Replicas.')]): ..."
    second = "class Flags:\n    dp: Annotated[int | None, Flag('Workers.')]"
    derived = "def plan(dp: Annotated[int, option_of(RUN['dp'])], n: Annotated[int, SEEDS]): ..."
    also = "class More:\n    dp: Annotated[int, RUN['dp'].but('Replicas.')]"
    typed = "def emulate(port: Annotated[int, typer.Option(min=0)]): ..."
    sources = (first, second, derived, also, typed)
    assert [list(declared(one)) for one in sources] == [["dp"], ["dp"], [], [], ["port"]]
