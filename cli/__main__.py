"""Where the ``eroica`` command starts: ready for Ctrl-C before anything that takes long to import."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
"""As the shell counts a program that Ctrl-C ended."""


def main() -> int:
    """Run the command line of this process and return its exit code.

    Ctrl-C while our modules are imported ends the process at once, silently: nothing is open yet that would have to be closed.
    From then on it is the command's own affair. Who started us with Ctrl-C ignored, as a shell does for ``&``, keeps it so.
    """
    try:
        import signal

        heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if heard:
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from eroica.cli.main import main as run

        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return run()
        finally:
            if heard:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is said: the interpreter's own end has nothing to tell
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
