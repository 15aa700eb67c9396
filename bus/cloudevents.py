"""CloudEvents 1.0 in Kafka's binary mode: attributes are headers, the value is the data alone."""

from __future__ import annotations

from datetime import datetime, timezone

from eroica.bus.message import Headers

CONTENT_TYPE = "application/json"
_PREFIX = "ce_"
_MAX_ATTRIBUTE_BYTES = 1024
_LAST_MS = 253_402_300_799_999


def cloudevent_headers(*, event_type: str, source: str, event_id: str, time_ms: int | None = None, **extensions: str) -> Headers:
    """Headers of one event.

    :param event_type: ``ce_type``, the message's kind: ``io.eroica.verdict``.
    :param source: ``ce_source``, a URI reference of the sender: ``/agent/host-3``.
    :param event_id: ``ce_id``; *source* and *event_id* together name the event, so a repeated one is recognised.
    :param time_ms: event time, milliseconds since the epoch; left out where it is before 1970 or beyond the year 9999.
    :param extensions: further attributes; names in lower case letters and digits, as the specification wants.
    :raises ValueError: for an extension's name outside ``[a-z0-9]{1,20}``: a programming error.
    """
    attributes = {"specversion": "1.0", "type": event_type, "source": source, "id": event_id}
    if time_ms is not None and 0 <= time_ms <= _LAST_MS:
        moment = datetime.fromtimestamp(time_ms / 1000, tz=timezone.utc)
        attributes["time"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for name, value in sorted(extensions.items()):
        if not (name.isascii() and name.isalnum() and name == name.lower() and len(name) <= 20):
            raise ValueError(f"{name!r} is not a CloudEvents attribute name")
        attributes[name] = value
    pairs = [(_PREFIX + name, value.encode()) for name, value in attributes.items()]
    return (*pairs, ("content-type", CONTENT_TYPE.encode()))


def read_cloudevent(headers: Headers) -> dict[str, str]:
    """Attributes of an event without their ``ce_`` prefix; empty for a record that is none.

    Tolerant, for headers come from anywhere: values are cut at 1 KiB and undecodable bytes replaced.
    """
    return {
        name[len(_PREFIX) :]: value[:_MAX_ATTRIBUTE_BYTES].decode("utf-8", "replace")
        for name, value in headers
        if name.startswith(_PREFIX)
    }
