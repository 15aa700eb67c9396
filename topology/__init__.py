"""The model of a training job: who sits where, who is compared with whom, who waits for whom.

Layouts and groups (``presets``, ``layout``), what a running job tells of itself (``jobview``), pipeline schedules
(``schedules``), the step as a graph (``strategy``, ``step``, ``stepgraph``) and what would mend it (``whatif``).
"""

from eroica.topology.grid import Grid, Groups
from eroica.topology.jobview import JobView, JobViewBuilder, merge_announcements
from eroica.topology.layout import RankLayout
from eroica.topology.presets import FRAMEWORKS, build_layout
from eroica.topology.roles import comparison_classes

__all__ = [
    "FRAMEWORKS",
    "Grid",
    "Groups",
    "JobView",
    "JobViewBuilder",
    "RankLayout",
    "build_layout",
    "comparison_classes",
    "merge_announcements",
]
