"""A signal is a wish that is read between two steps; no exception comes out of the handler."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from eroica.offline.demo.interrupt import Interrupt

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("numbers", "error", "code"),
    [
        ([signal.SIGINT], KeyboardInterrupt, None),
        ([signal.SIGTERM], SystemExit, 143),
        ([signal.SIGTERM, signal.SIGINT], SystemExit, 143),
    ],
)
def test_the_first_signal_counts_when_it_is_asked_for(
    numbers: list[signal.Signals], error: type[BaseException], code: int | None
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt() as interrupt:
        interrupt.check()
        for number in numbers:
            os.kill(os.getpid(), number)
        assert interrupt.wished
        with pytest.raises(error) as raised:
            interrupt.check()
    assert getattr(raised.value, "code", None) == code
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_in_the_midst_of_a_fork_is_not_lost() -> None:
    """What runs at a fork drops exceptions: the handler must not need one."""
    logging.getLogger()
    with Interrupt() as interrupt:
        fired = []

        def at_fork() -> None:
            if not fired:
                fired.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        os.register_at_fork(before=at_fork)
        subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True)
        assert fired
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def elsewhere() -> None:
        with Interrupt() as interrupt:
            interrupt.check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(100)
    assert seen == [before]
