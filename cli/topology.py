"""``eroica topology``: the groups of a layout, and where a rank sits in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from eroica.cli.options import ALL, Common, Words, command
from eroica.cli.output import out
from eroica.consumers.text import one_line
from eroica.schemas.errors import InvalidInput, TopologyError, UsageError
from eroica.schemas.files import read_bounded
from eroica.schemas.ranks import RankArray, format_ranks
from eroica.schemas.wording import say_count
from eroica.topology.hosts import Hosts
from eroica.topology.layout import RankLayout
from eroica.topology.presets import FRAMEWORKS, build_layout, custom, folded

MAX_COORDINATE_FILE_BYTES = 64_000_000
"""A file of explicit coordinates is read whole: a million ranks fit."""
TP_PP_DP_ORDER = "tp-cp-ep-pp-dp"
NAME_WIDTH = 60
GRID_RANKS = 512
"""Most ranks that a person is shown as a grid."""

HELP = """Show the process groups of a parallel layout: who is a peer of whom, on which host, on which rail.

Sizes that are not given follow from the others; those that contradict each other end with exit code 2.

Example: eroica topology --framework megatron --world 64 --tp 2 --pp 4 --ep 4 --rank 37

Example: eroica topology --framework torchtitan --world 32 --tp 4 --dp-replicate 2 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command to the ``eroica`` application."""
    app.command("topology", cls=Words, help=HELP)(command(topology, unused=ALL))


def topology(
    common: Common,
    framework: Annotated[str, typer.Option(help=f"{', '.join(FRAMEWORKS)} or custom.")],
    world: Annotated[int, typer.Option(help="Number of ranks; for custom, left out.")] = 0,
    tp: Annotated[int | None, typer.Option(help="Tensor parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline parallel size.")] = None,
    cp: Annotated[int | None, typer.Option(help="Context parallel size.")] = None,
    ep: Annotated[int | None, typer.Option(help="Expert parallel size.")] = None,
    etp: Annotated[int | None, typer.Option(help="Expert tensor parallel size (Megatron: that of --tp).")] = None,
    dp: Annotated[int | None, typer.Option(help="Data parallel size; follows from the others, checked if given.")] = None,
    edp: Annotated[int | None, typer.Option(help="Expert data parallel size; follows, checked if given.")] = None,
    dp_replicate: Annotated[int | None, typer.Option("--dp-replicate", help="Replicas (torchtitan, hsdp).")] = None,
    dp_shard: Annotated[int | None, typer.Option("--dp-shard", help="Shards (torchtitan, hsdp); -1 or none: the rest.")] = None,
    vpp: Annotated[int | None, typer.Option(help="Model chunks a pipeline rank holds.")] = None,
    order: Annotated[str, typer.Option(help="Megatron's order of axes, the first fastest, e.g. tp-cp-ep-pp-dp.")] = "",
    use_tp_pp_dp_mapping: Annotated[
        bool, typer.Option("--use-tp-pp-dp-mapping", help="Megatron: the same as --order tp-cp-ep-pp-dp.")
    ] = False,
    placement: Annotated[
        str, typer.Option(help="Stages of a pipeline rank: loop (p, p+PP, …) or v (p and 2·PP-1-p, as ZBV and DualPipeV).")
    ] = "loop",
    use_data_before_expert: Annotated[
        bool, typer.Option("--use-data-before-expert", help="DeepSpeed: consecutive expert-data groups.")
    ] = False,
    coordinates: Annotated[
        Path | None, typer.Option(help='custom: a JSON file, {"pp": [0, 0, …], "dp": [0, 1, …]}, a number a rank.')
    ] = None,
    ranks_per_host: Annotated[int, typer.Option("--ranks-per-host", min=1, help="Ranks a host, for hosts and rails.")] = 8,
    rank: Annotated[int | None, typer.Option(help="Only the groups of this rank, and its coordinates.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """The command; see ``HELP``."""
    del common  # no setting bears on it; the options are there for all commands alike
    sizes = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "etp": etp, "dp": dp, "edp": edp, "vpp": vpp}
    sizes |= {"dp_replicate": dp_replicate, "dp_shard": dp_shard}
    options: dict[str, int | str | bool] = {name: size for name, size in sizes.items() if size is not None}
    if use_tp_pp_dp_mapping:
        if order not in ("", TP_PP_DP_ORDER):
            raise UsageError(f"--use-tp-pp-dp-mapping is the order {TP_PP_DP_ORDER}, not {order!r}", where="--order")
        order = TP_PP_DP_ORDER
    if order:
        options["order"] = order
    if placement != "loop":
        options["placement"] = placement
    if use_data_before_expert:
        options["use_data_before_expert"] = True
    layout = _layout(framework, world, options, coordinates)
    if rank is not None and not 0 <= rank < layout.world:
        raise UsageError(f"rank {rank} is outside of 0..{layout.world - 1}", where="--rank")
    hosts = Hosts.consecutive(layout.world, ranks_per_host)
    if as_json:
        typer.echo(json.dumps(describe(layout, hosts, rank), separators=(",", ":")))
    else:
        _print(layout, hosts, rank)


def describe(layout: RankLayout, hosts: Hosts, rank: int | None = None) -> dict[str, Any]:
    """The answer for programs: ``groups`` by kind (with *rank*, only those that hold it), and beside them what places
    the ranks.
    """
    out: dict[str, Any] = {
        "framework": layout.framework,
        "world": layout.world,
        "sizes": dict(layout.sizes),
    }
    if layout.order:
        out["order"] = layout.order
    if rank is None:
        out["groups"] = {kind: layout.groups(kind).tolist() for kind in layout.kinds}
        return out
    one = np.array([rank], dtype=np.int64)
    out["rank"] = rank
    out["coordinates"] = {axis: int(values[0]) for axis, values in layout.coordinates(one).items()}
    out["stages"] = layout.stages(one)[0].tolist()
    out["host"], out["rail"] = int(hosts.host_of[rank]), int(hosts.rail_of[rank])
    out["peers"] = format_ranks(_others(layout, rank))
    out["groups"] = {kind: [layout.groups(kind).containing(rank).tolist()] for kind in layout.kinds}
    return out


def _others(layout: RankLayout, rank: int) -> RankArray:
    """The peers of *rank* in its pipeline stage, without itself."""
    peers = layout.peers(rank)
    others: RankArray = peers[peers != rank]
    return others


def _layout(framework: str, world: int, options: dict[str, int | str | bool], coordinates: Path | None) -> RankLayout:
    if framework != "custom":
        if coordinates is not None:
            raise UsageError("--coordinates goes with --framework custom only", where="--coordinates")
        if world < 1:
            what = f"a job cannot have {world} ranks" if world else "the world size is missing"
            raise UsageError(what, where="--world", do="give the number of ranks, 1 or more")
        try:
            return build_layout(framework, world, options)
        except TopologyError as error:
            raise UsageError(error.what, where=f"{framework} of {world} ranks", do=error.do) from error
    if coordinates is None:
        raise UsageError("a custom layout needs its coordinates", where="--coordinates", do="name a JSON file")
    counted, vpp = "vpp" in options, int(options.pop("vpp", 1))
    placement = str(options.pop("placement", "loop"))
    if options:
        raise UsageError(f"a custom layout has no option {next(iter(options))!r}")
    try:
        layout = folded(custom(_read_coordinates(coordinates), vpp=vpp), placement, counted)
    except TopologyError as error:
        raise UsageError(error.what, where=str(coordinates), do=error.do) from error
    if world not in (0, layout.world):
        raise UsageError(f"the coordinates place {layout.world} ranks, not {world}", where=str(coordinates))
    return layout


def _read_coordinates(path: Path) -> dict[str, RankArray]:
    try:
        table = msgspec.json.decode(read_bounded(path, MAX_COORDINATE_FILE_BYTES), type=dict[str, list[int]])
    except OSError as error:
        raise InvalidInput(f"the file cannot be read ({error.strerror})", where=str(path)) from error
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"the file is not a table of coordinates ({error})",
            where=str(path),
            do='write {"pp": [0, 0, 1, 1], "dp": [0, 1, 0, 1]}, one number a rank',
        ) from error
    try:
        return {axis: np.array(values, dtype=np.int64) for axis, values in table.items()}
    except OverflowError as error:
        raise InvalidInput("a coordinate is beyond 64 bits", where=str(path)) from error


def _print(layout: RankLayout, hosts: Hosts, rank: int | None) -> None:
    console = out(markup=True)
    sizes = ", ".join(f"{_shown(axis)} {size}" for axis, size in layout.sizes.items())
    console.print(f"[bold]{layout.framework}[/bold], {say_count(layout.world, 'rank')}: {sizes}")
    mine = set() if rank is None else set(_others(layout, rank).tolist())
    if layout.world <= GRID_RANKS:
        console.print(_grid(layout, rank, mine))
    kinds = Table("kind", "groups", "size", "crosses hosts", "members" if rank is None else f"with rank {rank}")
    for kind in layout.kinds:
        groups = layout.groups(kind)
        crossing = int(hosts.crosses(groups).sum())
        shown = groups.members[: groups.offsets[1]] if rank is None else groups.containing(rank)
        text = format_ranks(shown)
        kinds.add_row(
            _shown(kind),
            str(len(groups)),
            str(groups.largest()),
            str(crossing),
            text if rank is not None or len(groups) == 1 else f"{text}, …",
        )
    console.print(kinds)
    if rank is not None:
        one = np.array([rank], dtype=np.int64)
        places = ", ".join(f"{_shown(axis)} {int(v[0])}" for axis, v in layout.coordinates(one).items())
        console.print(
            f"rank {rank}: {places}; host {int(hosts.host_of[rank])}, rail {int(hosts.rail_of[rank])}; "
            f"{_stages(layout, rank)}{_say_peers(len(mine), layout)}"
        )


def _shown(axis: str) -> str:
    """A name that may come from a file, for a console that reads markup."""
    return escape(one_line(axis, NAME_WIDTH))


def _say_peers(count: int, layout: RankLayout) -> str:
    stage = "stage" if layout.stages_per_rank == 1 else "stages"
    return f"its {say_count(count, 'peer')} {'shares' if count == 1 else 'share'} its pipeline {stage}"


def _stages(layout: RankLayout, rank: int) -> str:
    """The stages that *rank* holds, where they are not simply that of its pipeline rank."""
    if layout.stages_per_rank == 1:
        return ""
    held = layout.stages(np.array([rank], dtype=np.int64))[0].tolist()
    return f"holds stages {', '.join(map(str, held))}; "


def _grid(layout: RankLayout, rank: int | None, peers: set[int]) -> Table:
    """Rows are pipeline ranks with the stages that they hold, columns the ranks in them."""
    stage = layout.coordinates().get("pp", np.zeros(layout.world, dtype=np.int64))
    table = Table("stage", "ranks", show_lines=False)
    for s in np.unique(stage).tolist():
        cells = []
        for r in np.flatnonzero(stage == s).tolist():
            style = "bold red" if r == rank else "green" if r in peers else ""
            cells.append(f"[{style}]{r}[/{style}]" if style else str(r))
        ranks = np.flatnonzero(stage == s)[:1]
        held = f": stages {', '.join(map(str, layout.stages(ranks)[0]))}" if layout.stages_per_rank > 1 else ""
        table.add_row(f"pp {s}{held}", " ".join(cells))
    return table
