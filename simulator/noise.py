"""Noise by name. ``production`` is the fit to published timelines (``bench/noise_fit.py``; docs/simulator.md shows it)."""

from __future__ import annotations

from collections.abc import Mapping

from eroica.simulator.engine import NO_NOISE
from eroica.simulator.scenario import Noise

__all__ = ["NOISE", "noise_of"]

NOISE: Mapping[str, Noise] = {
    "none": NO_NOISE,
    "quiet": Noise(
        compute=0.008, rank=0.001, transfer=0.003, latency_us=20, latency_sigma=0.8, host=0.08, spikes=0.0001, surges=0
    ),
    "production": Noise(),
    "noisy": Noise(
        compute=0.06, rank=0.01, transfer=0.04, latency_us=250, latency_sigma=1.3, host=0.4, spikes=0.003, surges=0.0005
    ),
}


def noise_of(given: Noise | str) -> Noise:
    """The spreads that a scenario means."""
    return NOISE[given] if isinstance(given, str) else given
