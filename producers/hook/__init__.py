"""The part of Eroica inside the training process: finds iterations, tells the host's agent, profiles on command.

One line switches it on, ``import eroica.producers.hook.auto``, or none with ``eroica run -- CMD``. Standard library and
torch only; it never blocks the training and never raises into it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, which costs every Python program at start-up more than all the rest of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from eroica.producers.hook.patch import Patch

__all__ = ["activate", "mark_step", "record_receive_waits", "status"]

_patch: Patch | None = None
_activated = False
_problem = ""


def activate() -> None:
    """Switch the hook on in this process: now if torch is imported, else as soon as it is. ``EROICA_HOOK=0`` keeps it off.

    May be called more than once, and never raises.
    """
    global _activated
    # The name is wire.ENV_ENABLED; not imported here, for programs without torch should pay next to nothing.
    if _activated or os.environ.get("EROICA_HOOK") == "0":
        return
    _activated = True
    from eroica.producers.hook.postimport import AfterImport

    AfterImport("torch", _install).install()


def mark_step(step: int | None = None) -> None:
    """Say that an iteration ends here, for loops that use neither torch's data loader nor its optimizers.

    The first call is where counting begins; from it on only marks make iterations in this process. Never raises.

    :param step: the number of the iteration that ends, where the program counts itself; must grow.
    """
    if not _activated:
        activate()
    if _patch is not None:
        _patch.mark(step)


def record_receive_waits(
    name: str, ranks: Sequence[int], waits_us: Sequence[float] | Callable[[], Sequence[float]] | Any
) -> None:
    """Say how long this rank has waited for each source of an expert-parallel exchange since the last call.

    For libraries that count it themselves (DeepEP's ``dispatch_wait_recv_cost_stats``); see docs/hook.md. Outside of a profile
    the call returns at once and looks at nothing. Never raises; what cannot be is dropped, with all that follows in the profile.

    :param name: of the group, the same on all its ranks; an exchange a name (``"ep dispatch"``, ``"ep combine"``).
    :param ranks: global ranks of the sources, the same at each call.
    :param waits_us: µs by source: a sequence, an array, a tensor (which the device is waited for), or a function that returns
        them and sets its counters to zero. A function is called only while a profile runs, and its first answer is dropped.
    """
    if _patch is not None and _patch.recorder.profiling.active:
        with _patch.guard:
            _patch.recorder.profiling.receive_waits(name, ranks, waits_us)


def status() -> dict[str, Any]:
    """What the hook does in this process, for people who wonder.

    ``active`` (installed in torch), ``step`` (iteration now running), ``signature`` (its length in events, 0 while unknown),
    ``connected`` (how often an agent was found), ``channel`` (how events reach it: ``ring``, ``datagrams`` or ``none``),
    ``dropped``, ``failures``, ``relearned``, ``error`` (the last failure).
    """
    if _patch is None:
        return {"active": False, "waiting_for_torch": _activated and "torch" not in sys.modules, "error": _problem}
    recorder = _patch.recorder
    return {
        "active": not _patch.guard.tripped,
        "step": recorder.step,
        "signature": len(recorder.automaton.signature),
        "mode": "mark_step" if recorder.marking else "dataloader+optimizer",
        "connected": recorder.sender.connections,
        "channel": recorder.sender.channel,
        "dropped": recorder.sender.dropped,
        "failures": _patch.guard.failures,
        "relearned": recorder.automaton.relearned,
        "error": _patch.guard.last or _problem,
    }


def _install(torch: ModuleType) -> None:
    """Put the hook into *torch*; a torch that we do not know stays as it is."""
    global _patch, _problem
    from eroica.producers.hook.guard import Guard

    attempt = Guard()
    with attempt:
        from eroica.producers.hook.patch import Patch

        patch = Patch(torch)
        patch.install()
        _patch = patch
    _problem = attempt.last
