"""Test the charging table on the page of schedulers against each scheduler's parameters."""

from pathlib import Path
from typing import get_args, get_type_hints

from fairbench.schedulers.gateway.registry import policies_by_name, policy_class
from fairbench.schedulers.params import param_names
from fairbench.schedulers.registry import local_class, locals_by_name, router_class, routers_by_name

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "schedulers.md"
HEADER = [
    "| scheduler | kind | `charge` | `sharing` | `tenants` | `weights` |",
    "|---|---|---|---|---|---|",
]
FORMS = ("charge", "sharing", "tenants", "weights")


def literals(hint):
    """Return the texts that a parameter's type allows."""
    found = [hint] if isinstance(hint, str) else []
    return found + [text for part in get_args(hint) for text in literals(part)]


def row(name, kind, params):
    names = set(param_names(params))
    if not names & set(FORMS):
        return None
    hints = get_type_hints(params)
    charges = literals(hints["charge"]) if "charge" in names else []
    cells = [", ".join(f"`{one}`" for one in charges) or "-"]
    cells += ["yes" if form in names else "-" for form in FORMS[1:]]
    return f"| `{name}` | {kind} | " + " | ".join(cells) + " |"


def table():
    rows = [row(name, "local", local_class(name).Params) for name in locals_by_name()]
    rows += [row(name, "router", router_class(name).Params) for name in routers_by_name()]
    rows += [row(name, "gateway", policy_class(name).Params) for name in policies_by_name()]
    return "\n".join([*HEADER, *(one for one in rows if one is not None)])


def test_the_page_has_the_current_table():
    """If this fails, run python tests/schedulers/test_charging_table.py to print the table."""
    assert table() in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(table())
