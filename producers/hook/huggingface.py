"""Hugging Face ``transformers``: a callback that marks the trainer's steps.

For ``Trainer(callbacks=[EroicaCallback()])``. The hook finds the trainer's iterations by itself in most cases; the
callback is for those where it does not.
"""

from __future__ import annotations

from typing import Any

from eroica.producers.hook import activate, mark_step


def __getattr__(name: str) -> Any:
    """Make ``EroicaCallback`` on first use, for only then must transformers be there.

    :raises ImportError: if ``transformers`` is not installed.
    """
    if name != "EroicaCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import TrainerCallback

    made = type("EroicaCallback", (_Marks, TrainerCallback), {"__doc__": _Marks.__doc__, "__module__": __name__})
    globals()[name] = made
    return made


class _Marks:
    """Marks an iteration at the end of each optimizer step of the trainer."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Switch the hook on and begin to count."""
        activate()
        mark_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step is complete, accumulation included."""
        mark_step()
