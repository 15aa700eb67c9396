"""One run of torch.profiler, from one iteration's boundary to another."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from eroica.producers.hook.command import ProfileCommand
from eroica.producers.hook.pauses import GcPauses
from eroica.producers.hook.receive import ReceiveWaits

TEARDOWN_CUDA = (12, 6)
"""From this CUDA on the CUPTI teardown is safe with CUDA graphs (pytorch #112507, kineto #1264)."""
STACKS_EXTRA_NS = 1_000_000_000
STACKS_EXTRA_SHARE = 0.3
"""Stacks are too dear where tracing them would cost the training thread, until the profile's end, more processor time than a
second and this share of what its steps usually take. Measured on two cores: a call costs 0.3 µs while it is traced, but 4 µs
and 285 bytes when the trace is closed, and 1.6 µs when it is written. So a second stands for three million calls, about 20 s
and 850 MB."""


class Session:
    """One profile that runs."""

    def __init__(self, command: ProfileCommand, torch: Any, step: int, usual_cpu_ns: float) -> None:
        self.command = command
        self.first_step = step
        self.steps: list[dict[str, int]] = []
        self.pauses = GcPauses()
        self.receive = ReceiveWaits()
        self.start_stop_ns = 0
        self.started_wall_ns = 0
        self.started_ns = 0
        self.step_started_ns = 0
        self.cpu_ns = 0
        self.usual_cpu_ns = usual_cpu_ns
        self.annotation: Any = None
        self.torch = torch
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(profiler.ProfilerActivity.CUDA)
            _allow_teardown(torch)
        self.collector = profiler._KinetoProfile(activities=activities, with_stack=command.with_stack)

    def start(self) -> None:
        """Begin to collect, in this thread."""
        if "torch._inductor" in sys.modules:
            self.collector.prepare_trace()
        else:
            # prepare_trace() would import the compiler only to ask whether it uses CUDA graphs: seconds in a program without it.
            self.collector.profiler = self.torch.autograd.profiler.profile(
                use_cpu=True, use_device=self.collector.use_device, with_stack=self.command.with_stack, use_kineto=True
            )
            self.collector.profiler._prepare_trace()
        self.collector.start_trace()
        self.cpu_ns = time.thread_time_ns()

    def annotate(self, step: int, now_ns: int) -> None:
        """Open the mark ``ProfilerStep#<step>``."""
        self.step_started_ns = now_ns
        self.annotation = self.torch.profiler.record_function(f"ProfilerStep#{step}")
        self.annotation.__enter__()

    def close_annotation(self, now_ns: int) -> None:
        """Close the mark of the step that ends, and note its length."""
        if self.annotation is not None:
            self.annotation.__exit__(None, None, None)
            self.annotation = None
            number = self.first_step + len(self.steps)
            self.steps.append({"step": number, "duration_ns": now_ns - self.step_started_ns})

    def stacks_too_dear(self, done: float) -> bool:
        """Whether the tracing of Python's calls takes so much that the trace would come too late, or be too large to be read.

        Told by the processor time of the training thread: a step that waits for others is not dear.

        :param done: share of the profile that is behind us, above 0.
        """
        if not self.command.with_stack or not self.usual_cpu_ns:
            return False
        usual_ns = self.usual_cpu_ns * len(self.steps)
        extra_ns = time.thread_time_ns() - self.cpu_ns - usual_ns
        return extra_ns > max(STACKS_EXTRA_NS * min(done, 1.0), STACKS_EXTRA_SHARE * usual_ns)


def _allow_teardown(torch: Any) -> None:
    """Let Kineto take CUPTI down afterwards; otherwise every later kernel launch stays 10-20 % slower (pytorch #144455).

    Newer torch does so by itself; a value that the user has set stands.
    """
    version = str(getattr(torch.version, "cuda", "") or "").split(".")
    known = len(version) >= 2 and version[0].isdigit() and version[1].isdigit()
    if known and (int(version[0]), int(version[1])) >= TEARDOWN_CUDA:
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
