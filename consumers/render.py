"""A verdict as a person reads it. Pure; every text from the wire is shown as text, never as markup."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from eroica.consumers.figures import say_metric, say_score, say_times, say_value
from eroica.consumers.text import clean, one_line
from eroica.schemas.ranks import cut_ranks, say_ranks
from eroica.schemas.verdicts import Action, Cause, Coverage, Evidence, Impact, Verdict, is_same_again, is_suspicion
from eroica.schemas.wording import say_count, say_number, say_share, say_steps, say_time

MAX_CAUSES = 5
MAX_EVIDENCE = 8
MAX_AGAIN = 8
"""Causes told as the same as one before."""
MAX_FUNCTIONS = 4
MAX_NOTES = 6
MAX_REMEDIES = 4
RANKS_WIDTH = 60
"""Characters of a set of ranks before it is cut: a thousand ranges help nobody."""

_STYLE = {
    "culprit_found": "bold red",
    "shared_cause": "bold yellow",
    "no_fault_found": "bold green",
    "insufficient_data": "bold yellow",
}
_ROLES = {"none": "all compared alike, since nothing tells their roles", "process_groups": "roles from the process groups"}
"""Where roles come from, in words where the word of the message is none."""
_MARK = {"culprit_found": "✖", "shared_cause": "▲", "no_fault_found": "✔", "insufficient_data": "?"}


def render_verdict(verdict: Verdict) -> RenderableType:
    """Headline, causes with their evidence, who merely waits, what it costs, what was seen, what to do.

    A verdict that nobody waits for and that holds nobody at fault is one quiet line.
    """
    if is_routine(verdict):
        return _quiet(verdict)
    parts: list[RenderableType] = [headline(verdict), Text()]
    parts.append(Padding(_facts(verdict), (0, 0, 0, 2)))
    left = list(enumerate(verdict.causes, 1))
    for _ in range(MAX_CAUSES):
        if not left:
            break
        number, cause = left[0]
        alike = [(n, other) for n, other in left[1:] if is_same_again(cause, other)]
        parts += [Text(), _cause(number, cause), *_again(alike)]
        left = [(n, other) for n, other in left[1:] if not is_same_again(cause, other)]
    if left:
        parts.append(Text(f"  and {say_count(len(left), 'more cause')}", style="dim"))
    return Group(*parts)


def headline(verdict: Verdict) -> Text:
    """The one sentence, marked and coloured by status; green only where there is not even a suspicion."""
    mark, style = _MARK[verdict.status], _STYLE[verdict.status]
    if verdict.status == "no_fault_found" and any(map(is_suspicion, verdict.coverage.notes)):
        mark, style = "○", "bold yellow"
    return Text(f"{mark} {one_line(verdict.headline, 500)}", style=style)


def short_line(verdict: Verdict) -> Text:
    """When, which, of what job, and the one sentence, on one line."""
    start = Text(f"{one_line(verdict.event_time, 40)}  {one_line(verdict.verdict_id, 100)}  {one_line(verdict.job, 100)}  ")
    return start.append_text(headline(verdict))


def is_routine(verdict: Verdict) -> bool:
    """Whether nobody need look: a profile on schedule, and nobody is at fault."""
    return verdict.request.reason == "scheduled" and verdict.status in ("no_fault_found", "insufficient_data")


def _quiet(verdict: Verdict) -> Text:
    first, last = verdict.request.steps
    when, name = one_line(verdict.event_time, 40), one_line(verdict.verdict_id, 80)
    return Text(f"· {one_line(verdict.headline, 200)} (on schedule, {say_steps(first, last)}, {when}, {name})", style="dim")


def _facts(verdict: Verdict) -> Table:
    table = _grid()
    first, last = verdict.request.steps
    _row(table, "job", f"{one_line(verdict.job)}, {say_steps(first, last)}, reason {verdict.request.reason}")
    if verdict.waiters.ranks:
        _row(
            table,
            "merely waiting",
            f"{_some_ranks(verdict.waiters.ranks)}, {say_share(verdict.waiters.wait_share)} of their step",
        )
    impact = _impact(verdict.impact)
    if impact:
        _row(table, "impact", impact)
    _row(table, "seen", _coverage(verdict.coverage))
    for note in verdict.coverage.notes[:MAX_NOTES]:
        _row(table, "", one_line(say_times(note)))
    if (left := len(verdict.coverage.notes) - MAX_NOTES) > 0:
        _row(table, "", f"and {say_count(left, 'more note')}: --json shows all")
    _row(table, "when", one_line(verdict.event_time, 40) or "not known: the input holds no date")
    _row(table, "id", one_line(verdict.verdict_id, 80))
    return table


def _cause(number: int, cause: Cause) -> RenderableType:
    title = Text(f"  {number}. ", style="bold")
    title.append(f"{cause.class_}", style="bold")
    if cause.fault:
        title.append(f", {one_line(cause.fault, 120)}")
    title.append(f"  {_weight(cause)}")
    table = _grid()
    _row(table, "suspects", _suspects(cause))
    group = cause.isolation_group
    _row(table, "within", f"{one_line(group.kind, 80)}, {_some_ranks(group.ranks)}")
    for position, function in enumerate(list(dict.fromkeys(cause.functions))[:MAX_FUNCTIONS]):
        _row(table, "in" if position == 0 else "", clean(function, 300))
    _row(table, "do", f"{cause.action.kind}: {clean(cause.action.text, 600)}")
    _advice(table, cause.action)
    parts: list[RenderableType] = [title, Padding(table, (0, 0, 0, 5))]
    if cause.evidence:
        parts.append(Padding(_evidence(cause.evidence), (0, 0, 0, 5)))
    return Group(*parts)


def _again(alike: list[tuple[int, Cause]]) -> list[RenderableType]:
    """Causes that repeat one that is shown: a line each, of the first few."""
    lines = [
        Text(f"  {number}. the same on {_suspects(cause)}  {_weight(cause)}", style="bold") for number, cause in alike[:MAX_AGAIN]
    ]
    more = len(alike) - len(lines)
    lines += [Text(f"     the same in {say_count(more, 'more place')}", style="dim")] if more else []
    return [Text(), *lines] if lines else []


def _weight(cause: Cause) -> str:
    explains = f"explains {say_share(cause.explains)} of the waiting, " if cause.explains else ""
    return f"{explains}{say_share(cause.confidence)} sure"


def _advice(table: Table, action: Action) -> None:
    """What to do first, who does it, and what may help, with what people said of it so far."""
    if action.first:
        _row(table, "first", clean(action.first, 400))
    if action.who:
        _row(table, "who", one_line(action.who, 80))
    for position, remedy in enumerate(action.remedies[:MAX_REMEDIES]):
        said = (
            f" (helped {remedy.helped} of {remedy.helped + remedy.did_not_help})" if remedy.helped + remedy.did_not_help else ""
        )
        _row(table, "may help" if position == 0 else "", f"{one_line(remedy.id, 80)}: {clean(remedy.text, 400)}{said}")
    if action.playbook:
        total = action.helped + action.did_not_help
        _row(table, "playbook", one_line(action.playbook, 80) + (f" (helped {action.helped} of {total})" if total else ""))


def _evidence(items: list[Evidence]) -> Table:
    """The first comparisons; one that a rule and a signature both made is shown once."""
    table = Table("evidence", "of", "value", "expected", "score", "among", box=None, pad_edge=False, header_style="dim")
    items = list({(item.metric, item.subject, item.value, item.expected): item for item in items}.values())
    for item in items[:MAX_EVIDENCE]:
        table.add_row(
            Text(one_line(say_metric(item.metric), 60)),
            Text(one_line(item.subject, 60)),
            *map(Text, say_value(item.value, item.expected, item.unit)),
            Text(say_score(item.score, item.score_kind)),
            Text(_compared(item.compared_with)),
        )
    if len(items) > MAX_EVIDENCE:
        table.add_row(Text(f"and {len(items) - MAX_EVIDENCE} more", style="dim"))
    return table


def _suspects(cause: Cause) -> str:
    suspects = cause.suspects
    said = [
        _some_ranks(suspects.ranks) if suspects.ranks else "",
        _named("host", suspects.hosts[:10]),
        _named("link", suspects.links[:10]),
        _named("stage", [str(stage) for stage in suspects.stages[:20]]),
    ]
    return "; ".join(part for part in said if part) or "none"


def _impact(impact: Impact) -> str:
    said: list[str] = []
    if impact.step_ms is not None:
        ideal = f" (would be {say_time(impact.ideal_step_ms)})" if impact.ideal_step_ms is not None else ""
        said.append(f"step {say_time(impact.step_ms)}{ideal}")
    if impact.slowdown is not None:
        said.append(f"slowdown {impact.slowdown:.2f}×")
    if impact.waste is not None:
        said.append(f"{say_share(impact.waste)} wasted")
    if impact.gpu_hours_per_day is not None:
        said.append(f"{say_number(impact.gpu_hours_per_day)} device hours a day")
    return ", ".join(said)


def _coverage(coverage: Coverage) -> str:
    source = coverage.topology_source
    roles = _ROLES.get(source) or f"roles from {one_line(source, 40)}"
    text = f"{coverage.received} of {coverage.expected} ranks, {roles}"
    if coverage.missing:
        text += f"; missing {_ranks(coverage.missing)}"
    if coverage.late:
        text += f"; late {_ranks(coverage.late)}"
    return text


def _grid() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _row(table: Table, name: str, value: str) -> None:
    """A fact; as text, since a string in a table would be read as markup."""
    table.add_row(Text(name), Text(value))


def _ranks(text: str) -> str:
    return one_line(cut_ranks(text, RANKS_WIDTH))


def _compared(text: str) -> str:
    """Whom it was compared with: mostly ranks, which are cut between two of them."""
    noun, space, ranks = text.partition(" ")
    return _some_ranks(ranks) if space and noun in ("rank", "ranks") else one_line(text, RANKS_WIDTH)


def _some_ranks(text: str) -> str:
    return one_line(say_ranks(text, RANKS_WIDTH))


def _named(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) > 1 else ''} {one_line(', '.join(names), 200)}" if names else ""
