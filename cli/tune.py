"""``eroica tune``: thresholds over labelled recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eroica.cli.options import BROKER, Common, Words, command
from eroica.cli.output import err, out, print_json
from eroica.consumers.text import one_line
from eroica.schemas.wording import say_count

HELP = """Search the localizer's thresholds over labelled recordings and trace folders.

It searches accuse_confidence and the thresholds of the rules that are set (eroica: outlier_z, min_effect, mad_floor_ratio;
paper and guide: their own) and leaves all else as given. It keeps every point that no other beats in recall and in false
accusations, holds the choice against jobs that it did not see, and writes a report and the settings of one point. Simulated
recordings carry their labels; those of others stand in a file.

Example: eroica tune simulated/* --out tuned

Example: eroica tune simulated traces recordings/job-7 --labels labels.yaml --out tuned --max-false 0.001

Example: eroica tune simulated --out tuned --range outlier_z=3:5 --points 100

Example: eroica tune simulated --out tuned && eroica --config tuned/settings.toml localize
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune", cls=Words, help=HELP)(command(tune, unused=BROKER))


def tune(
    common: Common,
    recordings: Annotated[
        list[Path], typer.Argument(metavar="RECORDING …", help="Recordings and trace folders, or folders full of them.")
    ],
    labels: Annotated[
        Path | None, typer.Option("--labels", metavar="FILE", help="YAML or JSON: folder → what is wrong there.")
    ] = None,
    directory: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="For report.md and settings.toml.")] = None,
    points: Annotated[
        int, typer.Option(min=1, max=10_000, help="Points to try at most, each with every limit of confidence.")
    ] = 40,
    folds: Annotated[int, typer.Option(min=2, max=100, help="Parts that the jobs are split into.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same search.")] = 1,
    max_false: Annotated[
        float, typer.Option("--max-false", min=0.0, max=1.0, help="Share of false accusations that the written point may have.")
    ] = 0.0,
    ranges: Annotated[
        list[str] | None, typer.Option("--range", metavar="NAME=LOW:HIGH", help="Bounds of a threshold; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The front as JSON, a point a line.")] = False,
) -> int:
    """See ``HELP``."""
    from rich.progress import Progress

    from eroica.offline.labels import read_labels
    from eroica.offline.tune import Plan
    from eroica.offline.tune import tune as search
    from eroica.offline.tune_cases import find_cases, read_cases
    from eroica.offline.tune_report import REPORT_FILE, SETTINGS_FILE, report, settings_toml
    from eroica.offline.tune_space import space_of
    from eroica.schemas.errors import UsageError

    if directory is None and not as_json:
        raise UsageError("the report needs a folder", where="--out", do="give one, or --json for the figures alone")
    settings = common.settings()
    told = read_labels(labels) if labels is not None else {}
    found = find_cases(recordings, told, labels.parent if labels is not None else Path())
    space_of(settings.localize, ranges or ())  # before anything is read
    if directory is not None:
        _make(directory)
    with Progress(console=err(), transient=True, disable=not err().is_terminal) as progress:
        task = progress.add_task("reading", total=len(found))
        cases = read_cases(
            found,
            settings,
            lambda what, done, _: progress.update(task, description=f"reading {one_line(what, 40)}", completed=done),
        )
        plan = Plan(points, folds, seed, tuple(ranges or ()), max_false)
        task = progress.add_task("trying points", total=points)
        tuning = search(cases, settings.localize, plan, lambda done, _: progress.update(task, completed=done))
    if directory is not None:
        (directory / REPORT_FILE).write_text(report(tuning))
        (directory / SETTINGS_FILE).write_text(settings_toml(tuning))
    for one, stands in zip(tuning.front, tuning.in_folds, strict=True):
        result = one.outcome()
        if as_json:
            figures = {"recall": result.recall, "right": result.right, "false": result.false, "folds": stands}
            print_json({"point": one.point, "chosen": one is tuning.chosen} | figures)
            continue
        point = ", ".join(f"{name} {value:g}" for name, value in one.point.items())
        mark = "→" if one is tuning.chosen else " "
        out().print(f"{mark} recall {result.recall:.3f}, false {result.false:.4f}: {point}")
    if not as_json:
        seen = tuning.unseen
        out().print(f"a choice made like this, on jobs it did not see: recall {seen.recall:.3f}, false {seen.false:.4f}")
        out().print(
            f"{say_count(len(cases), 'case')}, {say_count(len(tuning.tried), 'point')}; written: {one_line(directory, 200)}"
        )
    return 0


def _make(directory: Path) -> None:
    from eroica.schemas.errors import UsageError

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder cannot be made ({error.strerror})", where=str(directory)) from error
