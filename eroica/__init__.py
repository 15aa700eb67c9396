"""Eroica: online performance troubleshooting for large model training.

The rooms of the house stand at the top of the repository and are installed under this name; see CONTRIBUTING.md.
"""

__version__ = "0.1.0"
