"""What a hooked process says of itself, checked: it is input from outside this process. Pure."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from eroica.producers.hook.wire import WIRE_VERSION
from eroica.schemas.errors import InvalidInput, SchemaError
from eroica.schemas.jobs import ProcessGroup
from eroica.schemas.ranks import MAX_RANK, format_ranks, parse_ranks

M = TypeVar("M")

MAX_GROUPS = 512
"""As in the hook; a rank of a large job is in about twenty."""

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=256)]
Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]


class _Group(msgspec.Struct):
    name: Text
    desc: Text = ""
    backend: Text = ""
    ranks: Annotated[list[Rank], Meta(max_length=65_536)] | Annotated[str, Meta(max_length=60_000)] = ""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process. Names are as in ``producers/hook/wire.py``; unknown fields are passed over."""

    pid: Annotated[int, Meta(ge=1, le=2**31)]
    rank: Rank
    world_size: Annotated[int, Meta(ge=1, le=MAX_RANK + 1)]
    job: Name
    run_id: Name
    local_rank: Annotated[int, Meta(ge=-1, le=MAX_RANK)] = -1
    host: Text = ""
    device: Text = ""
    framework: Text = ""
    launcher: Text = ""
    coords: Annotated[dict[Text, Rank], Meta(max_length=16)] = msgspec.field(default_factory=dict)
    groups: Annotated[list[_Group], Meta(max_length=MAX_GROUPS)] = msgspec.field(default_factory=list)
    v: int = 0

    def process_groups(self) -> list[ProcessGroup]:
        """The groups as they are announced, ranks as ranges.

        :raises SchemaError: a list of ranks that cannot be read.
        """
        return [
            ProcessGroup(
                name=group.name,
                kind=group.desc,
                backend=group.backend,
                ranks=format_ranks(parse_ranks(group.ranks) if isinstance(group.ranks, str) else group.ranks),
            )
            for group in self.groups
        ]


def convert(message: dict[str, Any], kind: type[M]) -> M:
    """*message* as *kind*. Half surrogates (a job's name in no encoding) become question marks: they could not be sent on.

    :raises msgspec.MsgspecError: it is none; also for numbers that JSON does not have.
    """
    raw = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    return msgspec.json.decode(raw, type=kind)


def parse_hello(message: dict[str, Any]) -> Hello:
    """Check a ``hello`` message.

    :raises InvalidInput: says which field is wrong, or that the hook is of another release.
    """
    if message.get("v") != WIRE_VERSION:
        raise InvalidInput(
            f"a training process speaks wire version {str(message.get('v'))[:20]!r}, this agent {WIRE_VERSION}",
            where=f"pid {str(message.get('pid'))[:20]}",
            do="install the same release of eroica in the training environment and for the agent",
        )
    try:
        hello = convert(message, Hello)
        hello.process_groups()
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"a hello cannot be understood: {error}", where=f"pid {str(message.get('pid'))[:20]}") from error
    except SchemaError as error:
        raise InvalidInput(f"a hello names impossible ranks: {error.what}", where=f"pid {hello.pid}") from error
    if hello.rank >= hello.world_size:
        raise InvalidInput(
            f"rank {hello.rank} lies outside of a world of {hello.world_size}",
            where=f"job {hello.job}, pid {hello.pid}",
            do="check RANK and WORLD_SIZE of the training processes",
        )
    return hello
