"""Python runs this file at start where its folder stands first in ``PYTHONPATH``; ``eroica run`` puts it there.

It switches the hook on, then runs the ``sitecustomize`` that it hides, if there is one. A failure of ours is swallowed: a Python
program must start whether we work or not.
"""

import contextlib
import sys


def _chain() -> None:
    """Run the next ``sitecustomize`` on the path in our place, as if this file were not there."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from pathlib import Path

    here = Path(__file__).resolve().parent
    path = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


with contextlib.suppress(Exception):
    from eroica.producers.hook import activate

    activate()

_chain()
