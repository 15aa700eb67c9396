"""``eroica simulate``: a job broken in known ways, as the messages that a real one would send."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from eroica.cli.options import Common, Words, command
from eroica.cli.output import err, out, print_json
from eroica.consumers.text import one_line
from eroica.schemas.errors import UsageError
from eroica.schemas.wording import did_you_mean, say_count

HELP = """Simulate a training job with the faults of a scenario, and write its messages as a recording or send them to a broker.

SCENARIO is a YAML file, or the name of one that comes along (--list). The truth is written beside the recording as labels.json.
--set changes fields of the scenario (job.world=64, faults.0.dose=1.1) as well as settings (localize.rules=paper).

Example: eroica simulate slow-gpu --out recording && eroica replay recording

Example: eroica simulate my.yaml --seed 7 --set job.world=1024 --bootstrap localhost:9092
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", cls=Words, help=HELP)(command(simulate))


def simulate(
    common: Common,
    scenario: Annotated[str, typer.Argument(metavar="[SCENARIO]", help="A YAML file, or a name of the gallery.")] = "",
    seed: Annotated[int | None, typer.Option(help="In place of the scenario's own.")] = None,
    directory: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="An empty or new folder.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="The gallery and the faults, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The truth, and the messages by topic, as JSON.")] = False,
) -> int:
    """See ``HELP``."""
    from eroica.schemas.settings import EroicaSettings
    from eroica.simulator.messages import Emission
    from eroica.simulator.scenario import Scenario
    from eroica.simulator.simulation import Simulation
    from eroica.simulator.source import Source
    from eroica.simulator.truth import labels

    if show_list:
        return _list(as_json)
    if not scenario:
        raise UsageError("there is no scenario", do="name a YAML file, or one of: eroica simulate --list")
    if (directory is None) == (common.bootstrap is None):
        raise UsageError("the messages go to a folder or to a broker", do="give one of --out and --bootstrap")
    mine = [a for a in common.assignments if a.partition(".")[0].strip() not in EroicaSettings.model_fields]
    for assignment in mine:
        _check_root(assignment, Scenario.__struct_fields__, tuple(EroicaSettings.model_fields))
    settings = Common(
        common.bootstrap, common.prefix, common.config, tuple(a for a in common.assignments if a not in mine)
    ).settings()
    source = Source.of_file(_path(scenario), mine)
    loaded = source.scenario()
    if directory is None and not loaded.start:
        # A broker deletes by the messages' own time: what is dated back would be gone before anybody reads it.
        loaded = msgspec.structs.replace(loaded, start=datetime.now(timezone.utc).isoformat(timespec="seconds"))
    with source.placing():
        simulation = Simulation(loaded, seed)
        emission = Emission(simulation)
    truth = labels(simulation, emission.request.request)
    from eroica.offline.planted import say_cause
    from eroica.offline.simulated import send_to_broker, write_recording

    with err().status("simulating …") as status:

        def progress(count: int) -> None:
            status.update(f"simulating: {say_count(count, 'message')} …")

        if directory is not None:
            counts = write_recording(
                emission.all(),
                directory,
                job=simulation.scenario.job.name,
                labels=truth,
                settings=settings,
                on_progress=progress,
            )
        else:
            from eroica.bus import check_broker

            check_broker(settings.kafka)
            counts = send_to_broker(emission.all(), settings.kafka, on_progress=progress)
    if as_json:
        print_json({"labels": truth, "messages": counts})
        return 0
    told = ", ".join(f"{name} {count}" for name, count in counts.items())
    out().print(f"{one_line(directory or settings.kafka.bootstrap)}: {told}")
    for cause in truth["causes"] or [{"fault": "nothing", "suspects": {}}]:
        out().print(f"  broken: {say_cause(cause)}")
    return 0


def _check_root(assignment: str, fields: tuple[str, ...], sections: tuple[str, ...]) -> None:
    """Refuse a ``--set`` that is about neither the scenario nor the settings, which are given alike."""
    root = assignment.partition("=")[0].partition(".")[0].strip()
    if root and root not in fields:
        raise UsageError(
            f"there is no {root[:60]!r}, neither in a scenario nor among the settings",
            where=f"--set {assignment[:100]}",
            do=f"{did_you_mean(root, (*fields, *sections))}a scenario has {', '.join(fields)}; settings {', '.join(sections)}",
        )


def _path(scenario: str) -> Path:
    """The file that *scenario* means."""
    path = Path(scenario)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return path
    gallery = _gallery()
    if scenario not in gallery:
        do = f"{did_you_mean(scenario, gallery)}the gallery: {', '.join(sorted(gallery))}"
        raise UsageError(f"{scenario[:60]!r} is neither a YAML file nor in the gallery", do=do)
    return gallery[scenario]


def _gallery() -> dict[str, Path]:
    folder = files("eroica.simulator") / "scenarios"
    return {Path(str(f)).stem: Path(str(f)) for f in folder.iterdir() if str(f).endswith(".yaml")}


def _list(as_json: bool) -> int:
    from eroica.simulator.faults import FAULTS
    from eroica.simulator.hangs import HANGS
    from eroica.simulator.source import load_scenario

    scenarios = {name: load_scenario(path).about for name, path in sorted(_gallery().items())}
    faults = {**{name: kind.about for name, kind in FAULTS.items()}, **{name: shape.about for name, shape in HANGS.items()}}
    if as_json:
        print_json({"scenarios": scenarios, "faults": faults})
        return 0
    for title, table in (("scenarios", scenarios), ("faults", faults)):
        out().print(f"{title}:")
        for name, about in table.items():
            out().print(f"  {name:20s} {about}")
    return 0
