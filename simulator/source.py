"""Where a scenario comes from, a file and assignments, so that an error can name the line or the assignment to mend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from eroica.schemas.errors import EroicaError, InvalidInput, UsageError
from eroica.schemas.files import read_bounded
from eroica.simulator.problem import Path as FieldPath
from eroica.simulator.problem import ScenarioError, from_validation, path_of
from eroica.simulator.scenario import Scenario
from eroica.simulator.yamlfile import line_of, read_yaml

__all__ = ["Source", "load_scenario", "parse_scenario"]

MAX_SCENARIO_BYTES = 1_000_000
MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a scenario, and what is assigned over it."""

    text: str
    assignments: tuple[str, ...] = ()
    """``a.b=value``, the value in YAML."""
    where: str = "scenario"
    """The file."""

    @classmethod
    def of_file(cls, path: Path, assignments: Sequence[str] = ()) -> Source:
        """The scenario in a file.

        :raises UsageError: the file is not there.
        :raises InvalidInput: it is no text, or too large.
        """
        try:
            text = read_bounded(path, MAX_SCENARIO_BYTES).decode("utf-8")
        except OSError as error:
            raise UsageError(f"the scenario cannot be read ({error.strerror})", where=str(path)) from error
        except UnicodeDecodeError as error:
            raise InvalidInput("the file is not UTF-8 text", where=str(path)) from error
        return cls(text, tuple(assignments), str(path))

    def scenario(self) -> Scenario:
        """The scenario, checked field by field.

        :raises UsageError: an assignment is none, or gives a field a value that it cannot have.
        :raises InvalidInput: the text is not YAML, or no scenario; names the line and the field.
        """
        tree = read_yaml(self.text, self.where)
        if tree is None:
            tree = {}
        if not isinstance(tree, dict):
            raise InvalidInput(
                "a scenario is a table of fields", where=self.where, do="start from one of: eroica simulate --list"
            )
        for assignment in self.assignments:
            _assign(tree, assignment)
        with self.placing():
            try:
                return msgspec.convert(tree, Scenario, strict=False)
            except msgspec.ValidationError as error:
                raise from_validation(str(error), Scenario) from error

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Name file and line, or the assignment, in every :class:`ScenarioError` from within."""
        try:
            yield
        except ScenarioError as error:
            raise self.placed(error) from error

    def placed(self, error: ScenarioError) -> EroicaError:
        """*error* as wrong use where an assignment is to blame, else as a broken file."""
        for path in error.paths:
            for assignment in reversed(self.assignments):
                given = path_of(assignment.partition("=")[0].strip())
                if _meet(given, path):
                    return UsageError(_with_field(error, path, given), where=f"--set {assignment[:MAX_SHOWN]}", do=error.do)
        line = line_of(self.text, error.paths[0]) if error.paths else 0
        place = f"{self.where}, line {line}" if line else self.where
        return InvalidInput(error.what, where=f"{place}: {error.where}" if error.where else place, do=error.do)


def load_scenario(path: Path, assignments: Sequence[str] = ()) -> Scenario:
    """Read a scenario file; errors as :meth:`Source.of_file` and :meth:`Source.scenario` have them."""
    return Source.of_file(path, assignments).scenario()


def parse_scenario(text: str, assignments: Sequence[str] = (), where: str = "scenario") -> Scenario:
    """Like :func:`load_scenario` from the text."""
    return Source(text, tuple(assignments), where).scenario()


def _meet(given: FieldPath, path: FieldPath) -> bool:
    """Whether one of two paths leads through the other."""
    return all(a == b or "*" in (a, b) for a, b in zip(given, path, strict=False))


def _with_field(error: ScenarioError, path: FieldPath, given: FieldPath) -> str:
    """What is wrong, with the field if it is another than the one that is assigned."""
    return error.what if path == error.paths[0] == given else f"{error.where}: {error.what}"


def _assign(tree: dict[str, Any], assignment: str) -> None:
    path, equals, value = assignment.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise UsageError(f"{assignment!r} is not field.field=value", where="--set", do="e.g. --set job.world=64")
    told = f"--set {assignment[:MAX_SHOWN]}"
    at: Any = tree
    for depth, name in enumerate(names):
        last = depth == len(names) - 1
        if isinstance(at, list):
            if not name.isdecimal() or int(name) >= len(at):
                raise UsageError(f"there is no entry {name!r}", where=told, do=f"the list has {len(at)} entries")
            key: Any = int(name)
        elif isinstance(at, dict):
            key = name
        else:
            raise UsageError(f"{'.'.join(names[:depth])} is a value, not a table", where=told)
        if last:
            try:
                at[key] = read_yaml(value, told)
            except InvalidInput as error:
                raise UsageError(error.what, where=told) from error
        else:
            if isinstance(at, dict):
                at.setdefault(key, {})
            at = at[key]
