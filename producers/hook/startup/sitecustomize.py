"""Python runs this file at start where its folder stands first in ``PYTHONPATH``; ``eroica run`` puts it there.

It switches the hook on, then runs the ``sitecustomize`` that it hides, if there is one. A failure of ours is swallowed: a Python
program must start whether we work or not.
"""

import contextlib
import sys


def _chain() -> None:
    """Import the next ``sitecustomize`` on the path in our place, as if this folder were not there."""
    here = __file__.rpartition("/")[0]
    path, ours = sys.path[:], sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in path if entry.rstrip("/") != here]
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours
    finally:
        added = [entry for entry in sys.path if entry not in path]
        sys.path[:] = added + path


with contextlib.suppress(Exception):
    from eroica.producers.hook import activate

    activate()

_chain()
