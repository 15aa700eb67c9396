"""What a collective's event says about itself, from its arguments; whatever a file holds becomes a bounded record."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec

from eroica.producers.trace.events import JSON_ERRORS, Args
from eroica.schemas.ranks import MAX_RANK

MAX_TENSORS = 100_000
"""Inputs of one operation that are added up."""
_ANY = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class CommArgs:
    """What a collective's event says about itself; empty where it does not."""

    collective: str = ""
    in_elements: int = -1
    out_elements: int = -1
    dtype: str = ""
    group_size: int = 0
    group_name: str = ""
    group_description: str = ""
    group_ranks: str = ""
    seq: int = -1
    peer: int = -1
    """The other end of a send or receive, as a rank of the job."""


def comm_args(arg: Args) -> CommArgs:
    """Read the arguments of a collective's event; elements and type by the shapes of its inputs where nothing else tells them."""
    elements, dtype = _bounded(arg.in_elements), arg.dtype
    if elements < 0 and len(arg.dims):
        elements, dtype = inputs(_value(arg.dims), _value(arg.types))
    return CommArgs(
        collective=str(arg.collective or "")[:100],
        in_elements=elements,
        out_elements=_bounded(arg.out_elements),
        dtype=str(dtype)[:32],
        group_size=max(0, _bounded(arg.group_size)),
        group_name=str(arg.group_name)[:200],
        group_description=str(arg.group_description)[:200],
        group_ranks=str(arg.group_ranks)[:2_000],
        seq=_bounded(arg.seq),
        peer=_peer(arg.destination if arg.destination is not None else arg.source),
    )


def inputs(dims: Any, types: Any) -> tuple[int, str]:
    """Elements of all input tensors together, -1 if there is none, and their type, empty if they differ or do not tell.

    >>> inputs([[4, 8], []], ["c10::BFloat16", "Scalar"])
    (32, 'BFloat16')

    :param dims: per input its shape, or for a list of tensors a list of shapes; ``[]`` for what is no tensor.
    :param types: per input the type's name; ``TensorList`` for a list of tensors.
    """
    if not isinstance(dims, list):
        return -1, ""
    names = types if isinstance(types, list) else []
    total, kinds = -1, set()
    for i, shape in enumerate(dims[:MAX_TENSORS]):
        name = names[i] if i < len(names) and isinstance(names[i], str) else ""
        of_list = isinstance(shape, list) and bool(shape) and isinstance(shape[0], list)
        for one in shape[:MAX_TENSORS] if of_list else [shape]:
            if isinstance(one, list) and one and all(type(n) is int and 0 <= n < 2**40 for n in one[:16]):
                total = max(total, 0) + prod(one[:16])
                kinds.add("" if of_list else name)
    dtype = kinds.pop() if len(kinds) == 1 else ""
    return _bounded(total), dtype.removeprefix("c10::").removesuffix(" int").removeprefix("unsigned ").removeprefix("signed ")


def _value(raw: msgspec.Raw) -> Any:
    try:
        return _ANY.decode(raw)
    except JSON_ERRORS:
        return None


def _peer(value: Any) -> int:
    """A rank, written as a number or a text."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value[:20])
    return value if type(value) is int and 0 <= value <= MAX_RANK else -1


def _bounded(value: int) -> int:
    return value if -1 <= value < 2**62 else -1
