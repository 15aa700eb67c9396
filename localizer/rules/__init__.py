"""Rule sets by name: ``eroica`` (the default), ``paper`` and ``guide``, for comparison on the same cases."""

from __future__ import annotations

from collections.abc import Callable

from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Judgement
from eroica.localizer.own import Past
from eroica.localizer.rules.eroica import judge_eroica
from eroica.localizer.rules.guide import judge_guide
from eroica.localizer.rules.paper import judge_paper
from eroica.schemas.settings import LocalizeSettings

RuleSet = Callable[[Frame, LocalizeSettings, Past | None], Judgement]
"""Pure: the same frame, settings and healthy past give the same judgement."""

RULE_SETS: dict[str, RuleSet] = {"eroica": judge_eroica, "paper": judge_paper, "guide": judge_guide}
