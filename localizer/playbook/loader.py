"""Playbook files from disk: the built-in ones first, then those of a user's folder, each checked as a whole."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import get_args

import msgspec

from eroica.localizer.playbook.book import Playbook
from eroica.localizer.playbook.conditions import WITHOUT_PEERS
from eroica.localizer.playbook.model import QUANTITIES, ActionClass, Condition, PlaybookFile, Signature
from eroica.localizer.playbook.patterns import problem
from eroica.localizer.playbook.yamlfile import Place, read_yaml
from eroica.schemas.errors import InvalidInput
from eroica.schemas.verdicts import CauseClass

BUILT_IN = Path(__file__).parent / "data"
MAX_FILES = 200
_PATH = re.compile(r"(?P<what>.*?) - at `\$?(?P<path>.*)`$")
_STEP = re.compile(r"\.?(?P<name>[A-Za-z_]\w*)|\[(?P<index>\d+)\]")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")


@lru_cache(maxsize=8)
def load_playbook(folder: str = "") -> Playbook:
    """The built-in playbook, and over it the files ``*.yaml`` of *folder* in the order of their names.

    A file of *folder* that is wrong is left out as a whole and named in :attr:`Playbook.problems` with line and key: a
    playbook that is being edited must not end the localizer.

    :raises InvalidInput: a built-in file is broken: the installation is.
    """
    actions: dict[str, ActionClass] = {}
    defaults: dict[CauseClass, str] = {}
    signatures: dict[str, Signature] = {}
    problems: list[str] = []
    digest = hashlib.sha256()
    for path in _files(BUILT_IN):
        file = read_file(path)
        _add(file, actions, defaults, signatures)
        digest.update(msgspec.json.encode(file))
    _check_references(actions, defaults, signatures, str(BUILT_IN))
    for path in _own_files(folder, problems):
        try:
            file = read_file(path)
            merged = dict(actions), dict(defaults), dict(signatures)
            _add(file, *merged)
            _check_references(*merged, str(path))
        except InvalidInput as error:
            problems.append(str(error))
            continue
        actions, defaults, signatures = merged
        digest.update(msgspec.json.encode(file))
    return Playbook(actions, defaults, list(signatures.values()), digest.hexdigest()[:16], tuple(problems))


def read_file(path: Path) -> PlaybookFile:
    """One file, checked.

    :raises InvalidInput: with file, line and key of the first thing that is wrong.
    """
    tree, lines = read_yaml(path)
    try:
        file = msgspec.convert(tree if tree is not None else {}, PlaybookFile)
    except msgspec.ValidationError as error:
        match = _PATH.match(str(error))
        place = _place(match["path"]) if match else ()
        unknown = _UNKNOWN.search(str(error))
        if unknown:
            place = (*place, unknown["name"])
        raise _wrong(path, lines, place, match["what"] if match else str(error)) from error
    for place, what in _mistakes(file):
        raise _wrong(path, lines, place, what)
    return file


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))


def _own_files(folder: str, problems: list[str]) -> list[Path]:
    if not folder:
        return []
    try:
        found = _files(Path(folder))
    except OSError as error:
        problems.append(f"{folder}: the folder of the playbook cannot be read ({error.strerror}); the built-in one is used")
        return []
    if len(found) > MAX_FILES:
        problems.append(f"{folder}: {len(found)} files are more than {MAX_FILES}; the first are read")
    return found[:MAX_FILES]


def _add(
    file: PlaybookFile, actions: dict[str, ActionClass], defaults: dict[CauseClass, str], signatures: dict[str, Signature]
) -> None:
    actions.update((action.id, action) for action in file.actions)
    defaults.update(file.defaults)
    signatures.update((signature.fault, signature) for signature in file.signatures)


def _check_references(
    actions: dict[str, ActionClass], defaults: dict[CauseClass, str], signatures: dict[str, Signature], where: str
) -> None:
    missing = sorted(set(get_args(CauseClass)) - set(defaults))
    if missing:
        raise InvalidInput(f"defaults: no action for the classes {', '.join(missing)}", where=where)
    used = [(f"defaults.{cls}", name) for cls, name in defaults.items()]
    used += [(f"signature {s.fault}: action", s.action) for s in signatures.values()]
    for key, name in used:
        if name not in actions:
            raise InvalidInput(f"{key}: there is no action {name!r}", where=where, do=f"use one of {', '.join(sorted(actions))}")


def _mistakes(file: PlaybookFile) -> Iterator[tuple[Place, str]]:
    """What types alone do not forbid."""
    faults: set[str] = set()
    remedies: set[str] = set()
    for i, signature in enumerate(file.signatures):
        at: Place = ("signatures", i)
        if signature.fault in faults:
            yield (*at, "fault"), f"the fault {signature.fault} stands here twice"
        faults.add(signature.fault)
        if not signature.all and not signature.any:
            yield at, "a signature needs a condition in all or any: a fault is named on evidence"
        for kind in ("all", "any", "none"):
            for j, condition in enumerate(getattr(signature, kind)):
                yield from (((*at, kind, j, *place), what) for place, what in _condition(condition))
    owners: list[tuple[Place, Signature | ActionClass]] = [(("signatures", i), s) for i, s in enumerate(file.signatures)]
    owners += [(("actions", i), a) for i, a in enumerate(file.actions)]
    for at, owner in owners:
        for j, remedy in enumerate(owner.remedies):
            if remedy.id in remedies:
                yield (*at, "remedies", j, "id"), f"the remedy {remedy.id} stands here twice"
            remedies.add(remedy.id)


def _condition(condition: Condition) -> Iterator[tuple[Place, str]]:
    given = [name for name in QUANTITIES if getattr(condition, name) is not None]
    if len(given) != 1:
        yield (), f"a condition looks at exactly one of {', '.join(QUANTITIES)}"
        return
    if condition.quantity not in QUANTITIES[given[0]]:
        yield ("of",), f"of a {given[0]} one can measure {', '.join(QUANTITIES[given[0]])}"
    for name in (given[0], "op", "resource"):
        pattern = getattr(condition, name)
        if pattern is not None and (why := problem(pattern)):
            yield (name,), why
    limits = [limit for limit in (condition.above, condition.below) if limit is not None]
    if not limits and given[0] not in ("stack", "named"):
        yield (), "a condition needs above or below"
    for name in ("above", "below"):
        limit = getattr(condition, name)
        if limit is None:
            continue
        if limit.value is None and limit.ratio is None and limit.difference is None:
            yield (name,), "a limit needs value, ratio or difference"
        peers = limit.ratio is not None or limit.difference is not None
        if peers and (given[0] in ("stack", "named") or condition.quantity in WITHOUT_PEERS or condition.take == "spread"):
            yield (name,), "this has no peers to be compared with: give a value"


def _place(path: str) -> Place:
    return tuple(m["name"] if m["name"] else int(m["index"]) for m in _STEP.finditer(path))


def _wrong(path: Path, lines: dict[Place, int], place: Place, what: str) -> InvalidInput:
    line = next(lines[place[:n]] for n in range(len(place), -1, -1) if place[:n] in lines)
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return InvalidInput(f"{key}: {what}" if key else what, where=f"{path}:{line}", do="see docs/playbook.md")
