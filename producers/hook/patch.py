"""Puts the hook into torch: the data loaders' iterators, all optimizers, and the gradient scalers that skip a step.

Each wrapped call is passed through unchanged, whatever happens to us.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from eroica.producers.hook.guard import Guard
from eroica.producers.hook.recorder import Recorder
from eroica.producers.hook.userprofiler import UserProfilers

_WRAPPED = "_eroica_wrapped"


class Patch:
    """The hook as installed in one process; one instance for its life."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.guard = Guard()
        self.users = UserProfilers(self.guard)
        self.recorder = Recorder(torch, self.guard, self.users)
        self._steps_seen = 0
        compiler: Any = getattr(torch, "compiler", _Uncompiled)
        self._compiler: Any = _Uncompiled
        self._is_traced: Callable[[], bool] = getattr(compiler, "is_compiling", _never)
        if hasattr(compiler, "is_dynamo_compiling") and hasattr(compiler, "_is_compiling_flag"):
            # The two halves of is_compiling(), which looks for them in three modules.
            self._compiler, self._is_traced = compiler, compiler.is_dynamo_compiling

    def install(self) -> None:
        """Wrap torch's calls.

        :raises AttributeError, ImportError: if this torch lacks what is to be wrapped; then nothing is.
        """
        # torch.optim hides its module ``optimizer``, so modules are asked for by name.
        register = import_module("torch.optim.optimizer").register_optimizer_step_post_hook
        base = import_module("torch.utils.data.dataloader")._BaseDataLoaderIter
        scaler = getattr(import_module("torch.amp.grad_scaler"), "GradScaler", None)
        self.users.install(self.torch)
        # For iterators that were made before, or whose own __init__ does not call its parent's.
        base._eroica_symbol = -1
        base._eroica_inside = False
        self._wrap_init(base)
        for kind in (base, *_subclasses(base)):
            self._wrap_next(kind)
        register(self._after_step)
        if scaler is not None:
            self._wrap_scaler(scaler)
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self._at_exit)

    def mark(self, step: int | None = None) -> None:
        """See :meth:`Recorder.mark`."""
        with self.guard:
            self.recorder.mark(step)

    def _wrap_init(self, base: Any) -> None:
        original = base.__init__

        @functools.wraps(original)
        def init(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, loader, *args, **kwargs)
            with self.guard:
                dataset = getattr(loader, "dataset", loader)
                likeness = (
                    type(loader).__qualname__,
                    type(dataset).__qualname__,
                    getattr(loader, "batch_size", None),
                    type(getattr(loader, "sampler", None)).__qualname__,
                )
                iterator._eroica_symbol = self.recorder.loaders.token(loader, likeness) << 1
                self._wrap_next(type(iterator))

        base.__init__ = init

    def _wrap_next(self, kind: Any) -> None:
        """Wrap ``kind.__next__`` if *kind* defines it itself; a subclass that calls its parent's is counted once."""
        original = vars(kind).get("__next__")
        if original is None or hasattr(original, _WRAPPED):
            return
        guard = self.guard

        @functools.wraps(original)
        def wrapped(iterator: Any) -> Any:
            if iterator._eroica_inside or guard.tripped:
                return original(iterator)
            recorder = self.recorder
            symbol = iterator._eroica_symbol
            iterator._eroica_inside = True
            entered_ns = 0
            returned = False
            try:
                if symbol < 0:
                    symbol = self._loader_symbol(iterator)
                entered_ns = recorder.loader_enter(symbol)
            except Exception as error:  # noqa: BLE001 - see Guard
                guard.note(error)
            try:
                batch = original(iterator)
                returned = True
                return batch
            finally:
                iterator._eroica_inside = False
                try:
                    recorder.loader_exit(symbol, entered_ns, returned)
                except Exception as error:  # noqa: BLE001 - see Guard
                    guard.note(error)

        setattr(wrapped, _WRAPPED, True)
        kind.__next__ = wrapped

    def _loader_symbol(self, iterator: Any) -> int:
        """Of an iterator made before we were installed: all that is left of its loader is the data set."""
        dataset = iterator._dataset
        symbol = self.recorder.loaders.token(dataset, type(dataset).__qualname__) << 1
        iterator._eroica_symbol = symbol
        return symbol

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # The first call is the one that torch.compile answers while it traces, and then it sees no more of us.
        if self._is_traced() or self._compiler._is_compiling_flag or self.guard.tripped:
            return
        self._steps_seen += 1
        try:
            self.recorder.optimizer_exit(optimizer)
        except Exception as error:  # noqa: BLE001 - see Guard
            self.guard.note(error)

    def _wrap_scaler(self, scaler: Any) -> None:
        original = scaler.step

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._steps_seen
            result = original(scaler, optimizer, *args, **kwargs)
            if self._steps_seen == before and not self.guard.tripped:
                with self.guard:
                    self.recorder.optimizer_exit(optimizer)
            return result

        scaler.step = step

    def _after_fork(self) -> None:
        """A forked child starts with nothing of its parent's: no socket, no signature, no profile.

        It becomes a rank only if it steps an optimizer itself; a loader's worker never does.
        """
        with self.guard:
            self.recorder.sender.close(unlink=False)
            self.recorder = Recorder(self.torch, self.guard, self.users)

    def _at_exit(self) -> None:
        with self.guard:
            self.recorder.goodbye()


def _subclasses(kind: Any) -> list[Any]:
    found = []
    for child in kind.__subclasses__():
        found += [child, *_subclasses(child)]
    return found


class _Uncompiled:
    """In place of ``torch.compiler`` where that does not tell by a flag."""

    _is_compiling_flag = False


def _never() -> bool:
    return False
