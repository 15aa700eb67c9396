"""YAML of scenarios: plain data, no tricks, and errors that name the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from eroica.schemas.errors import InvalidInput

__all__ = ["line_of", "read_yaml"]

MAX_TOLD = 300


def read_yaml(text: str, where: str) -> Any:
    """The data of *text*.

    :raises InvalidInput: it is not YAML, has an alias or a tag, or a key twice; names the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader that also refuses aliases
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise InvalidInput(f"not YAML: {_brief(error.problem or error.context or '')}", where=f"{where}{line}") from error
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise InvalidInput(f"not YAML: {_brief(str(error))}", where=where) from error


def line_of(text: str, path: Sequence[str | int]) -> int:
    """The line of *text* of the field at *path*, or of the last on the way to it that is there; 0 if none is."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return 0
    line = 0
    for name in path:
        step = _child(node, name)
        if step is None:
            break
        line, node = step
    return line


def _child(node: Any, name: str | int) -> tuple[int, Any] | None:
    """Line and node of a field or item."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == str(name):
                return key.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and isinstance(name, int) and name < len(node.value):
        return node.value[name].start_mark.line + 1, node.value[name]
    return None


def _brief(text: str) -> str:
    return " ".join(text.split())[:MAX_TOLD]


class _Loader(yaml.SafeLoader):
    """Plain data only; no aliases, with which a few lines can stand for gigabytes, and no key twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed in a scenario", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            name = getattr(key, "value", None)
            if isinstance(name, str):
                if name in seen:
                    raise yaml.MarkedYAMLError(problem=f"{name[:60]!r} stands here twice", problem_mark=key.start_mark)
                seen.add(name)
        return super().construct_mapping(node, deep)
