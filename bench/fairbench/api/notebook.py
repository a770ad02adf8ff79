"""Results as HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fairbench.report.numbers import number


def html_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return an HTML table of ``rows`` with the ``columns`` that any row has."""
    shown = [column for column in columns if any(column in row for row in rows)]
    head = "".join(f"<th>{escape(column)}</th>" for column in shown)
    body = "".join(
        f"<tr>{''.join(_cell(row.get(column)) for column in shown)}</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: object) -> str:
    if isinstance(value, Mapping):  # a mean over seeds with its interval
        low, high = value.get("low"), value.get("high")
        mean = number(value.get("mean"))
        text = mean if low is None else f"{mean} [{number(low)}, {number(high)}]"
        return f'<td style="text-align: right">{text}</td>'
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return f'<td style="text-align: right">{escape(number(value))}</td>'
    return f"<td>{escape(str(value))}</td>"
