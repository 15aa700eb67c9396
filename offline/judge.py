"""Summaries of one window through the cores of group and localizer, as if they had come over the topics."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from eroica.localizer.core import LocalizerCore
from eroica.localizer.judged import Watcher, nobody
from eroica.offline.usable import usable
from eroica.schemas.control import ProfileRequest
from eroica.schemas.errors import InvalidInput
from eroica.schemas.groups import GroupChunk
from eroica.schemas.ids import stable_id
from eroica.schemas.outputs import InputRef
from eroica.schemas.ranks import format_ranks
from eroica.schemas.settings import EroicaSettings
from eroica.schemas.summaries import CloseClass, Expectation, Summary, SummaryError
from eroica.schemas.verdicts import Verdict
from eroica.streams.collect import GroupCore
from eroica.topology.jobview import JobView


def judge(summaries: Sequence[Summary], settings: EroicaSettings, view: JobView, watch: Watcher = nobody) -> Verdict:
    """One verdict on *summaries*, whose classes are those of *view*.

    :param watch: told of what was judged.
    :raises InvalidInput: they give none.
    """
    first = summaries[0].who
    classes = {name: format_ranks(ranks) for name, ranks in view.classes.items()}
    roles = [view.topology_source, *(f"{name}={ranks}" for name, ranks in sorted(classes.items()))]
    start = min(s.first_step for s in summaries)
    request = ProfileRequest(
        request=stable_id(first.job, *(f"{s.who.rank}:{s.ended_at_us}:{s.window_us}" for s in summaries), *roles),
        job=first.job,
        run_id=first.run_id,
        reason="offline",
        start_step=start,
        steps=max(1, max(s.last_step for s in summaries) - start + 1),
        world_size=view.world_size,
        classes=classes,
        topology_source=view.topology_source,
        issued_at_us=min(s.ended_at_us for s in summaries),
        deadline_ms=1,
        with_stack=False,
    )
    names = sorted(request.classes)
    of_request = [msgspec.structs.replace(s, who=msgspec.structs.replace(s.who, request=request.request)) for s in summaries]
    messages: list[Expectation | Summary | SummaryError | CloseClass] = [
        *(Expectation(cls=name, ranks=request.classes[name], classes=names, request=request) for name in names),
        *usable(of_request),
        *(CloseClass(job=request.job, request=request.request, cls=name, closed_by="deadline") for name in names),
    ]
    group, localizer = GroupCore(settings.group), LocalizerCore(settings.localize, watch=watch)
    chunks: list[GroupChunk] = []
    for offset, message in enumerate(messages):
        for output in group.feed(message, InputRef("summaries", 0, offset)):
            if isinstance(output.message, GroupChunk):
                chunks.append(output.message)
    for offset, chunk in enumerate(chunks):
        for output in localizer.feed(chunk, InputRef("groups", 0, offset)):
            if isinstance(output.message, Verdict):
                return output.message
    raise InvalidInput("the summaries gave no group", where=request.request)
