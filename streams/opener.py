"""A profile request opens its comparison classes on ``summaries``; stateless."""

from __future__ import annotations

from eroica.schemas.control import ProfileRequest, checked_classes
from eroica.schemas.outputs import Output
from eroica.schemas.summaries import Expectation
from eroica.schemas.topics import message_key


def open_classes(request: ProfileRequest) -> list[Output]:
    """One :class:`Expectation` for each class of *request*, by name; the same request gives the same bytes.

    The key is that of the class's summaries, so that both meet in one partition.

    :raises SchemaError: as :func:`checked_classes`.
    """
    names = sorted(checked_classes(request))
    return [
        Output(
            key=message_key(request.job, request.request, name),
            message=Expectation(cls=name, ranks=request.classes[name], classes=names, request=request),
            event_time_us=request.issued_at_us,
        )
        for name in names
    ]
