"""YAML as plain data with the line of every key. Bounded: no aliases, no large files, no deep nesting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from eroica.schemas.errors import InvalidInput

MAX_BYTES = 1_000_000
MAX_DEPTH = 12

Place = tuple[str | int, ...]
"""``("signatures", 0, "all", 1, "metric")``."""


def read_yaml(path: Path) -> tuple[Any, dict[Place, int]]:
    """The content of *path*, and place → line (from 1).

    :raises InvalidInput: unreadable, too large, not YAML, a key twice, aliases; with the line.
    """
    try:
        if not path.is_file():
            raise InvalidInput("not a file", where=str(path))
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise InvalidInput(f"the file is over {MAX_BYTES} bytes", where=str(path))
        text = raw.decode("utf-8")
    except OSError as error:
        raise InvalidInput(f"the file cannot be read ({error.strerror})", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput("the file is not UTF-8 text", where=str(path)) from error
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        lines: dict[Place, int] = {(): 1}
        return (_plain(loader, root, (), lines, str(path)) if root is not None else None), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidInput(f"not YAML: {error.problem or error.context}", where=f"{path}:{line}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidInput(f"not YAML: {' '.join(str(error).split())[:200]}", where=str(path)) from error


class _Loader(yaml.SafeLoader):
    """Plain data only; no aliases, with which a few lines can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it out
        if isinstance(event, yaml.events.AliasEvent):
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)


def _plain(loader: Any, node: Any, place: Place, lines: dict[Place, int], where: str) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(place, line)
    if len(place) > MAX_DEPTH:
        raise InvalidInput(f"nested deeper than {MAX_DEPTH}", where=f"{where}:{line}")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, child, (*place, i), lines, where) for i, child in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    out: dict[str, Any] = {}
    for key, value in node.value:
        at = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidInput("a key must be a word", where=f"{where}:{at}")
        name = str(key.value)
        if name in out:
            raise InvalidInput(f"the key {name[:60]!r} stands here twice", where=f"{where}:{at}")
        below = (*place, name)
        lines[below] = at
        out[name] = _plain(loader, value, below, lines, where)
    return out
