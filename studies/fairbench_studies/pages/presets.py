"""Tables of presets: each value with its source."""

from __future__ import annotations

from fairbench.config.preset import read_preset
from fairbench.files.toml_text import toml_value
from fairbench_studies.kit.table_text import as_markdown


def preset_table(name: str) -> str:
    """Return a table of the facts of a bundled preset."""
    facts = read_preset(name).facts
    return as_markdown(
        ("setting", "value", "source"),
        ((f"`{one.key}`", f"`{toml_value(one.value)}`", one.source) for one in facts),
    )
