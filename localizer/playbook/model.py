"""The schema of a playbook file: signatures of faults, conditions, actions and remedies. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from eroica.schemas.summaries import Category
from eroica.schemas.verdicts import ActionKind, CauseClass

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$")]
"""``nic_down``, ``slow_gpu_clock.thermal``."""
Sentence = Annotated[str, Meta(min_length=1, max_length=400)]
Pattern = Annotated[str, Meta(min_length=1, max_length=200)]
Number = Annotated[float, Meta(ge=-1e15, le=1e15)]

Take = Literal["median", "mean", "max", "min", "spread"]
Quantity = Literal[
    "",
    "excess_share",
    "step_share",
    "time_ms",
    "tail",
    "pause_share",
    "mu",
    "sigma",
    "count",
    "max_ms",
    "transfer_ms",
    "stack_share",
    "named_share",
    "reading",
]
QUANTITIES: dict[str, tuple[Quantity, ...]] = {
    "metric": ("reading",),
    "function": ("excess_share", "step_share", "time_ms", "tail", "mu", "sigma"),
    "pause": ("step_share", "pause_share", "count", "max_ms"),
    "communicator": ("transfer_ms",),
    "stack": ("stack_share",),
    "named": ("named_share",),
}
"""What a condition looks at → what it may measure there; the first is the default."""
TEXTS: dict[str, str] = {
    "excess_share": "share of the excess in {}",
    "step_share": "share of the step in {}",
    "time_ms": "time per step in {}",
    "tail": "p99 over p50 of {}",
    "mu": "mean utilisation (μ) in {}",
    "sigma": "unsteadiness (σ) of {}",
    "pause_share": "share of all pauses in {}",
    "count": "number of {} pauses per step",
    "max_ms": "longest {} pause",
    "transfer_ms": "transfer time in {}",
    "stack_share": "share of stacks in {}",
    "named_share": "share of the named functions that are {}",
    "reading": "{}",
}
"""How evidence says it."""
TAKEN: dict[str, str] = {
    "median": "",
    "mean": "mean ",
    "max": "highest ",
    "min": "lowest ",
    "spread": "highest over median, ",
}
UNITS: dict[str, str] = {"time_ms": "ms", "max_ms": "ms", "transfer_ms": "ms", "count": "1/step"}
"""Others are plain numbers, and a reading has the unit of its sampler."""


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a playbook file."""


class Limit(Part, frozen=True, kw_only=True):
    """Where a condition begins to hold. All that is given must hold; ``ratio`` and ``difference`` are against the peers."""

    value: Number | None = None
    ratio: Number | None = None
    difference: Number | None = None


class Condition(Part, frozen=True, kw_only=True):
    """One comparison of the suspects with their peers. Exactly one of the first six fields says what is looked at."""

    metric: Pattern | None = None
    """Readings whose whole name (without device and unit) fits."""
    function: Pattern | None = None
    """Functions whose name, or a frame of whose stack, holds it."""
    pause: Pattern | None = None
    """Pauses whose kind fits as a whole: ``gc``, ``alloc``, ``loader``, ``compile``, ``checkpoint``, ``sync``."""
    communicator: Pattern | None = None
    """Communicators whose kind or name holds it."""
    stack: Pattern | None = None
    """Frames of the main thread of a stuck worker."""
    named: Pattern | None = None
    """Functions that the cause itself names."""
    category: list[Category] = []
    """Only functions of these; default: all but collectives."""
    op: Pattern | None = None
    """Only collectives whose operation holds it (``communicator``)."""
    resource: Pattern | None = None
    """Only functions of which this resource was sampled (``mu``, ``sigma``)."""
    of: Quantity = ""
    take: Take = "median"
    """Over the suspects, and over the peers; ``spread``: highest over median of the suspects."""
    above: Limit | None = None
    below: Limit | None = None
    label: Annotated[str, Meta(max_length=60)] = ""
    """What a person calls it; default: the pattern."""

    @property
    def looks_at(self) -> str:
        """The first of the six that is given."""
        return next((name for name in QUANTITIES if getattr(self, name) is not None), "")

    @property
    def quantity(self) -> Quantity:
        """What is measured."""
        return self.of or QUANTITIES[self.looks_at][0]

    def text(self, reading: str = "") -> str:
        """How evidence names it; of a reading the name that was found."""
        what = reading or self.label or str(getattr(self, self.looks_at))
        return f"{TAKEN[self.take]}{TEXTS[self.quantity].format(what)}"


class Remedy(Part, frozen=True, kw_only=True):
    """Something that may help. The id is what feedback is counted under: never give it another meaning."""

    id: Name
    text: Sentence


class Signature(Part, frozen=True, kw_only=True):
    """A fault leaf: its name holds if all of ``all``, one of ``any`` and none of ``none`` hold of a cause of ``classes``."""

    fault: Name
    about: Sentence
    classes: Annotated[list[CauseClass], Meta(min_length=1)]
    all: Annotated[list[Condition], Meta(max_length=8)] = []
    any: Annotated[list[Condition], Meta(max_length=8)] = []
    none: Annotated[list[Condition], Meta(max_length=8)] = []
    prefer: Annotated[int, Meta(ge=0, le=100)] = 50
    """Which of several that hold is taken: the highest, then the one with most conditions that hold."""
    action: Name
    do: Annotated[str, Meta(max_length=400)] = ""
    """What to do about this fault; default: the action's own sentence."""
    remedies: Annotated[list[Remedy], Meta(max_length=8)] = []


class ActionClass(Part, frozen=True, kw_only=True):
    """A way to act, and who acts."""

    id: Name
    kind: ActionKind
    text: Sentence
    first: Sentence
    """What to do before anything else; cheap and safe."""
    who: Annotated[str, Meta(min_length=1, max_length=60)]
    remedies: Annotated[list[Remedy], Meta(max_length=8)] = []
    """Offered where no signature holds."""


class PlaybookFile(Part, frozen=True, kw_only=True):
    """A file of a playbook's folder. What has the name of something known replaces it."""

    actions: Annotated[list[ActionClass], Meta(max_length=100)] = []
    defaults: dict[CauseClass, Name] = {}
    """Class of a cause → action where no signature holds."""
    signatures: Annotated[list[Signature], Meta(max_length=500)] = []
