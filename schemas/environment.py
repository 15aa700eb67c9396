"""The environment's variables that are ours: which there are, and what to say of one that nobody reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import get_origin

from pydantic.fields import FieldInfo

from eroica.schemas.wording import did_you_mean

PREFIX = "EROICA_"
BETWEEN = "__"
CONFIG = "EROICA_CONFIG"
NO_SETTINGS = frozenset(
    {
        CONFIG,
        "EROICA_DEBUG",
        "EROICA_LOG_LEVEL",
        "EROICA_JOB",
        "EROICA_HOST",
        "EROICA_RUNTIME_DIR",
        "EROICA_HOOK",
        "EROICA_RECREATED_TOPICS",
        "EROICA_REQUIRE_KAFKA",
    }
)
"""Variables of ours that are read elsewhere."""

MAX_NAMED = 5
_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$")
"""What Kubernetes sets in every pod for a service whose name begins like ours."""


def variable(section: str, key: str = "") -> str:
    """The variable of a setting, or of a section as JSON.

    >>> variable("detect", "window")
    'EROICA_DETECT__WINDOW'
    """
    return PREFIX + BETWEEN.join(part.upper() for part in (section, key) if part)


def is_table(field: FieldInfo) -> bool:
    """Whether a setting holds names and values of the user's own."""
    return get_origin(field.annotation) is dict


class Variables:
    """The variables that settings are read from.

    :param sections: section → key → the setting.
    """

    def __init__(self, sections: Mapping[str, Mapping[str, FieldInfo]]) -> None:
        self._exact = {variable(section, key) for section, keys in sections.items() for key in ("", *keys)}
        self._open = tuple(
            variable(section, key) + BETWEEN
            for section, keys in sections.items()
            for key, field in keys.items()
            if is_table(field)
        )
        """Beginnings of those whose last part is free."""

    def strange(self, name: str) -> bool:
        """Whether *name* begins like a variable of ours and is none; upper and lower case are the same here."""
        upper = name.upper()
        if not upper.startswith(PREFIX) or upper in self._exact or upper in NO_SETTINGS or upper.startswith(self._open):
            return False
        return BETWEEN in upper or not _KUBERNETES.search(upper)

    def warnings(self, names: Iterable[str]) -> list[str]:
        """A sentence for each of *names* that is strange, for few of them where there are many."""
        strange = sorted({name for name in names if self.strange(name)})
        told = [self._warning(name) for name in strange[:MAX_NAMED]]
        if len(strange) > MAX_NAMED:
            told.append(f"and {len(strange) - MAX_NAMED} more variables that begin with {PREFIX} are none of ours")
        return told

    def _warning(self, name: str) -> str:
        near = _nearest(name.upper(), self._exact | NO_SETTINGS)
        return f"the environment's {name[:100]} is no setting and is passed over. {near}see `eroica schema settings`"


def _nearest(name: str, known: Collection[str]) -> str:
    """The question for the one of *known* that may have been meant; all begin alike, so that says nothing."""
    question = did_you_mean(name.removeprefix(PREFIX), sorted(one.removeprefix(PREFIX) for one in known))
    return question.replace("did you mean ", f"did you mean {PREFIX}", 1)
