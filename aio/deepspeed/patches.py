"""What enable() changes in DeepSpeed, and disable() puts back.

1. A builder is a class with NAME "async_io", "pin_memory" or "gds" in a module of an op_builder
   package; every accelerator has its own. Their load() gives this library's modules, and their
   is_compatible() says yes; no and an error for gds.
2. An accelerator without such a builder has NotImplementedBuilder under its name. The names of
   modules that have it so get the general builder, which needs nothing of an accelerator.
3. The caches of what was loaded (OpBuilder._loaded_ops, an attribute of sys) and of what is
   compatible (__compatible_ops__) are set to the same.
4. All this is done to the modules that are there, and by an import hook to those that come.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any

from aio.deepspeed import operators
from aio.deepspeed.import_hook import WATCHED, ImportHook
from aio.deepspeed.versions import installed_version, require_supported

COMPATIBLE = {"async_io": True, "pin_memory": True, "gds": False}
NOT_IMPLEMENTED = "deepspeed_not_implemented"
GENERAL_BUILDERS = {"AsyncIOBuilder": "async_io", "PinMemoryBuilder": "pin_memory"}
PIN_MODULE_ATTRIBUTE = "_deepspeed_pin_memory_op_module"  # of sys; DeepSpeed's process-wide cache

_MISSING = object()
_EMPTY = ModuleType("none of DeepSpeed's is imported")


def enable() -> None:
    """Let DeepSpeed use this library in place of its operators async_io and pin_memory.

    Before or after ``import deepspeed``, which it does not import itself; repeating it is harmless.
    Handles and pinned tensors made before keep to what made them.

    Raises ModuleNotFoundError where there is no DeepSpeed, UnsupportedDeepSpeed for a version that
    is not known, and RuntimeError where DeepSpeed's own operator has pinned memory already, and
    under ``python -O``. Nothing is changed then.
    """
    global _active
    with _lock:
        if _active is not None:
            return
        require_supported(installed_version())
        _require_asserts()
        _require_nothing_pinned()
        undo = ExitStack()
        try:
            _Patches(undo).apply()
        except BaseException:
            undo.close()
            raise
        _active = undo


def disable() -> None:
    """Give DeepSpeed its own operators back. What this library made so far stays valid.

    Harmless where nothing is enabled.
    """
    global _active
    with _lock:
        if _active is not None:
            active, _active = _active, None
            active.close()


def enabled() -> bool:
    """True between enable() and disable()."""
    return _active is not None


_lock = threading.RLock()
_active: ExitStack | None = None


def _require_asserts() -> None:
    if not __debug__:
        raise RuntimeError(
            "DeepSpeed starts its reads and writes inside assert statements, which python -O "
            "(PYTHONOPTIMIZE) removes, so that nothing would be swapped: run Python without it"
        )


def _require_nothing_pinned() -> None:
    """Tensors of the other operator would be unknown to this one: not pinned, never unpinned."""
    ranges: dict[int, int] = getattr(_native_pins(), "_ranges", {})
    nbytes = sum(end - begin for begin, end in list(ranges.items()))
    if nbytes:
        raise RuntimeError(
            f"DeepSpeed's own pin_memory operator holds {nbytes} bytes already: call "
            "aio.deepspeed.enable() before anything is pinned (DS_PIN_MEMORY_BACKEND=native)"
        )


class _Patches:
    """Changes, each with its undoing, which go on for as long as DeepSpeed is imported."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo
        self._seen: set[type] = set()
        self._gaps: dict[str, tuple[Any, Any]] = {}  # name: the general builder, what it stands for

    def apply(self) -> None:
        ops = vars(sys.modules.get("deepspeed.ops", _EMPTY))
        compatible: dict[str, bool] = ops.get("__compatible_ops__", {})
        if "__compatible_ops__" not in ops:
            self._undo.callback(_probe_again)  # the last to be undone: it asks the builders
        self._undo.callback(self._open_gaps)
        hook = ImportHook(self._see)
        sys.meta_path.insert(0, hook)
        self._undo.callback(sys.meta_path.remove, hook)
        self._set(vars(sys), PIN_MODULE_ATTRIBUTE, operators.pin_memory)
        self._undo.callback(_set_native_pins, _native_pins())
        _set_native_pins(None)  # its handle is DeepSpeed's own; the next gets this library's
        for operator in COMPATIBLE.keys() & compatible.keys():
            self._set(compatible, operator, COMPATIBLE[operator])
        modules = list(sys.modules.items())
        for name, module in modules:
            if WATCHED.fullmatch(name):
                self._see(module)
        for name, module in modules:
            if name.startswith("deepspeed."):
                self._fill_gaps(module)  # it imported the name before now

    def _see(self, module: ModuleType) -> None:
        """Change what is to be changed in a module with builders."""
        for value in list(vars(module).values()):
            if isinstance(value, type) and value not in self._seen:
                self._see_class(value)
        self._fill_gaps(module)

    def _see_class(self, kind: type) -> None:
        """Change a builder, or the cache that all builders share."""
        own = vars(kind)
        if own.get("NAME") in COMPATIBLE:
            self._seen.add(kind)
            load, is_compatible = _methods(own["NAME"])
            self._set_attribute(kind, "load", load)
            self._set_attribute(kind, "is_compatible", is_compatible)
        elif isinstance(own.get("_loaded_ops"), dict):
            self._seen.add(kind)
            for operator, module in operators.MODULES.items():
                self._set(own["_loaded_ops"], operator, module)

    def _fill_gaps(self, module: ModuleType) -> None:
        """Give a module the general builder where its accelerator has none."""
        for name, file in GENERAL_BUILDERS.items():
            if getattr(vars(module).get(name), "NAME", None) == NOT_IMPLEMENTED:
                general = sys.modules.get(f"deepspeed.ops.op_builder.{file}", _EMPTY)
                if name in vars(general):
                    self._gaps[name] = vars(general)[name], vars(module)[name]
                    self._set(vars(module), name, vars(general)[name])

    def _open_gaps(self) -> None:
        """Modules that imported a name while it was filled get what they would have got."""
        for of_module, module in list(sys.modules.items()):
            if of_module.startswith("deepspeed.") and not WATCHED.fullmatch(of_module):
                for name, (general, missing) in self._gaps.items():
                    if vars(module).get(name) is general:
                        vars(module)[name] = missing

    def _set(self, where: MutableMapping[str, Any], key: str, value: Any) -> None:
        before = where.get(key, _MISSING)
        where[key] = value
        if before is _MISSING:
            self._undo.callback(where.pop, key, None)
        else:
            self._undo.callback(where.__setitem__, key, before)

    def _set_attribute(self, owner: type, name: str, value: Any) -> None:
        before = owner.__dict__.get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, before)


def _methods(operator: str) -> tuple[Callable[..., ModuleType], Callable[..., bool]]:
    def load(self: Any, verbose: bool = False) -> ModuleType:
        return operators.MODULES[operator] if operator != "gds" else operators.no_gds()

    def is_compatible(self: Any, verbose: bool = False) -> bool:
        return COMPATIBLE[operator]

    return load, is_compatible


def _native_pins() -> Any:
    """DeepSpeed's one manager of natively pinned memory, if it has been made."""
    return vars(sys.modules.get("deepspeed.utils.pin_memory", _EMPTY)).get("_shared_native_pins")


def _set_native_pins(value: Any) -> None:
    module = sys.modules.get("deepspeed.utils.pin_memory")
    if module is not None:
        vars(module)["_shared_native_pins"] = value


def _probe_again() -> None:
    """What was found compatible while enabled is found anew, as each version does it."""
    ops = sys.modules.get("deepspeed.ops", _EMPTY)
    compatible = vars(ops).get("__compatible_ops__")
    if compatible is None:
        return
    if "__getattr__" in vars(ops):  # probes when it is asked for what is not there
        del vars(ops)["__compatible_ops__"]
        return
    builders = vars(sys.modules["deepspeed.ops.op_builder.all_ops"])["ALL_OPS"]
    for operator in COMPATIBLE.keys() & compatible.keys() & builders.keys():
        compatible[operator] = builders[operator].is_compatible()
