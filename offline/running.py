"""Whether the services run: as the broker sees their consumer groups, and by what detect writes."""

from __future__ import annotations

import time

from eroica.bus import groups_with_members, read_partitions
from eroica.consumers.manual import say_age
from eroica.offline.check import Check
from eroica.schemas.errors import EroicaError
from eroica.schemas.settings import EroicaSettings, KafkaSettings

HEARD_BACK_S = 300
"""How far back a sign of life of detect is looked for."""
SILENT_S = 30
"""Detect speaks every two seconds while a job reports; the hosts' clocks may differ by some seconds."""
SERVICES = ("detect", "group", "localize")
"""Those of the pipeline; each is a consumer group of its name."""


def services(settings: EroicaSettings) -> Check:
    """Do the services run, on whatever machine?"""
    try:
        found = groups_with_members(settings.kafka, SERVICES)
        heard = _last_partial_ms(settings.kafka) if "detect" in found else None
    except EroicaError as error:
        return Check("services", "hint", f"cannot tell, {error.where}: {error.what}", error.do)
    return say_services(found, settings.kafka.prefix, None if heard is None else time.time() - heard / 1_000)


def say_services(found: frozenset[str], prefix: str, silent_s: float | None) -> Check:
    """What to say of the services. Pure.

    :param found: those that have a member in the broker's eyes, which a killed one has for a while yet.
    :param silent_s: since detect last spoke; ``None`` if it has not within :data:`HEARD_BACK_S`, or no job was there to speak of.
    """
    name = "services"
    missing = [service for service in SERVICES if service not in found]
    if missing:
        also = f"; {', '.join(s for s in SERVICES if s in found)} {'runs' if len(found) == 1 else 'run'}" if found else ""
        advice = f"verdicts need them all; start: {', '.join(f'eroica {service}' for service in missing)}"
        return Check(name, "hint", f"the broker sees no {' and no '.join(missing)} under {prefix}{also}", advice)
    text = f"{', '.join(SERVICES)} run, as the broker sees them"
    if silent_s is None:
        return Check(name, "ok", text)
    text += f"; detect last spoke {say_age(max(0, int(silent_s * 1e6)))} ago"
    if silent_s > SILENT_S:
        advice = (
            "while a job reports it speaks every two seconds: if one does, detect was killed or stands still, look at its log"
        )
        return Check(name, "hint", text, advice)
    return Check(name, "ok", text)


def _last_partial_ms(kafka: KafkaSettings) -> int | None:
    """When detect's first hop wrote for the last time, by its own clock, ms."""
    start = int((time.time() - HEARD_BACK_S) * 1_000)
    batches = read_partitions(kafka, "partials", start=start, to_end=True, client_id="eroica-doctor")
    return max((record.timestamp_ms for batch in batches for record in batch), default=None)
