"""The JSON Schema of scenario files, for editors: with what each field means, and the names that a field may hold."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import msgspec

from eroica.schemas.jsonschema import file_schema
from eroica.simulator import scenario
from eroica.simulator.faults import FAULTS
from eroica.simulator.hangs import HANGS
from eroica.topology.presets import FRAMEWORKS
from eroica.topology.schedules import SCHEDULES

__all__ = ["scenario_schema"]

NAME = "scenario"


def scenario_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a scenario file.

    Descriptions are the texts below the fields of the classes; names of faults, frameworks and schedules those that exist.
    """
    schema = file_schema(NAME, scenario.Scenario)
    parts = schema["$defs"]
    for part in parts.values():
        part["description"] = " ".join(part["description"].split()).replace("``", "")
    for kind, field, text in _described():
        parts[kind]["properties"][field]["description"] = text
    parts["Fault"]["properties"]["fault"]["oneOf"] = [
        {"const": name, "description": about}
        for name, about in (*((n, k.about) for n, k in FAULTS.items()), *((n, s.about) for n, s in HANGS.items()))
    ]
    job = parts["Job"]["properties"]
    job["framework"]["enum"] = [*FRAMEWORKS, "custom"]
    job["schedule"]["enum"] = list(SCHEDULES)
    job["sizes"]["propertyNames"] = {"enum": sorted({name for _, names in FRAMEWORKS.values() for name in names})}
    return schema


def _described() -> Iterator[tuple[str, str, str]]:
    """Class, field and the text below the field, for every field of a part of a scenario that has one."""
    for node in ast.parse(inspect.getsource(scenario)).body:
        kind = getattr(scenario, node.name, None) if isinstance(node, ast.ClassDef) else None
        if not isinstance(node, ast.ClassDef) or not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    yield node.name, name, " ".join(text.split()).replace("``", "")
