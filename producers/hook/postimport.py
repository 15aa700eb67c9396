"""Runs the hook's installation right after torch is imported, so that programs without torch pay nothing.

Import order stays the program's own: torch is never imported by us.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # see the package's __init__
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any


class AfterImport:
    """A meta path finder that finds nothing itself: it lets the others find *name* and calls *then* once the module has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then

    def install(self) -> None:
        """Call *then* now if the module is there already, else when it comes."""
        module = sys.modules.get(self._name)
        if module is not None:
            self._then(module)
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec that the finders after us give, its loader wrapped for one execution."""
        if name != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else _ask(finder, name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None

    def done(self, module: ModuleType) -> None:
        """The module has run: withdraw, and call."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


class _Loader:
    """Stands before the real loader while the module runs, then leaves no trace of itself."""

    def __init__(self, real: Any, owner: AfterImport) -> None:
        self._real = real
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._owner.done(module)


def _ask(finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None) -> Any:
    find = getattr(finder, "find_spec", None)
    return None if find is None else find(name, path, target)
