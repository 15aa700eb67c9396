"""Which files of a folder are tried, and what the user says of their ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from eroica.producers.trace.frontend import SUFFIXES
from eroica.producers.trace.matching import compiled, first_groups
from eroica.producers.trace.strangers import known_stranger
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.ranks import MAX_RANK

MAX_FILES = 100_000
MAX_NAMED = 5
"""Kinds of files that a note names."""
MAX_LOOKED_INTO = 1_000
"""Other files whose beginning is looked at."""
SIDE_SUFFIX = ".side.json"
PATTERN_OPTION = "--rank-from"


@dataclass(frozen=True, slots=True)
class RankRule:
    """The user's word on ranks: ``FILE=N`` by name, and a pattern whose first group is the rank."""

    named: tuple[tuple[str, int], ...] = ()
    pattern: str = ""

    @classmethod
    def parse(cls, assignments: Sequence[str], pattern: str = "") -> RankRule:
        """Read the options.

        :raises UsageError: an assignment that is not ``FILE=N``, or a pattern that is none or has no group.
        """
        named = []
        for text in assignments:
            file, equals, number = text.rpartition("=")
            if not equals or not file or not number.isdigit() or int(number[:9]) > MAX_RANK:
                raise UsageError(f"{text!r} is not FILE=N", where="--rank", do="e.g. --rank node-3/trace.json=24")
            named.append((file, int(number)))
        return cls(tuple(named), compiled(pattern, PATTERN_OPTION).pattern if pattern else "")

    def over(self, paths: Sequence[Path], root: Path) -> Ranks:
        """The rule for *paths*, all searched at once.

        :raises UsageError: the user names a file that is not there, or the pattern takes too long.
        """
        self._check_used(paths, root)
        names = [relative_to(path, root).as_posix() for path in paths]
        found = first_groups(self.pattern, names, PATTERN_OPTION) if self.pattern and names else [None] * len(names)
        return Ranks(self.named, root, {name: text for name, text in zip(names, found, strict=True) if text is not None})

    def _check_used(self, paths: Sequence[Path], root: Path) -> None:
        """Every file that the user names must be there."""
        there = [relative_to(path, root).as_posix() for path in paths] + [str(path) for path in paths]
        for file, _ in self.named:
            if not any(one == file or one.endswith("/" + file) for one in there):
                raise UsageError(f"there is no trace {file!r}", where="--rank", do="name it as below the folder")


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the user's word comes to for the files of one folder."""

    named: tuple[tuple[str, int], ...]
    root: Path
    found: Mapping[str, str]
    """Path below the folder → what the pattern's group holds."""

    def of(self, path: Path) -> int | None:
        """The rank of *path*, None where the user said nothing of it.

        :raises InvalidInput: the pattern's group is no rank.
        """
        relative = relative_to(path, self.root).as_posix()
        for file, rank in self.named:
            if relative == file or relative.endswith("/" + file) or str(path) == file:
                return rank
        text = self.found.get(relative)
        if text is None:
            return None
        if not text.isdigit() or int(text[:9]) > MAX_RANK:
            raise InvalidInput(f"the pattern finds {text[:40]!r}, which is no rank", where=str(path), do=f"mend {PATTERN_OPTION}")
        return int(text)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files to try, by name, and how many others lie between them: by what they are, else by suffix."""

    root: Path
    files: list[Path]
    others: dict[str, int]
    known: dict[tuple[str, str], int] = field(default_factory=dict)
    """What a file is and what to do with it → how many."""

    @property
    def notes(self) -> list[str]:
        """What was passed by."""
        return [_counted(what, do, count) for (what, do), count in sorted(self.known.items())] + self._by_suffix()

    def _by_suffix(self) -> list[str]:
        if not self.others:
            return []
        kinds = sorted(self.others.items(), key=lambda item: (-item[1], item[0]))
        named = ", ".join(f"{count} {suffix or 'without suffix'}" for suffix, count in kinds[:MAX_NAMED])
        more = f", and {len(kinds) - MAX_NAMED} other kinds" if len(kinds) > MAX_NAMED else ""
        total = sum(self.others.values())
        return [f"{total} {'file is' if total == 1 else 'files are'} no trace by the name and left out: {named}{more}"]


def list_traces(source: str | Path) -> Listing:
    """*source* itself if it is a file, else all trace files under it; side files and hidden ones are none.

    :raises InvalidInput: no such file or folder, none found, or more than :data:`MAX_FILES`.
    """
    place = Path(source)
    if place.is_file():
        return Listing(place.parent, [place], {})
    if place.exists() and not place.is_dir():
        raise InvalidInput("it is neither an ordinary file nor a folder", where=str(source), do="write the trace to a file first")
    if not place.is_dir():
        raise InvalidInput(
            "there is no such file or folder", where=str(source), do="give a trace, or the folder that holds the ranks' traces"
        )
    files: list[Path] = []
    others, known = Counter[str](), Counter[tuple[str, str]]()
    for path in place.rglob("*"):
        relative = path.relative_to(place)
        if any(part.startswith(".") for part in relative.parts) or not path.is_file():
            continue
        if path.name.endswith(SIDE_SUFFIX):
            continue
        if path.name.lower().endswith(SUFFIXES):
            files.append(path)
        elif known.total() + others.total() < MAX_LOOKED_INTO and (kind := known_stranger(path)) is not None:
            known[kind] += 1
        else:
            others[path.suffix[:20]] += 1
        if len(files) > MAX_FILES:
            raise InvalidInput(f"it holds more than {MAX_FILES} traces", where=str(source), do="give a folder of one run")
    if not files and known:
        told = "; ".join(_counted(what, "", count) for (what, _), count in sorted(known.items()))
        raise InvalidInput(f"it holds no trace. {told}", where=str(source), do=max(known, key=lambda kind: known[kind])[1])
    if not files:
        kinds = ", ".join(sorted(s for s in others if s)[:MAX_NAMED])
        raise InvalidInput(
            f"it holds no trace ({', '.join(SUFFIXES)}) and no timeline (.parquet)" + (f", only {kinds}" if kinds else ""),
            where=str(source),
            do="give the folder that holds the ranks' traces",
        )
    return Listing(place, sorted(files), dict(others), dict(known))


def _counted(what: str, do: str, count: int) -> str:
    return f"{'one file is' if count == 1 else f'each of {count} files is'} {what}" + (f": {do}" if do else "")


def relative_to(path: Path, root: Path) -> PurePath:
    """*path* below *root*, or its name."""
    return path.relative_to(root) if path.is_relative_to(root) else PurePath(path.name)
