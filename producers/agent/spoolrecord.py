"""One record of the disk spool: how it is written, and how it is known to be whole. Pure."""

from __future__ import annotations

import struct
import zlib

import msgspec

HEAD = struct.Struct("<2sII")
"""Magic, length of the body, CRC-32 of the body."""
MAGIC = b"ES"
MAX_BODY_BYTES = 4 * 2**20
"""Larger than any message; a length beyond it is damage."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One message that waits."""

    topic: str
    """Short name."""
    key: str
    value: bytes
    headers: list[tuple[str, bytes]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def pack(record: Record) -> bytes:
    """The record with its head."""
    body = _encoder.encode(record)
    return HEAD.pack(MAGIC, len(body), zlib.crc32(body)) + body


def body_at(data: bytes | bytearray, offset: int) -> bytes | bytearray | None:
    """The body of the record at *offset*; ``None`` where there is no whole and sound one."""
    if len(data) - offset < HEAD.size:
        return None
    magic, length, crc = HEAD.unpack_from(data, offset)
    body = data[offset + HEAD.size : offset + HEAD.size + length]
    if magic != MAGIC or length > MAX_BODY_BYTES or len(body) != length or zlib.crc32(body) != crc:
        return None
    return body


def is_torn(data: bytes, offset: int) -> bool:
    """Whether the record at *offset* is one that was being written when its process ended."""
    magic, length, _ = HEAD.unpack_from(data, offset)
    return bool(magic == MAGIC and len(data) - offset - HEAD.size < length <= MAX_BODY_BYTES)


def unpack(body: bytes | bytearray | None) -> Record | None:
    """The record in a body; ``None`` for a body that is none."""
    if body is None:
        return None
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return None
