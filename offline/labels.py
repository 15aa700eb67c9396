"""Labels of recordings and trace folders: what is really wrong there, as people write it down.

The format is described in ``docs/tuning.md``; ``labels.json`` of ``eroica simulate`` is one of its forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from eroica.schemas.errors import InvalidInput, SchemaError
from eroica.schemas.files import read_bounded
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.verdicts import CauseClass

MAX_LABELS_BYTES = 16_000_000
HEALTHY = "healthy"
PLACES = ("ranks", "hosts", "links", "stages")
_CAUSE_KEYS = {"class", "alternatives", "lookalikes", *PLACES}
_LABEL_KEYS = {"job", "request", "causes", "waiters", "imbalances", *_CAUSE_KEYS}


@dataclass(frozen=True)
class Label:
    """The truth of one recording or folder."""

    truth: dict[str, Any]
    """``causes``, ``waiters`` and ``imbalances`` as ``eroica simulate`` writes them."""
    job: str = ""
    """Whose run it is; empty if the label does not say."""
    request: str = ""
    """Which profile the truth is about; empty: the last that was judged."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.truth["causes"]


def read_labels(path: Path) -> dict[str, Label]:
    """Folder → label, from a YAML or JSON file.

    :raises InvalidInput: no file, no mapping, or a label that says nothing of use; it names the entry.
    """
    told = _load(path)
    if not isinstance(told, dict):
        raise InvalidInput("a file of labels maps folders to labels", where=str(path), do="see docs/tuning.md")
    return {str(name): read_label(value, f"{path}: {str(name)[:200]}") for name, value in told.items()}


def simulated_label(path: Path) -> Label:
    """The ``labels.json`` of a simulated recording.

    :raises InvalidInput: it is none.
    """
    told = _load(path)
    if not isinstance(told, dict) or not isinstance(told.get("causes"), list):
        raise InvalidInput("the labels of the simulator hold a list of causes", where=str(path), do="simulate it again")
    causes = [_cause({**cause, **cause.get("suspects", {})}, str(path)) for cause in told["causes"] if isinstance(cause, dict)]
    truth = {
        "causes": causes,
        "waiters": _ranks(told.get("waiters", ""), str(path)),
        "imbalances": _words(told.get("imbalances", [])),
    }
    job = f"{told.get('job', '')} of {told.get('world', '?')}"
    return Label(truth, job, str(told.get("request", "")))


def read_label(value: Any, where: str) -> Label:
    """One entry: ``healthy``, one cause, or a mapping with ``causes``.

    :raises InvalidInput: anything else.
    """
    if value == HEALTHY:
        return Label({"causes": [], "waiters": "", "imbalances": []})
    if not isinstance(value, dict):
        raise InvalidInput(f"a label is '{HEALTHY}' or a mapping, not {str(value)[:60]!r}", where=where)
    unknown = sorted(str(key)[:40] for key in value if key not in _LABEL_KEYS)
    if unknown:
        raise InvalidInput(
            f"unknown in a label: {', '.join(unknown)}", where=where, do=f"known: {', '.join(sorted(_LABEL_KEYS))}"
        )
    causes = value.get("causes", [value] if "class" in value else None)
    if not isinstance(causes, list):
        raise InvalidInput("the label names no cause", where=where, do=f"give a class, causes: […], or '{HEALTHY}'")
    truth = {
        "causes": [_cause(cause, where) for cause in causes],
        "waiters": _ranks(value.get("waiters", ""), where),
        "imbalances": _words(value.get("imbalances", [])),
    }
    return Label(truth, str(value.get("job", "")), str(value.get("request", "")))


def _cause(cause: Any, where: str) -> dict[str, Any]:
    known = get_args(CauseClass)
    if not isinstance(cause, dict) or cause.get("class") not in known:
        said = cause.get("class") if isinstance(cause, dict) else cause
        raise InvalidInput(f"no class of causes: {str(said)[:60]!r}", where=where, do=f"one of {', '.join(known)}")
    out: dict[str, Any] = {
        "class": cause["class"],
        "alternatives": _words(cause.get("alternatives", [])),
        "suspects": {
            "ranks": _ranks(cause.get("ranks", ""), where),
            "hosts": _words(cause.get("hosts", [])),
            "links": _words(cause.get("links", [])),
            "stages": [_number(s, where) for s in _list(cause.get("stages", []))],
        },
    }
    if cause.get("fault"):
        out["fault"] = str(cause["fault"])
    if "lookalikes" in cause:
        out["lookalikes"] = _ranks(cause["lookalikes"], where)
    if cause["class"] in ("worker", "host", "link", "pipeline_stage") and not any(out["suspects"].values()):
        raise InvalidInput(f"a {cause['class']} is at fault, but the label does not say which", where=where)
    return out


def _ranks(value: Any, where: str) -> str:
    text = ",".join(str(one) for one in _list(value))
    try:
        parse_ranks(text)
    except SchemaError as error:
        raise InvalidInput(error.what, where=where, do=error.do) from error
    return text


def _number(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{str(value)[:40]!r} is not the number of a stage", where=where)
    return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if value not in ("", None) else []


def _words(value: Any) -> list[str]:
    return [str(one) for one in _list(value)]


def _load(path: Path) -> Any:
    try:
        return yaml.safe_load(read_bounded(path, MAX_LABELS_BYTES).decode("utf-8"))
    except OSError as error:
        raise InvalidInput(f"the labels cannot be read ({error.strerror})", where=str(path)) from error
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the labels are neither YAML nor JSON ({str(error)[:200]})", where=str(path)) from error
