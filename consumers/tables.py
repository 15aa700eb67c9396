"""The table behind an item of evidence, for a terminal. Pure; texts from the wire are shown as text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.consumers.figures import say_metric
from eroica.consumers.text import clean, one_line
from eroica.schemas.verdicts import Evidence
from eroica.schemas.wording import fitting_time, say_number

CELL = 80
_FIGURE = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?")


def render_explained(
    number: int | None,
    evidence: Evidence,
    how: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    again: tuple[float, float, float] | None,
    *,
    agrees: bool,
) -> RenderableType:
    """An item of evidence, how its figures follow from the table, the table, and the figures made again.

    :param number: of the cause that it belongs to, from 1; ``None`` where there is one cause only.
    :param again: value, expected and score; ``None`` where they cannot be made again, for the reason *how*.
    """
    lines = [
        f"{one_line(evidence.rule, 100)}, compared with {one_line(evidence.compared_with, 160)}",
        f"printed:    {_figures((evidence.value, evidence.expected, evidence.score), evidence)}",
    ]
    of = f"cause {number}: " if number is not None else ""
    told = Text(f"{of}{one_line(say_metric(evidence.metric), 120)} of {one_line(evidence.subject, 160)}\n", style="bold")
    told.append("\n".join(f"   {line}" for line in lines), style="not bold")
    if again is None:
        told.append(f"\n   cannot be made again: {clean(how, 400)}\n", style="red")
        return told
    told.append(f"\n   made again: {_figures(again, evidence)}: ", style="not bold")
    told.append("the same" if agrees else "DIFFERENT", style="green" if agrees else "red")
    told.append(f"\n   {clean(how, 600)}", style="dim not bold")
    return Group(told, *([Padding(_table(columns, rows), (0, 0, 0, 3), expand=False)] if rows else []), Text())


def _figures(figures: tuple[float, float, float], evidence: Evidence) -> str:
    value, expected, score = figures
    kind = f" ({one_line(evidence.score_kind, 20)})" if evidence.score_kind else ""
    return f"value {_plain(value)} {one_line(evidence.unit, 20)}, expected {_plain(expected)}, score {_plain(score)}{kind}"


def _plain(value: float) -> str:
    """All digits that the verdict has, and no powers of ten."""
    return f"{value:.4f}".rstrip("0").rstrip(".")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    shown = [_in_fitting_unit(column, [row[at] for row in rows]) for at, column in enumerate(columns)]
    for position, (column, _) in enumerate(shown):
        table.add_column(Text(one_line(column, CELL)), justify="left" if position == 0 else "right")
    for row in zip(*(cells for _, cells in shown), strict=True):
        table.add_row(*(Text(one_line(cell, CELL)) for cell in row))
    return table


def _in_fitting_unit(column: str, cells: Sequence[str]) -> tuple[str, Sequence[str]]:
    """A column of ms, in µs or s where its largest figure reads better so; other columns as they are."""
    if not column.endswith(", ms"):
        return column, cells
    figures = {at: float(cell) for at, cell in enumerate(cells) if _FIGURE.fullmatch(cell)}
    factor, unit = fitting_time(max(map(abs, figures.values()), default=0.0))
    if unit == "ms":
        return column, cells
    return f"{column[:-2]}{unit}", [say_number(figures[at] * factor) if at in figures else cell for at, cell in enumerate(cells)]
