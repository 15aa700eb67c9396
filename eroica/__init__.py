"""Eroica: online performance troubleshooting for large model training.

The rooms of the house stand at the top of the repository and are installed under this name; see CONTRIBUTING.md.
"""

import os

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(os.path.dirname(__file__), "schemas")):  # noqa: PTH112, PTH118, PTH120  # pathlib is slow to load
    # This is the checkout's own folder, found first because the interpreter was started there: the rooms are where they were
    # installed.
    from pkgutil import extend_path

    __path__ = extend_path(__path__, __name__)
