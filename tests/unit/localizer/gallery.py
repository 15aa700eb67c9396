"""The simulator's gallery as frames with their truth, made once a session."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from eroica.localizer.build import build_frame
from eroica.localizer.frame import Frame
from eroica.localizer.judgement import Finding
from eroica.schemas.groups import GroupChunk
from eroica.schemas.outputs import InputRef
from eroica.schemas.ranks import parse_ranks
from eroica.schemas.settings import GroupSettings
from eroica.simulator import source
from eroica.simulator.messages import Emission
from eroica.simulator.simulation import Simulation
from eroica.simulator.truth import labels
from eroica.streams.collect import GroupCore

FOLDER = Path(source.__file__).parent / "scenarios"
LARGE = {"hundred-thousand"}
GALLERY = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem not in LARGE)


def simulated(text_or_name: str, *assignments: str, every: bool = False) -> tuple[list[GroupChunk], dict[str, Any]]:
    """The chunks of the last request (or of *every* one) of a scenario (a name of the gallery, or YAML), and its labels."""
    path = FOLDER / f"{text_or_name}.yaml"
    scenario = (
        source.load_scenario(path, assignments) if "\n" not in text_or_name else source.parse_scenario(text_or_name, assignments)
    )
    simulation = Simulation(scenario)
    emission, core = Emission(simulation), GroupCore(GroupSettings())
    chunks: list[GroupChunk] = []
    for offset, output in enumerate(o for o in emission.all() if o.topic == "summaries"):
        chunks += [made.message for made in core.feed(output.message, InputRef("summaries", 0, offset))]  # type: ignore[misc, arg-type]
    request = chunks[-1].request.request
    return [c for c in chunks if every or c.request.request == request], labels(simulation, request)


@lru_cache(maxsize=64)
def scene(name: str) -> tuple[Frame, dict[str, Any]]:
    """A scenario of the gallery as a frame."""
    chunks, truth = simulated(name)
    return build_frame(chunks), truth


def true_findings(truth: dict[str, Any]) -> list[Finding]:
    """What a rule set that is always right would find."""
    return [
        Finding(
            cls=cause["class"],
            ranks=np.asarray(parse_ranks(cause["suspects"]["ranks"])),
            explains=1.0,
            confidence=1.0,
            functions=list(cause.get("functions", [])),
            hosts=list(cause["suspects"]["hosts"]),
        )
        for cause in truth["causes"]
    ]
