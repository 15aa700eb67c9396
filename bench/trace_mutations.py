"""Ways to break a trace, and whether two readings of it are the same. For the fuzz of the bench and of the tests."""

from __future__ import annotations

import gzip
import random
from typing import Any

import numpy as np

from eroica.producers.trace.columns import Trace

KEYS = (
    b'"ts"', b'"dur"', b'"tid"', b'"pid"', b'"correlation"', b'"stream"', b'"name"', b'"args"', b'"ph"', b'"cat"', b'"bytes"',
    b'"Collective name"', b'"dtype"', b'"Seq"', b'"traceEvents"', b'"External id"',
)  # fmt: skip
VALUES = (
    b"NaN", b"-Infinity", b"-1", b"-0", b"-0.0", b"01", b"1.", b".5", b"1e308", b"1e309", b"-1e-320", b"1e-9", b"1E+2", b"9" * 18,
    b"9" * 19, b"-" + b"9" * 40, b"0.1" + b"7" * 40, b"1700000000123456.789", b"9007199254740993.5", b"true", b"null", b"nul",
    b"[]",
    b"{}", b'"x"', b'"X"', b'"\\u0058"', b'"12.5"', b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\q"', b'"\xff"', b'"\xc3\xa9"',
    b'"\xed\xa0\x80"', b'"a\x00b"', b'"a\tb"', b"[" * 3000, b"[" * 70 + b"]" * 70, b'[{"name":1},{"name":2}]', b'{"ph":"X"}',
    b'{"correlation":1.0}', b'{"stream":true}', b'{"Collective name":null,"dtype":"Float"}', b"1, \"ts\": 5", b'"x", "ph": "X"',
)  # fmt: skip
"""What may stand where a value stood: odd numbers, texts, types, nesting, duplicate keys."""

COLUMNS = ("name", "category", "ts_us", "end_us", "dur_us", "thread", "stream", "correlation", "launch", "bytes")
FIELDS = ("names", "threads", "streams", "comm", "meta", "origin_us", "absolute", "repairs")


def mutated(raw: bytes, dice: random.Random) -> bytes:
    """One of: cut, flipped bytes, a piece missing, a piece twice, values of one key replaced, a damaged gzip file."""
    kind = dice.randrange(8)
    if kind == 0:
        return raw[: dice.randrange(len(raw))]
    if kind in (1, 2):
        data = bytearray(raw)
        for _ in range(dice.randrange(1, 60) if kind == 1 else 1):
            data[dice.randrange(len(data))] = dice.randrange(256)
        return bytes(data)
    if kind in (3, 4):
        a, b = sorted((dice.randrange(len(raw)), dice.randrange(len(raw))))
        return raw[:a] + raw[b:] if kind == 3 else raw[:b] + raw[a:]
    if kind == 5:
        packed = bytearray(gzip.compress(raw, 1))
        for _ in range(dice.randrange(3)):
            packed[dice.randrange(len(packed))] ^= 1 << dice.randrange(8)
        return bytes(packed[: dice.randrange(len(packed)) if dice.random() < 0.3 else len(packed)])
    key = dice.choice(KEYS)
    pieces = raw.split(key)
    for _ in range(dice.randrange(1, 30)):
        if len(pieces) < 2:
            break
        i = dice.randrange(1, len(pieces))
        _, comma, rest = pieces[i].partition(b"," if kind == 6 else b"}")
        pieces[i] = b": " + dice.choice(VALUES) + comma + rest
    return key.join(pieces)


def difference(one: Trace, other: Trace) -> str:
    """The first column or field that differs, with its type; empty if there is none."""
    for column in COLUMNS:
        a, b = getattr(one, column), getattr(other, column)
        if a.dtype != b.dtype or not np.array_equal(a, b):
            return column
    return next((f for f in FIELDS if _shown(getattr(one, f)) != _shown(getattr(other, f))), "")


def _shown(value: Any) -> Any:
    return repr(sorted(value.items(), key=repr) if isinstance(value, dict) else value)  # NaN equals itself here
