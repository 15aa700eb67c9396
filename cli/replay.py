"""``eroica replay``: a recording without a broker, or back onto one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import err, out, print_bytes, print_json
from eroica.consumers.text import one_line
from eroica.schemas.errors import InvalidInput, UsageError
from eroica.schemas.wording import say_count

if TYPE_CHECKING:
    from eroica.offline.planted import Planted
    from eroica.offline.recording import Manifest
    from eroica.offline.replay import ReplayResult
    from eroica.schemas.settings import EroicaSettings

HELP = """Feed a recording to the same cores and come to its verdicts again, without a broker and without a clock.

The settings are those that the recording carries; --set changes some, --config replaces them. With --to-kafka the recording is
published under another prefix instead. What `eroica simulate` wrote is also held against what it planted.

Example: eroica replay recording --verify

Example: eroica replay recording --set localize.rules=paper --json

Example: eroica replay recording --explain last

Example: eroica replay recording --to-kafka --bootstrap localhost:9092 --prefix again. --speed 10
"""


AGAINST = {
    "same": "against the recorded verdict: same",
    "different": "against the recorded verdict: different",
    "new": "no verdict of this request was recorded to compare with",
    "missing": "a verdict was recorded that is not reached again",
}
FILE_WIDTH = 160
"""Characters of a table's line where no terminal sets them."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", cls=Words, help=HELP)(command(replay))


def replay(
    common: Common,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The recording.")],
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="A verdict a line, with --verify a comparison; then what was planted, and an early end, if any.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Exit code 1 unless all is as recorded, or as planted by the simulator; 3 if neither is known."
        ),
    ] = False,
    interleave: Annotated[
        int | None, typer.Option("--interleave", metavar="SEED", help="Mix the partitions at random; nothing may change by it.")
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="VERDICT_ID", help="Make the evidence of a verdict again, with its tables; or 'last'."),
    ] = None,
    to_kafka: Annotated[bool, typer.Option("--to-kafka", help="Publish the recording under --prefix.")] = False,
    speed: Annotated[float, typer.Option(help="With --to-kafka: 1 as recorded, 10 ten times as fast, 0 without pauses.")] = 1.0,
) -> int:
    """See ``HELP``."""
    from eroica.offline import recording
    from eroica.offline.earlyend import early_end

    manifest = recording.read_manifest(directory)
    with err().status("checking the recording …"):
        recording.verify(directory, manifest)
        early = early_end(directory, manifest)
    if early is not None:
        err().print(str(early))
    if explain is not None and (verify or to_kafka or interleave is not None):
        raise UsageError("a verdict is explained by itself", where="--explain", do="leave the other options out")
    if to_kafka:
        return _publish(common, directory, manifest, speed, as_json)
    from eroica.offline.planted import compare, truth_beside
    from eroica.offline.replay import replay as run_again

    settings = _settings(common, manifest)
    if explain is not None:
        return _explain(directory, manifest, settings, explain, as_json)
    with err().status("replaying …"):
        result = run_again(directory, manifest, settings, seed=interleave)
    truth = truth_beside(directory)
    planted = compare([one.verdict for one in result.verdicts if one.state != "missing"], truth) if truth is not None else None
    _show(result, as_json, verify, planted)
    if early is not None and as_json:
        print_json({"ended_early": {"messages_after": early.messages, "bytes_after": early.bytes}})
    if verify and planted is None and all(one.state == "new" for one in result.verdicts):
        raise InvalidInput(
            "no verdict was recorded, so there is nothing to verify with",
            where=str(directory),
            do="record with --until-verdict, or replay without --verify",
        )
    wrong = any(one.state in ("different", "missing") for one in result.verdicts)
    return int(verify and (wrong or (planted is not None and planted.found != "right")))


def _settings(common: Common, manifest: Manifest) -> EroicaSettings:
    """The recorded settings, and over them what the caller gives."""
    from eroica.offline.record import known_settings

    if common.config is not None:
        return common.settings()
    known, notes = known_settings(manifest.settings)
    for note in notes:
        err().print(one_line(note))
    return common.settings(under=known)


def _show(result: ReplayResult, as_json: bool, verify: bool, planted: Planted | None) -> None:
    """The verdicts, what was planted where a simulator wrote it down, and notes."""
    from eroica.consumers.render import render_verdict

    console = out()
    nothing = all(one.state == "new" for one in result.verdicts)
    for one in result.verdicts:
        if verify and as_json:
            print_json({"request": one.request, "verdict_id": one.verdict.verdict_id, "state": one.state})
        elif as_json and one.state != "missing":
            print_bytes(one.raw)
        elif not as_json:
            if one.state != "missing":
                console.print(render_verdict(one.verdict))
            console.print(*([] if nothing else [f"  {AGAINST[one.state]}"]), "", sep="\n")
    if planted is not None and as_json:
        print_json({"planted": planted.planted, "found": planted.found, "count": planted.count})
    elif planted is not None:
        console.print(f"  {planted}", "", sep="\n")
    notes = [f"groups: {result.chunks}"]
    if result.requests is not None:
        notes.append(f"requests of detect: {result.requests}")
    notes += [f"{say_count(result.refused, 'message was', 'messages were')} refused"] if result.refused else []
    if not result.verdicts:
        notes.append("the recording leads to no verdict")
    elif nothing and planted is None:
        notes.append("no verdict was recorded to compare with")
    for note in [*notes, *result.notes]:
        err().print(one_line(note))


def _explain(directory: Path, manifest: Manifest, settings: EroicaSettings, verdict_id: str, as_json: bool) -> int:
    """Exit code 1 if a figure comes out otherwise than the verdict has it."""
    import msgspec

    from eroica.consumers.render import headline
    from eroica.consumers.tables import render_explained
    from eroica.offline.explain import explain_recorded

    with err().status("replaying …"):
        found = explain_recorded(directory, manifest, settings, verdict_id)
    console = out()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    if not as_json:
        console.print(headline(found.verdict))
        console.print(f"{found.verdict.verdict_id}, {AGAINST[found.state]}", "")
    several = len({item.cause for item in found.items}) > 1
    for item in found.items:
        e = item.explanation
        again = (e.value, e.expected, e.score) if e is not None else None
        agrees = e is not None and e.agrees(item.evidence)
        if as_json:
            line = {"cause": item.cause, "evidence": msgspec.to_builtins(item.evidence), "agrees": agrees}
            table = {"how": e.how, "columns": e.columns, "rows": e.rows} if e is not None else {"why_not": item.why_not}
            print_json(line | {"again": dict(zip(("value", "expected", "score"), again or (), strict=False))} | table)
        else:
            how, columns, rows = (e.how, e.columns, e.rows) if e is not None else (item.why_not, (), [])
            console.print(
                render_explained(item.cause if several else None, item.evidence, how, columns, rows, again, agrees=agrees)
            )
    err().print(f"{say_count(len(found.items), 'item')} of evidence, {len(found.items) - found.wrong} made again the same")
    return int(found.wrong > 0)


def _publish(common: Common, directory: Path, manifest: Manifest, speed: float, as_json: bool) -> int:
    from eroica.bus import check_broker
    from eroica.offline.publish import publish

    if common.prefix is None:
        raise UsageError("publishing needs a prefix of its own", where="--to-kafka", do="add e.g. --prefix again.")
    settings = common.settings()
    check_broker(settings.kafka)
    total = sum(entry.messages for entry in manifest.files)
    with err().status("publishing …") as status:
        sent = publish(
            directory,
            manifest,
            settings.kafka,
            speed=speed,
            on_progress=lambda count: status.update(f"publishing {count} of {total} …"),
        )
    if as_json:
        print_json({"messages": sent, "prefix": settings.kafka.prefix})
    else:
        out().print(f"{say_count(sent, 'message')} published under {one_line(settings.kafka.prefix)}")
    return 0
