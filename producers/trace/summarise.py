"""From a trace to a behaviour summary: the one entry of this folder. Pure apart from reading the files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from eroica.producers.trace.checks import check_told, untold_note
from eroica.producers.trace.collectives import Communication, find_collectives
from eroica.producers.trace.columns import Trace
from eroica.producers.trace.critical_path import CriticalPath, find_critical_path
from eroica.producers.trace.fit import fit
from eroica.producers.trace.identity import TraceIdentity, identify
from eroica.producers.trace.pattern import Samples, patterns
from eroica.producers.trace.pauses import find_pauses, side_pauses, window_figures
from eroica.producers.trace.phases import host_phases, step_phases
from eroica.producers.trace.reader import read_trace
from eroica.producers.trace.receive import receive_waits
from eroica.producers.trace.samples import SampleSeries, with_levels
from eroica.producers.trace.settings import SummarySettings
from eroica.producers.trace.slots import communicators
from eroica.producers.trace.steps import Steps, find_steps
from eroica.schemas.errors import InvalidInput
from eroica.schemas.summaries import Identity, Metric, StepRecord, Summary

STEP_NOTES = {
    "gpu_profiler_step": "steps by the device's ProfilerStep annotations",
    "annotation": "no ProfilerStep in the trace: steps by the program's own annotations",
    "loader": "no ProfilerStep in the trace: steps by the data loader's annotations",
    "optimizer": "no ProfilerStep in the trace: steps by the optimizer's annotations",
    "collectives": "no ProfilerStep in the trace: steps by the rhythm of collectives",
    "others": "no ProfilerStep in the trace: steps cut as the others', where their collectives fit",
    "none": "no steps in the trace: all of it counts as one",
}


@dataclass(frozen=True, slots=True)
class Extras:
    """What the agent knows beside the trace."""

    late_by_steps: int = 0
    blocked_ms: float = 0.0
    """How long profiling held up training."""
    metrics: tuple[Metric, ...] = ()
    samples: tuple[Samples, ...] = ()
    levels: tuple[SampleSeries, ...] = ()
    """Samples too far apart to lie within executions."""
    notes: tuple[str, ...] = field(default=())


def summarise(
    trace_path: str | Path,
    who: Identity,
    settings: SummarySettings | None = None,
    extras: Extras | None = None,
    *,
    trace: Trace | None = None,
    told: TraceIdentity | None = None,
    steps: Steps | None = None,
) -> Summary:
    """Summarise one worker's trace. Deterministic: the same file and arguments give the same summary.

    Postcondition: ``encode(summary)`` is at most ``settings.max_bytes``; what was cut for it stands in ``lost`` and ``notes``.

    :param who: whose trace it is; the trace's own rank is checked against it.
    :param trace: what *trace_path* holds, where it has been read already.
    :param told: whose trace it says it is, where that is known already.
    :param steps: its steps, where they are not to be looked for.
    :raises InvalidInput: the file cannot be read as a trace, holds nothing to summarise, or is another rank's.
    """
    settings = settings or SummarySettings()
    if trace is None:
        trace = read_trace(trace_path, max_bytes=settings.max_trace_bytes)
    told = told or identify(trace, trace_path)
    if told.rank_source == "distributed_info" and told.rank != who.rank:
        raise InvalidInput(
            f"the trace says that it is rank {told.rank}'s, it was given as rank {who.rank}'s",
            where=str(trace_path),
            do="check the paths",
        )
    pauses, note = side_pauses(trace_path)
    waits, waits_note = receive_waits(trace_path)
    try:
        summary = summarise_trace(trace, who, settings, extras, steps)
    except InvalidInput as error:
        raise InvalidInput(error.what, where=str(trace_path), do=error.do) from error
    return fit(
        msgspec.structs.replace(
            summary,
            pauses=[*summary.pauses, *pauses],
            receive_waits=waits,
            notes=[*summary.notes, *_beyond(who.rank, told.world_size), *filter(None, (note, waits_note))],
        ),
        settings,
    )


def identity_from_trace(
    trace: Trace,
    path: str | Path,
    *,
    job: str,
    rank: int | None = None,
    run_id: str = "offline",
    request: str = "offline",
    cls: str = "all",
    told: TraceIdentity | None = None,
) -> Identity:
    """Identity of a trace that nobody asked for (offline use).

    :param rank: given by the user; beats what trace and file name tell.
    :param told: what they tell, where that is known already.
    :raises InvalidInput: the rank is neither in the trace nor in its name nor given.
    """
    told = told or identify(trace, path)
    chosen = rank if rank is not None else told.rank
    if chosen < 0:
        raise InvalidInput(
            "the trace does not tell its rank, nor does the file's name",
            where=str(path),
            do="give the rank (--rank N), or name the files rank0.json, rank1.json, …",
        )
    return Identity(
        job=job,
        run_id=run_id,
        request=request,
        cls=cls,
        rank=chosen,
        world_size=told.world_size or chosen + 1,
        host=told.host,
        device=told.device,
    )


def summarise_trace(
    trace: Trace, who: Identity, settings: SummarySettings, extras: Extras | None = None, steps: Steps | None = None
) -> Summary:
    """Summarise columns, whichever front end they came from; the result is not yet cut to size.

    :param steps: found in the trace if they are not given.
    :raises InvalidInput: nothing can be said of it.
    """
    extras = extras or Extras()
    check_told(trace)
    steps = steps or find_steps(trace)
    path = find_critical_path(trace, steps)
    host = host_phases(trace, path)
    communication = find_collectives(trace, steps, path)
    functions, stacks, below = patterns(trace, steps, path, communication.operations, extras.samples, settings.min_beta)
    functions, levelled = with_levels(functions, extras.levels)
    figures = window_figures(trace, steps, path, communication)
    if extras.blocked_ms:
        figures["blocked_ms"] = round(extras.blocked_ms, 3)
    low = steps.window[0]
    return Summary(
        who=who,
        first_step=int(steps.number.min()),
        last_step=int(steps.number.max()),
        window_us=round(steps.window_us, 1),
        late_by_steps=extras.late_by_steps,
        ended_at_us=int(trace.origin_us + steps.window[1]),
        steps=[
            StepRecord(step=int(n), start_us=round(float(a) - low, 1), duration_us=round(float(b - a), 1), phases_us=phases)
            for n, a, b, phases in zip(
                steps.number, steps.start_us, steps.end_us, step_phases(trace, steps, path, host), strict=True
            )
        ],
        functions=functions[: settings.max_functions],
        stacks=stacks,
        communicators=communicators(communication, steps, settings.max_slot_values)[: settings.max_communicators],
        pauses=find_pauses(trace, steps, path, host),
        metrics=list(extras.metrics),
        figures=figures,
        lost=_lost(trace, below + max(0, len(functions) - settings.max_functions)),
        notes=[*extras.notes, *levelled, *_notes(trace, steps, path, communication)],
    )


def _lost(trace: Trace, functions: int) -> dict[str, int]:
    return {**dict(sorted(trace.repairs.items())), **({"functions_cut": functions} if functions else {})}


def _beyond(rank: int, world: int) -> list[str]:
    return [f"rank {rank} cannot be in a world of {world}: one of the two is wrong"] if 0 < world <= rank else []


def _notes(trace: Trace, steps: Steps, path: CriticalPath, communication: Communication) -> list[str]:
    notes = [STEP_NOTES[steps.source]] if steps.source in STEP_NOTES else []
    notes += untold_note(trace)
    if path.cpu_only:
        notes.append("no device events: operators on the training thread count as compute")
    if communication.mixed:
        notes.append("the groups of gloo could not be told apart: their collectives count as totals only")
    if not trace.absolute:
        notes.append("the trace does not tell the time of day: ended_at_us counts from its own origin")
    return notes
