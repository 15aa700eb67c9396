"""What NCCL tells of a call through NVTX: the communicator, the bytes, the members; from a range's typed payload.

An export holds the payload as bytes (``NVTX_EVENTS.binaryData``), whose fields a table describes, or as JSON with the same names.
The bytes: domain and schema (4 each, each with 4 unused), the payload's size and the whole size (8 each), then the fields at
their offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import msgspec

from eroica.producers.trace.events import JSON_ERRORS
from eroica.producers.trace.nsys_db import NsysDatabase
from eroica.schemas.ranks import MAX_RANK

ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
MAX_FIELDS = 10_000
_HEADER = struct.Struct("<IIIIQQ")
_FORMATS = {
    4: struct.Struct("<i"),
    5: struct.Struct("<I"),
    17: struct.Struct("<q"),
    18: struct.Struct("<Q"),
    22: struct.Struct("<Q"),
}
"""By the type's number in NVTX: 32 and 64 bits, signed and not, and a size. Others are not needed and passed by."""
_COMMUNICATOR, _BYTES, _RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
_JSON = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Payload:
    """What one call says; 0 where it does not."""

    communicator: int = 0
    """A number that all members of a communicator share, on whatever host."""
    bytes: int = 0
    """As NCCL counts them: per rank, for an all-gather what one rank gives, for a reduce-scatter what one gets."""
    ranks: int = 0
    """Members; only the calls that make a communicator tell them."""


class Payloads:
    """Decodes payloads by the descriptions in an export."""

    def __init__(self, db: NsysDatabase) -> None:
        self._fields: dict[int, list[tuple[str, int, struct.Struct]]] = {}
        if not db.has(ENTRIES, "schemaId", "type", "name", "offset"):
            return
        query = f"SELECT DISTINCT schemaId, type, name, offset FROM {ENTRIES} LIMIT {MAX_FIELDS}"
        for schema, kind, name, offset in db.rows(query):
            known = _FORMATS.get(kind) if isinstance(kind, int) else None
            offset = 0 if offset is None else offset
            if known is None or not isinstance(schema, int) or not isinstance(offset, int) or not 0 <= offset < 2**16:
                continue
            if name in (_COMMUNICATOR, _BYTES, _RANKS):
                self._fields.setdefault(schema, []).append((name, _HEADER.size + offset, known))

    def read(self, binary: object, text: object) -> Payload | None:
        """The payload of a range out of its bytes, else its JSON; None where it has none or neither can be read."""
        raw = _bytes(binary)
        if len(raw) > _HEADER.size:
            _, _, schema, _, _, _ = _HEADER.unpack_from(raw)
            told = {n: f.unpack_from(raw, at)[0] for n, at, f in self._fields.get(schema, ()) if at + f.size <= len(raw)}
            return _payload(told) if told else None
        if isinstance(text, str) and text:
            try:
                value = _JSON.decode(text)
            except JSON_ERRORS:
                return None
            return _payload(value) if isinstance(value, dict) else None
        return None


def _payload(told: dict[str, Any]) -> Payload | None:
    communicator, size, ranks = (_natural(told.get(name)) for name in (_COMMUNICATOR, _BYTES, _RANKS))
    if not communicator and not size:
        return None
    return Payload(communicator, min(size, 2**62), ranks if ranks <= MAX_RANK + 1 else 0)


def _natural(value: object) -> int:
    """A number, or a text that is one, decimal or ``0x…``; else 0."""
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value, 0)
        except ValueError:
            return 0
    return value if type(value) is int and 0 < value < 2**64 else 0


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            return b""
    return b""
