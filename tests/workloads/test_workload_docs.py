"""Test that ``docs/reference/workloads.md`` and ``schema.json`` have every key of a
workload file.
"""

import json
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from fairbench.workloads.model import (
    SPECS,
    Misbehaving,
    Other,
    Scenario,
    ServiceClass,
    WorkloadSpec,
)
from fairbench.workloads.programs import KINDS, make_params
from fairbench.workloads.spec import workload_names
from fairbench_studies.pages.workload_schema import schema_text

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "workloads.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0].lstrip("# "): part for part in re.split(r"^(?=##+ )", TEXT, flags=re.M)
}
MODELS = {
    "The workload": WorkloadSpec,
    "Classes": ServiceClass,
    "Scenarios": Scenario,
    "Heavy clients": Misbehaving,
    "Clients that run another program": Other,
}
WHOLE, MANY = re.findall(r"^```toml\n(.*?)^```", TEXT, re.M | re.S)


def rows(section):
    """Return key -> (meaning, default or limits, example) of the table in a section."""
    table = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| `(.+)` \|$", SECTIONS[section], re.M)
    return {key: tuple(rest) for key, *rest in table}


def examples(section):
    """Return the examples of a section's table, which name their own keys, as one table
    of values.
    """
    found = {}
    for key, (_, _, example) in rows(section).items():
        value = tomllib.loads(example)
        assert list(value) == [key]
        found |= value
    return found


@pytest.mark.parametrize(("section", "model"), MODELS.items())
def test_every_key_is_documented_with_its_default(section, model):
    documented = rows(section)
    assert list(documented) == list(model.model_fields)
    for key, field in model.model_fields.items():
        shown = documented[key][1]
        assert (shown == "required") == field.is_required()
        if shown.startswith("`"):
            assert tomllib.loads(f"value = {shown.strip('`')}")["value"] == field.default


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_documented_with_a_value_that_is_allowed(kind):
    assert list(rows(kind)) == [field.name for field in fields(KINDS[kind].Params)]
    make_params(kind, examples(kind), kind)


def test_the_file_and_the_examples_of_its_keys_are_allowed():
    whole = tomllib.loads(WHOLE)
    WorkloadSpec.model_validate(whole)
    params = whole["params"]
    scenario = examples("Scenarios")
    scenario["others"][0]["params"] = examples("judge")
    other = examples("Clients that run another program") | {"params": examples("judge")}
    whole["classes"] = {"mine": examples("Classes")}
    whole |= {"clients": 2, "client_names": ["alice", "bob"]}
    WorkloadSpec.model_validate(whole)
    town = WorkloadSpec.model_validate(tomllib.loads(MANY))
    assert len(MANY.splitlines()) <= 20
    assert town.clients == 300
    for one in (
        scenario,
        {"rate": 1.0, "misbehaving": [examples("Heavy clients")]},
        {"rate": 1.0, "others": [other]},
    ):
        table = whole | examples("The workload") | {"params": params, "scenarios": {"s1": one}}
        WorkloadSpec.model_validate(table)


def test_the_schema_file_is_current():
    """If this fails, the end of docs/reference/workloads.md says how to write the file again."""
    stored = (SPECS / "schema.json").read_text(encoding="utf-8")
    assert json.loads(stored) == json.loads(schema_text())


@pytest.mark.parametrize("name", workload_names())
def test_every_bundled_workload_names_the_schema(name):
    file = SPECS / f"{name}.toml"
    assert file.read_text(encoding="utf-8").startswith("#:schema ./schema.json\n")


def test_the_schema_knows_the_parameters_of_each_kind():
    schema = json.loads(schema_text())
    assert schema["properties"]["program"] == {"enum": sorted(KINDS)}
    for kind, program in KINDS.items():
        names = {field.name for field in fields(program.Params)}
        full, changed = schema["$defs"][kind], schema["$defs"][f"{kind}, changed"]
        needed = {field.name for field in fields(program.Params) if field.default is MISSING}
        assert (set(full["properties"]), set(full["required"])) == (names, needed)
        assert set(changed["properties"]) == names
        assert "required" not in changed
        assert full["additionalProperties"] is changed["additionalProperties"] is False
    assert '"null"' not in schema_text()
