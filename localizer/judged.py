"""A request as it was judged: what an explanation starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eroica.localizer.actions import Advice
from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Judgement
from eroica.localizer.own import Past
from eroica.schemas.settings import LocalizeSettings
from eroica.schemas.verdicts import Verdict


@dataclass(frozen=True)
class Judged:
    """All that went into a verdict, and the verdict."""

    frame: Frame
    past: Past | None
    judgement: Judgement
    advice: Advice
    settings: LocalizeSettings
    verdict: Verdict


Watcher = Callable[[Judged], None]


def nobody(_: Judged) -> None:
    """Where nobody watches."""
