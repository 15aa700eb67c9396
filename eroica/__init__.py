"""Eroica: online performance troubleshooting for large model training.

The rooms of the house stand at the top of the repository and are installed under this name; see CONTRIBUTING.md.
"""

from pathlib import Path
from pkgutil import extend_path

__version__ = "0.1.0"

if not (Path(__file__).parent / "schemas").is_dir():
    # This is the checkout's own folder, found first because the interpreter was started there: the rooms are where they were
    # installed.
    __path__ = extend_path(__path__, __name__)
