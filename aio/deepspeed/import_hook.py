"""A function that sees modules of DeepSpeed right after they are executed, whenever that is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Builders are in the package, or beside it where DeepSpeed runs from a checkout.
WATCHED = re.compile(r"(deepspeed\.ops\.)?op_builder(\..+)?")

Seen = Callable[[ModuleType], None]


class ImportHook(MetaPathFinder):
    """Finds the watched modules as the finders after it do, and has them seen when executed."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not WATCHED.fullmatch(fullname):
            return None
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in (one for one in others if hasattr(one, "find_spec")):  # as Python does
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:  # as for a folder without __init__.py
                    spec.loader = _SeeingLoader(spec, spec.loader, self._seen)
                return spec
        return None


class _SeeingLoader(Loader):
    """Executes a module by its own loader, to which the module belongs again before that."""

    def __init__(self, spec: ModuleSpec, loader: Loader, seen: Seen) -> None:
        self._spec = spec
        self._loader = loader
        self._seen = seen

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._seen(module)
