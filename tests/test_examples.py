"""Test that the notebook runs as stored and shows its saved outputs."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "python.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def test_the_notebook_was_executed_from_top_to_bottom():
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    for cell in CODE:
        assert cell["outputs"]
        assert not [one for one in cell["outputs"] if one["output_type"] == "error"]


@pytest.mark.slow
def test_the_code_of_the_notebook_gives_its_saved_outputs(tmp_path, monkeypatch, capsys):
    for needed in ("pandas", "seaborn"):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in CODE:
        shown = value_of_last(ast.parse("".join(cell["source"])), names)
        stored = cell["outputs"][0]
        if stored["output_type"] == "stream":
            assert capsys.readouterr().out
        else:
            for kind, method in (("image/png", "_repr_png_"), ("text/html", "_repr_html_")):
                made = getattr(shown, method, lambda: None)()
                assert (made is not None) is (kind in stored["data"])
    assert list(tmp_path.iterdir()) == []


def value_of_last(tree, names):
    """Return what a notebook shows of a cell: the value of a final expression."""
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return last and eval(compile(ast.Expression(last.value), "cell", "eval"), names)
