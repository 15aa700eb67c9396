"""PyTorch Lightning: a callback that marks the trainer's steps.

For ``Trainer(callbacks=[EroicaCallback()])``. Seldom needed, for Lightning's loops use torch's loaders and optimizers,
which the hook sees by itself; use it with manual loops or compiled optimizers.
"""

from __future__ import annotations

from typing import Any

from eroica.producers.hook import activate, mark_step


def __getattr__(name: str) -> Any:
    """Make ``EroicaCallback`` on first use, for only then must Lightning be there.

    :raises ImportError: if neither ``lightning`` nor ``pytorch_lightning`` is installed.
    """
    if name != "EroicaCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback
    made = type("EroicaCallback", (_Marks, Callback), {"__doc__": _Marks.__doc__, "__module__": __name__})
    globals()[name] = made
    return made


class _Marks:
    """Marks an iteration whenever the trainer's ``global_step`` has grown at the end of a batch."""

    _last = -1

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Switch the hook on and begin to count."""
        activate()
        self._last = int(trainer.global_step)
        mark_step()

    def on_train_batch_end(self, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """With gradient accumulation most batches end no step."""
        if int(trainer.global_step) != self._last:
            self._last = int(trainer.global_step)
            mark_step()
