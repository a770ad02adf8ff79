"""The JSON Schema of a workload file, with which editors complete keys and mark errors.

The schema lists the parameters of every kind of program. Conditions that a schema cannot express,
such as parameters that must agree, are checked when a workload file is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.programs import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def schema_text() -> str:
    """Return the text of ``schema.json``, which is stored with the bundled workloads."""
    return json.dumps(workload_schema(), indent=2) + "\n"


def workload_schema() -> Schema:
    """Return the schema of a workload file."""
    schema: Schema = _plain(WorkloadSpec.model_json_schema())
    definitions = schema["$defs"]
    for kind in KINDS:
        definitions[kind] = _params(kind)
        definitions[_some(kind)] = {k: v for k, v in _params(kind).items() if k != "required"}
    for table in (schema, definitions["Other"]):
        table["properties"]["program"] = {"enum": sorted(KINDS)}
    for table, least in ((schema, ["name"]), (definitions["Other"], ["client"])):
        # A workload that inherits from another workload need not repeat the inherited keys.
        whole = table.pop("required")
        table["if"] = {"required": ["workload"]}
        table["then"], table["else"] = {"required": least}, {"required": whole}
    schema["allOf"] = [_if_program(kind, _params_of_all(kind)) for kind in KINDS]
    definitions["Other"]["allOf"] = [_if_program(kind, {"params": _ref(kind)}) for kind in KINDS]
    return {"$schema": DIALECT, "title": "fairbench workload"} | schema


def _params(kind: str) -> Schema:
    schema: Schema = _plain(TypeAdapter(KINDS[kind].Params).json_schema())
    return schema | {"additionalProperties": False}


def _some(kind: str) -> str:
    """Return the name of the schema definition in which all parameters of a kind are optional."""
    return f"{kind}, changed"


def _ref(definition: str) -> Schema:
    return {"$ref": f"#/$defs/{definition}"}


def _if_program(kind: str, properties: Schema) -> Schema:
    is_kind = {"properties": {"program": {"const": kind}}, "required": ["program"]}
    return {"if": is_kind, "then": {"properties": properties}}


def _params_of_all(kind: str) -> Schema:
    changed = {"params": _ref(_some(kind))}
    misbehaving = {"items": {"properties": changed}}
    scenario = {"properties": changed | {"misbehaving": misbehaving}}
    return {"params": _ref(kind), "scenarios": {"additionalProperties": scenario}}


def _plain(schema: Any) -> Any:
    """Return the schema without null, which TOML lacks, and without titles, which repeat keys."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, Mapping):
        return schema
    kept = {
        key: _plain(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and (key, value) != ("default", None)
    }
    choices = kept.get("anyOf", ())
    return kept.pop("anyOf")[0] | kept if len(choices) == 1 else kept
