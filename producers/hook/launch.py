"""The environment in which ``eroica run`` starts a command, so that the hook is on in every Python process below it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from eroica.producers.hook.wire import ENV_JOB, ENV_RUNTIME_DIR

STARTUP = Path(__file__).resolve().parent / "startup"
"""Holds the ``sitecustomize.py`` that Python runs at start."""


def environment(env: Mapping[str, str], *, job: str = "", runtime_dir: str = "") -> dict[str, str]:
    """A copy of *env* with the hook's start-up folder first in ``PYTHONPATH``.

    :param job: the job's name; empty leaves what *env* says.
    :param runtime_dir: folder of the agent's socket; empty leaves what *env* says.

    Idempotent. Python with ``-I``, ``-E`` or ``-S`` reads neither ``PYTHONPATH`` nor ``sitecustomize``: there the hook stays off.
    A command that runs another interpreter (a virtual environment without Eroica) starts as usual, without the hook.
    """
    result = dict(env)
    entries = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(STARTUP)]
    result["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *entries])
    if job:
        result[ENV_JOB] = job
    if runtime_dir:
        result[ENV_RUNTIME_DIR] = runtime_dir
    # Kineto warns on standard error about devices that a host does not have; a value that the user has set stands.
    result.setdefault("KINETO_LOG_LEVEL", "5")
    return result
